"""The language of LAMMPS scripts: lines, words, variables, formulas.

Nothing here knows what a command does.  Documented in the LAMMPS manual, pages "Parsing rules for
input scripts", "variable command" and "if command".
"""

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError

#: nesting of variables in variables before it must be a circle
_DEEPEST = 50
_CONSTANTS = {"PI": math.pi, "version": 20250722.0, "yes": 1.0, "on": 1.0, "true": 1.0, "no": 0.0, "off": 0.0}
_CONSTANTS["false"] = 0.0


class ScriptError(InputError):
    """A mistake in a script, without the place; the interpreter adds ``file:line``."""


class UnknownName(ScriptError):
    """Something is referred to that is not defined.  kind : ``"fix"``, ``"group"``, ...; name : its id."""

    def __init__(self, kind, name, message):
        super().__init__(message)
        self.kind, self.name = kind, name

    def __reduce__(self):  # one that goes to other ranks
        return type(self), (self.kind, self.name, str(self)), vars(self)


@dataclass(frozen=True)
class Line:
    """A command as written, continuation lines joined, and where it begins."""

    text: str
    file: str
    number: int

    @property
    def where(self):
        return f"{self.file}:{self.number}"


def read_lines(path):
    """Lines of a script, with ``&`` at the end of a line and triple quotes joining lines."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ScriptError(f"{path}: cannot be read: {error.strerror or error}") from error
    return split_lines(text, str(path))


def split_lines(text, file):
    """Lines of a script's text; see :func:`read_lines`."""
    lines, parts, begin = [], [], 1
    for number, raw in enumerate(text.splitlines(), 1):
        if not parts:
            begin = number
        stripped = raw.rstrip()
        joined = "".join(parts) + stripped
        if stripped.endswith("&"):
            parts.append(stripped[:-1])
            continue
        if joined.count('"""') % 2:
            parts.append(stripped + "\n")
            continue
        lines.append(Line(joined, file, begin))
        parts = []
    if parts:
        lines.append(Line("".join(parts), file, begin))
    return lines


def _quoted_parts(text):
    """Pieces ``(text, quote)`` of a line, quote being '"', "'", triple quotes or "" outside."""
    position, plain = 0, ""
    while position < len(text):
        for quote in ('"""', '"', "'"):
            if text.startswith(quote, position):
                end = text.find(quote, position + len(quote))
                if end < 0:
                    raise ScriptError(f"the quote {quote} is not closed")
                if plain:
                    yield plain, ""
                    plain = ""
                yield text[position + len(quote) : end], quote
                position = end + len(quote)
                break
        else:
            if text[position] == "#":
                break
            plain += text[position]
            position += 1
    if plain:
        yield plain, ""


def split_words(text):
    """Words of a line; quoted ones without their quotes, comments left out."""
    words, glued = [], False
    for part, quote in _quoted_parts(text):
        if quote:
            if glued and words:
                words[-1] += part
            else:
                words.append(part)
            glued = True
            continue
        pieces = part.split()
        if glued and pieces and words and not part[0].isspace():
            words[-1] += pieces.pop(0)
        words += pieces
        glued = bool(part) and not part[-1].isspace() and bool(words)
    return words


# --------------------------------------------------------------------- formulas

_token = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<op>\*\*|==|!=|<=|>=|&&|\|\||\|\^|[-+*/%^<>!()\[\],]))"
)
_binary = [
    {"||": lambda a, b: float(bool(a) or bool(b)), "|^": lambda a, b: float(bool(a) != bool(b))},
    {"&&": lambda a, b: float(bool(a) and bool(b))},
    {"==": lambda a, b: float(a == b), "!=": lambda a, b: float(a != b)},
    {
        "<": lambda a, b: float(a < b), "<=": lambda a, b: float(a <= b),
        ">": lambda a, b: float(a > b), ">=": lambda a, b: float(a >= b),
    },
    {"+": lambda a, b: a + b, "-": lambda a, b: a - b},
    {"*": lambda a, b: a * b, "/": lambda a, b: a / b, "%": lambda a, b: math.fmod(a, b)},
]  # fmt: skip
#: functions of numbers: {name: (fewest arguments, most, function)}
FUNCTIONS = {
    "sqrt": (1, 1, math.sqrt), "exp": (1, 1, math.exp), "ln": (1, 1, math.log), "log": (1, 1, math.log10),
    "abs": (1, 1, abs), "sign": (1, 1, lambda x: math.copysign(1.0, x)),
    "sin": (1, 1, math.sin), "cos": (1, 1, math.cos), "tan": (1, 1, math.tan),
    "asin": (1, 1, math.asin), "acos": (1, 1, math.acos), "atan": (1, 1, math.atan), "atan2": (2, 2, math.atan2),
    "ceil": (1, 1, lambda x: float(math.ceil(x))), "floor": (1, 1, lambda x: float(math.floor(x))),
    "round": (1, 1, lambda x: math.copysign(math.floor(abs(x) + 0.5), x)),
    "ternary": (3, 3, lambda condition, a, b: a if condition else b),
}  # fmt: skip


class _Formula:
    """Recursive descent over one formula; ``lookup`` supplies what is not arithmetic."""

    def __init__(self, text, lookup):
        self.text, self.lookup, self.position = text, lookup, 0
        self.token = self._next()

    def _next(self):
        if not self.text[self.position :].strip():
            return ("end", "")
        match = _token.match(self.text, self.position)
        if match is None:
            raise ScriptError(f"cannot read {self.text[self.position :].strip()[:20]!r} in the formula {self.text!r}")
        self.position = match.end()
        return (match.lastgroup, match[match.lastgroup])

    def _take(self, op):
        if self.token == ("op", op):
            self.token = self._next()
            return True
        return False

    def _expect(self, op):
        if not self._take(op):
            raise ScriptError(f"{op!r} is missing in the formula {self.text!r}")

    def evaluate(self):
        value = self._level(0)
        if self.token[0] != "end":
            raise ScriptError(f"unexpected {self.token[1]!r} in the formula {self.text!r}")
        return value

    def _level(self, level):
        if level == len(_binary):
            return self._unary()
        value = self._level(level + 1)
        while self.token[0] == "op" and self.token[1] in _binary[level]:
            operation = _binary[level][self.token[1]]
            self.token = self._next()
            value = operation(value, self._level(level + 1))
        return value

    def _unary(self):
        if self._take("-"):
            return -self._unary()
        if self._take("+"):
            return self._unary()
        if self._take("!"):
            return float(not self._unary())
        base = self._atom()
        if self._take("^") or self._take("**"):
            return base ** self._unary()
        return base

    def _atom(self):
        kind, text = self.token
        if kind == "number":
            self.token = self._next()
            return float(text)
        if self._take("("):
            value = self._level(0)
            self._expect(")")
            return value
        if kind == "name":
            self.token = self._next()
            if self.token == ("op", "(") and text[:2] not in ("c_", "f_", "v_"):
                return self._call(text)
            indices = []
            while self._take("["):
                indices.append(self._level(0))
                self._expect("]")
            if text in _CONSTANTS and not indices:
                return _CONSTANTS[text]
            return float(self.lookup.value(text, tuple(int(i) for i in indices)))
        raise ScriptError(f"a value is missing in the formula {self.text!r}")

    def _call(self, name):
        self._take("(")
        if name not in FUNCTIONS:
            end = self.text.find(")", self.position)
            start = self.position - len(self.token[1]) if self.token[0] != "end" else self.position
            if end < 0:
                raise ScriptError(f"')' is missing in the formula {self.text!r}")
            words = [w.strip() for w in self.text[start:end].split(",")]
            self.position = end + 1
            self.token = self._next()
            return float(self.lookup.function(name, words))
        arguments = []
        if not self._take(")"):
            arguments.append(self._level(0))
            while self._take(","):
                arguments.append(self._level(0))
            self._expect(")")
        fewest, most, function = FUNCTIONS[name]
        if not fewest <= len(arguments) <= most:
            raise ScriptError(f"{name}() takes {fewest} arguments, not {len(arguments)}, in the formula {self.text!r}")
        return float(function(*arguments))


def evaluate(text, lookup):
    """Value of a formula.  ``lookup`` has ``value(name, indices)`` and ``function(name, words)``."""
    try:
        value = _Formula(text, lookup).evaluate()
        if isinstance(value, complex):
            raise ValueError("not a real number")
        return value
    except (ZeroDivisionError, ValueError, OverflowError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise ScriptError(f"the formula {text!r} has no value: {error}") from error
    except RecursionError as error:
        raise ScriptError(f"the formula {text[:40]!r}... is nested too deeply") from error


def format_number(value):
    """A number as LAMMPS writes the value of a variable: 15 significant digits."""
    return f"{value:.15g}"


def c_format(form, value):
    """``value`` by a C format such as ``%20.15g`` or ``%d``.  Raises ScriptError for others."""
    match = re.fullmatch(r"([^%]*)%([-+ #0]*\d*(?:\.\d+)?)(?:l|ll)?([dieEfFgGsu])([^%]*)", form)
    if match is None:
        raise ScriptError(f"{form!r} is not a format for one number, such as %g or %20.15f")
    before, size, kind, after = match.groups()
    try:
        if kind in "diu":
            return f"{before}{f'%{size}d' % round(value)}{after}"
        return f"{before}{f'%{size}{kind}' % value}{after}"
    except (ValueError, OverflowError) as error:
        raise ScriptError(f"{value!r} cannot be written as {form!r}") from error


# --------------------------------------------------------------------- variables


class Variables:
    """Variables of a script.

    outside : object with ``value(name, indices)`` and ``function(name, words)`` for thermo
    keywords, computes, fixes and group functions.
    """

    STYLES = ("index", "loop", "string", "equal", "getenv", "format", "internal", "delete")

    def __init__(self, outside=None):
        self.outside, self._all, self._depth = outside, {}, 0

    def __contains__(self, name):
        return name in self._all

    def set_from_command_line(self, name, values):
        """``-var name value ...``: an index variable that the script cannot set anew."""
        self._all[name] = {"style": "index", "values": list(values), "at": 0}

    def define(self, name, style, words):
        """The ``variable`` command."""
        if not re.fullmatch(r"\w+", name):
            raise ScriptError(f"variable name {name!r}: only letters, digits and _")
        known = self._all.get(name)
        if style == "delete":
            self._all.pop(name, None)
            return
        if style not in self.STYLES:
            raise ScriptError(f"variable style {style!r} is not supported; known: {', '.join(self.STYLES)}")
        if known and style in ("index", "loop", "getenv"):
            return  # as documented: set once, so that loops and -var work
        if known and known["style"] != style and style not in ("string", "format"):
            raise ScriptError(f"variable {name} is of style {known['style']} already; delete it first")
        if not words:
            raise ScriptError(f"variable {name} {style} needs a value")
        self._all[name] = {"style": style, **getattr(self, f"_new_{style}")(words)}

    @staticmethod
    def _new_index(words):
        return {"values": words, "at": 0}

    @staticmethod
    def _new_loop(words):
        pad = words[-1] == "pad"
        try:
            bounds = [int(w) for w in words[: len(words) - pad]]
        except ValueError:
            raise ScriptError(f"a loop variable takes whole numbers, not {' '.join(words)!r}") from None
        first, last = (1, *bounds) if len(bounds) == 1 else (bounds[0], bounds[1]) if len(bounds) == 2 else (1, 0)
        if last < first or last - first > 100_000_000:
            raise ScriptError(f"a loop variable takes N or N1 N2 with N1 <= N2, not {' '.join(words)!r}")
        width = len(str(last)) if pad else 0
        return {"range": (first, last, width), "at": 0}

    @staticmethod
    def _new_string(words):
        return {"values": words[:1], "at": 0}

    @staticmethod
    def _new_equal(words):
        return {"formula": " ".join(words)}

    @staticmethod
    def _new_internal(words):
        try:
            return {"formula": format_number(float(words[0]))}
        except ValueError:
            raise ScriptError(f"an internal variable takes a number, not {words[0]!r}") from None

    def _new_getenv(self, words):
        value = os.environ.get(words[0])
        if self.outside is not None:
            value = self.outside.processes.broadcast(value)  # ranks may have different environments
        if value is None:
            raise ScriptError(f"the environment variable {words[0]} is not set")
        return {"values": [value], "at": 0}

    def _new_format(self, words):
        if len(words) < 2 or words[0] not in self._all:
            raise ScriptError("variable NAME format takes an equal-style variable and a format such as %.3g")
        return {"of": words[0], "form": words[1]}

    def _defined(self, name):
        if name not in self._all:
            raise UnknownName(
                "variable", name, f"variable {name!r} is not defined; set it in the script or with -var {name} VALUE"
            )
        return self._all[name]

    def text(self, name):
        """What ``${name}`` stands for.  Raises ScriptError for an unknown name."""
        variable = self._defined(name)
        style = variable["style"]
        if style == "loop":
            first, _, width = variable["range"]
            return str(first + variable["at"]).zfill(width)
        if style == "format":
            return c_format(variable["form"], self.number(variable["of"]))
        if style in ("equal", "internal"):
            return format_number(self.number(name))
        return variable["values"][variable["at"]]

    def number(self, name):
        """The variable as a number, formulas evaluated."""
        variable = self._defined(name)
        if "formula" in variable:
            self._depth += 1
            try:
                if self._depth > _DEEPEST:
                    raise ScriptError(f"variable {name} depends on itself")
                return evaluate(variable["formula"], self)
            finally:
                self._depth -= 1
        text = self.text(name)
        try:
            return float(text)
        except ValueError:
            raise ScriptError(f"variable {name} is {text!r}, not a number") from None

    # formulas ask here
    def value(self, name, indices):
        """A name in a formula."""
        if name.startswith("v_") and not indices:
            return self.number(name[2:])
        if self.outside is None:
            raise ScriptError(f"{name!r} is unknown in a formula")
        return self.outside.value(name, indices)

    def function(self, name, words):
        """A function of groups or ids in a formula."""
        if name == "is_defined" and len(words) == 2 and words[0] == "variable":
            return float(words[1] in self._all)
        if self.outside is None:
            raise ScriptError(f"{name}() is unknown in a formula")
        return self.outside.function(name, words)

    def evaluate(self, text):
        """Value of a formula."""
        return evaluate(text, self)

    def advance(self, names):
        """The ``next`` command.  True if the variables were used up (and are deleted)."""
        done = False
        for name in names:
            variable = self._all.get(name)
            if variable is None or variable["style"] not in ("index", "loop"):
                raise ScriptError(f"next {name}: not an index or loop variable")
            variable["at"] += 1
            length = (
                variable["range"][1] - variable["range"][0] + 1 if variable["style"] == "loop"
                else len(variable["values"])
            )  # fmt: skip
            done = done or variable["at"] >= length
        if done:
            for name in names:
                del self._all[name]
        return done

    def substitute(self, text, inside_quotes=False):
        """``text`` with $x, ${name} and $(formula) replaced; quoted parts are left as they are."""
        if "$" not in text:
            return text
        if inside_quotes:
            return self._substitute_plain(text)
        result = []
        for part, quote in _quoted_parts(text):
            result.append(f"{quote}{part}{quote}" if quote else self._substitute_plain(part))
        return "".join(result)

    def _substitute_plain(self, text):
        out, position = [], 0
        while True:
            dollar = text.find("$", position)
            if dollar < 0 or dollar + 1 >= len(text):
                out.append(text[position:])
                return "".join(out)
            out.append(text[position:dollar])
            sign = text[dollar + 1]
            if sign == "{":
                end = text.find("}", dollar)
                if end < 0:
                    raise ScriptError(f"'}}' is missing after {text[dollar : dollar + 20]!r}")
                out.append(self.text(text[dollar + 2 : end]))
                position = end + 1
            elif sign == "(":
                end, depth = dollar + 2, 1
                while end < len(text) and depth:
                    depth += {"(": 1, ")": -1}.get(text[end], 0)
                    end += 1
                if depth:
                    raise ScriptError(f"')' is missing after {text[dollar : dollar + 20]!r}")
                formula, _, form = text[dollar + 2 : end - 1].partition(":%")
                value = self.evaluate(formula)
                out.append(c_format("%" + form, value) if form else format_number(value))
                position = end
            else:
                out.append(self.text(sign))
                position = dollar + 2


# --------------------------------------------------------------------- conditions of "if"

_condition_token = re.compile(r"\s*(\(|\)|&&|\|\||\|\^|==|!=|<=|>=|<|>|!|\"[^\"]*\"|'[^']*'|[^\s()&|=!<>]+)")


def condition(text):
    """Truth of the condition of an ``if`` command (variables already replaced)."""
    tokens, position = [], 0
    while text[position:].strip():
        match = _condition_token.match(text, position)
        if match is None:
            raise ScriptError(f"cannot read the condition {text!r}")
        tokens.append(match[1])
        position = match.end()

    def number(word):
        try:
            return float(word)
        except ValueError:
            return None

    def compare(a, op, b):
        x, y = number(a), number(b)
        if x is not None and y is not None:
            return _binary[2 if op in ("==", "!=") else 3][op](x, y) != 0
        a, b = a.strip("\"'"), b.strip("\"'")
        if op in ("==", "!="):
            return (a == b) == (op == "==")
        raise ScriptError(f"the condition {text!r} compares words by {op}; only == and != can")

    def peek():
        return tokens[0] if tokens else ""

    def either():
        value = both()
        while peek() in ("||", "|^"):
            op = tokens.pop(0)
            other = both()
            value = (value or other) if op == "||" else value != other
        return value

    def both():
        value = single()
        while peek() == "&&":
            tokens.pop(0)
            other = single()
            value = value and other
        return value

    def single():
        if not tokens:
            raise ScriptError(f"the condition {text!r} lacks something at its end")
        if peek() == "!":
            tokens.pop(0)
            return not single()
        if peek() == "(":
            tokens.pop(0)
            value = either()
            if not tokens or tokens.pop(0) != ")":
                raise ScriptError(f"')' is missing in the condition {text!r}")
            return value
        word = tokens.pop(0)
        if peek() in ("==", "!=", "<", "<=", ">", ">="):
            op = tokens.pop(0)
            if not tokens:
                raise ScriptError(f"the condition {text!r} lacks something at its end")
            return compare(word, op, tokens.pop(0))
        value = number(word)
        if value is None:
            raise ScriptError(f"the condition {text!r} holds the word {word!r} where a number or comparison is meant")
        return value != 0

    try:
        value = either()
    except RecursionError:
        raise ScriptError("the condition is nested too deeply") from None
    if tokens:
        raise ScriptError(f"unexpected {tokens[0]!r} in the condition {text!r}")
    return value
