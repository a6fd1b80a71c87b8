"""The files of a run: none may be lost, overwritten by accident, or written twice."""

import os
from dataclasses import dataclass
from pathlib import Path

from .errors import InputError


@dataclass(frozen=True)
class OutputFile:
    """A file that the run writes.

    what : for messages; where : ``file:line`` of the setting that names it, or "".
    """

    path: Path
    what: str
    where: str = ""

    @property
    def key(self):
        """The same for every way of spelling the path."""
        return os.path.relpath(os.path.realpath(self.path))


def find_input(path, what, where):
    """``path`` if there is such a file.  Raises InputError with what its folder has instead."""
    path = Path(path)
    try:
        if path.is_file():
            return path
        near = sorted(p.name for p in path.parent.iterdir() if p.is_file())[:8] if path.parent.is_dir() else []
    except (OSError, ValueError) as error:
        raise InputError(f"{where}: {what}: {error}") from error
    hint = f"; that folder has {', '.join(near)}" if near else ""
    raise InputError(f"{where}: {what} {path} does not exist{hint}")


def _problem(path):
    """Why a file cannot be written at ``path``, or None."""
    try:
        if path.is_dir():
            return "is a directory"
        if not path.parent.is_dir():
            return f"is in a folder that does not exist ({path.parent}); create it first"
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            return "cannot be written (no permission)"
        os.stat(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return f"is no usable file name ({error})"
    return None


def check(inputs, outputs):
    """Refuse outputs that cannot be written, that collide, or that would destroy an input.

    inputs : {what: path}; outputs : list of :class:`OutputFile`.  Raises InputError naming both.
    """
    seen = {}
    for what, path in inputs.items():
        try:
            seen[os.path.realpath(path)] = f"the {what}"
        except (OSError, ValueError):
            continue  # reading it will tell
    for output in outputs:
        prefix = f"{output.where}: " if output.where else ""
        if problem := _problem(output.path):
            raise InputError(f"{prefix}{output.what} {output.path} {problem}")
        real = os.path.realpath(output.path)
        if real in seen:
            raise InputError(
                f"{prefix}{output.what} and {seen[real]} are the same file, {output.path}; give one another name"
            )
        seen[real] = output.what


def check_new(outputs, advice):
    """Refuse outputs that exist already.  Raises InputError listing them, with ``advice``."""
    there = [str(output.path) for output in outputs if output.path.exists()]
    if there:
        raise InputError(f"{', '.join(there)} would be overwritten. {advice}")
