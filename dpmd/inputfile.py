"""Reading and validating the TOML input file, with the line of every mistake."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

from dpmd.models.readers import kind_of_binary

from .errors import InputError
from .options import REQUIRED, SECTIONS, USED_BY, suggestion


class _Lines:
    """Line numbers of sections and keys, which tomllib does not give."""

    _header = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?")
    _key = re.compile(r"""^\s*["']?([A-Za-z0-9_-]+)["']?\s*[=.]""")

    def __init__(self, text):
        self.of = {}
        section, counts = "", {}
        for number, line in enumerate(text.splitlines(), 1):
            if match := self._header.match(line):
                section = match[2]
                counts[section] = counts.get(section, -1) + 1
                self.of[section, counts[section], None] = number
            elif match := self._key.match(line):
                self.of.setdefault((section, counts.get(section, 0), match[1]), number)

    def __call__(self, section, index=0, key=None):
        for place in ((section, index, key), (section, index, None), ("", 0, section)):
            if place in self.of:
                return self.of[place]
        return 1


def check_section(section, content, index, where):
    """Namespace of one table's options, defaults filled in; collects every mistake before raising."""
    known = [option.name for option in section.options]
    mistakes = []
    for key in content:
        if key not in known:
            mistakes.append(f"{where(key)}: unknown key {key!r} in {section.title}; {suggestion(key, known)}")
    values = SimpleNamespace()
    for option in section.options:
        if option.name in content and option.kind is dict:
            setattr(values, option.name, content[option.name])
        elif option.name in content:
            try:
                setattr(values, option.name, option.check(content[option.name], where(option.name)))
            except InputError as error:
                mistakes.append(str(error))
        elif option.default is REQUIRED:
            mistakes.append(f"{where(None)}: {section.title} lacks {option.name!r} ({option.help})")
        else:
            setattr(values, option.name, option.default)
    if not mistakes:
        for key in content:
            which, used = USED_BY.get((section.name, key), ("", None))
            if used and not used(values):
                mistakes.append(f"{where(key)}: {key} would do nothing here: it is for {which}; leave it out")
    if mistakes:
        raise InputError(*mistakes)
    values.where = where
    return values


def parse(text, path):
    """Settings from the text of an input file.

    Returns a namespace with one attribute per section (a list for repeated ones), each a
    namespace of its options, and ``where(key)`` giving ``file:line``.  Raises InputError listing
    every mistake with its line.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        structure = " (it looks like a structure; an input file names it: [structure] file = ...)"
        hint = structure * bool(re.match(r"\s*\d+\s*\n", text) or re.search(r"^\s*\d+\s+atoms\b", text, re.MULTILINE))
        raise InputError(f"{path}: not valid TOML: {error}{hint}") from error
    lines = _Lines(text)
    settings, mistakes = SimpleNamespace(path=Path(path)), []
    names = [section.name for section in SECTIONS]
    for name in content:
        if name not in names:
            what = f"unknown section [{name}]" if isinstance(content[name], (dict, list)) else f"unknown key {name!r}"
            mistakes.append(f"{path}:{lines(name)}: {what}; {suggestion(name, names)}")
    for section in SECTIONS:
        if section.name not in content and section.required:
            mistakes.append(f"{path}: section {section.title} ({section.help}) is missing")
            continue
        given = content.get(section.name, [] if section.repeated else {})
        tables = given if section.repeated and isinstance(given, list) else [given]
        checked = []
        for index, table in enumerate(tables):

            def where(key=None, section=section, index=index):
                return f"{path}:{lines(section.name, index, key)}"

            if not isinstance(table, dict):
                mistakes.append(f"{where()}: {section.name} must be a section, {section.title}")
                continue
            try:
                checked.append(check_section(section, table, index, where))
            except InputError as error:
                mistakes.append(str(error))
        setattr(settings, section.name, checked if section.repeated else (checked or [None])[0])
    if mistakes:
        raise InputError(*mistakes)
    return settings


def read(path):
    """Settings from an input file; see :func:`parse`.  Raises InputError if it cannot be read."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors mark the encoding
    except FileNotFoundError:
        near = sorted(p.name for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        hint = f"; here are {', '.join(near)}" if near else ""
        raise InputError(f"{path}: no such input file{hint}") from None
    except UnicodeDecodeError as error:
        kind = kind_of_binary(path)
        raise InputError(
            f"{path}: this is no text{f' but {kind}, as models are' if kind else ''}, and not an input file; "
            f'an input file is a TOML text that names its model: [model] file = "{path}"'
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from error
    return parse(text, path)
