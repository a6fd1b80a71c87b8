"""Files that are written whole: after a kill or on a full disk there is the old one or the new one."""

import os
import stat
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path):
    """A context that gives a Path beside ``path`` to write to; it takes the place of ``path`` at the end.

    If the block raises, ``path`` stays as it was.  The name given begins with a dot and ends as ``path`` does,
    so that no pattern for finished files fits it and writers see the suffix.  Links are followed; what is no
    regular file (``/dev/stdout``, a pipe) is given as it is.
    """
    path = Path(os.path.realpath(path))
    try:
        special = not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        special = False  # there is none yet, or writing will tell
    beside = path if special else path.with_name(f".{os.getpid()}.tmp.{path.name[-200:]}")
    try:
        yield beside
        if special:
            return
        # on the disk before it gets its name: else a crash of the machine could leave an empty file
        descriptor = os.open(beside, os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(beside, path)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(beside), beside):
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        if not special:
            beside.unlink(missing_ok=True)


def write_text(path, text):
    """Write a text file whole, in UTF-8."""
    with written_whole(path) as beside:
        beside.write_text(text, encoding="utf-8")
