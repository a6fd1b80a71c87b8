"""The language of LAMMPS scripts: lines, words, variables, formulas.

Nothing here knows what a command does.  Documented in the LAMMPS manual, pages "Parsing rules for
input scripts", "variable command" and "if command".
"""

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import InputError
from .ranmar import Marsaglia

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
    return split_lines(read_text(path), str(path))


def read_text(path):
    """Text of a file.  Raises ScriptError where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ScriptError(f"{path}: cannot be read: {error.strerror or error}") from error


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


def _quoted_parts(text, comments=False):
    """Pieces ``(text, quote)`` of a text, quote being '"', "'", triple quotes or "" outside.

    comments : whether a # outside of quotes ends the text.
    """
    position = begin = 0
    while position < len(text) and not (comments and text[position] == "#"):
        quote = next((q for q in ('"""', '"', "'") if text.startswith(q, position)), None)
        if quote is None:
            position += 1
            continue
        if position > begin:
            yield text[begin:position], ""
        begin, end = position + len(quote), text.find(quote, position + len(quote))
        if end < 0:
            raise ScriptError(f"the quote {quote} is not closed")
        yield text[begin:end], quote
        position = begin = end + len(quote)
    if position > begin:
        yield text[begin:position], ""


def without_comment(text):
    """A line up to the first ``#`` outside of quotes."""
    return "".join(f"{quote}{part}{quote}" for part, quote in _quoted_parts(text, comments=True))


_word = re.compile(r'\s*(?:(?P<quote>"""|"|\')|(?P<plain>\S+))')


def split_words(text):
    """Words of a command without its comment.  Quotes where a word begins are left out; those inside belong to it."""
    words, position = [], 0
    while match := _word.match(text, position):
        position, quote = match.end(), match["quote"]
        if quote is None:
            words.append(match["plain"])
            continue
        end = text.find(quote, position)
        if end < 0:
            raise ScriptError(f"the quote {quote} is not closed")
        words.append(text[position:end])
        position = end + len(quote)
        if text[position : position + 1].strip():
            raise ScriptError(f"a space is missing after {quote}{words[-1]}{quote}")
    return words


def words_of_line(text):
    """Words of a line as it stands in the script, comment left out, variables not replaced."""
    return split_words(without_comment(text))


# --------------------------------------------------------------------- formulas

_token = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<op>==|!=|<=|>=|&&|\|\||\|\^|[-+*/%^<>!()\[\],]))"
)


def _remainder(a, b):
    if b == 0:
        raise ValueError("modulo 0")
    return math.fmod(a, b) + 0.0 if math.isfinite(a) else math.nan  # no -0


def _power(a, b):
    if a == 0 and b < 0:
        raise ValueError("0 to a negative power")
    try:
        return math.pow(a, b)
    except ValueError:  # of a negative number
        return math.nan
    except OverflowError:
        return math.inf if a > 0 or b % 2 == 0 else -math.inf


def _exponential(x):
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _round(x):
    """To the nearest whole number, halves upwards."""
    return float(np.ceil(x) if x - np.floor(x) >= 0.5 else np.floor(x)) + 0.0  # no -0


#: operators from the weakest to the strongest; those of one row go from left to right
_binary = [
    {"||": lambda a, b: float(bool(a) or bool(b)), "|^": lambda a, b: float(bool(a) != bool(b))},
    {"&&": lambda a, b: float(bool(a) and bool(b))},
    {"==": lambda a, b: float(a == b), "!=": lambda a, b: float(a != b)},
    {
        "<": lambda a, b: float(a < b), "<=": lambda a, b: float(a <= b),
        ">": lambda a, b: float(a > b), ">=": lambda a, b: float(a >= b),
    },
    {"+": lambda a, b: a + b, "-": lambda a, b: a - b},
    {"*": lambda a, b: a * b, "/": lambda a, b: a / b, "%": _remainder},
    {"^": _power},
]  # fmt: skip
#: functions of numbers: {name: (fewest arguments, most, function)}
FUNCTIONS = {
    "sqrt": (1, 1, math.sqrt), "exp": (1, 1, _exponential), "ln": (1, 1, math.log), "log": (1, 1, math.log10),
    "abs": (1, 1, abs), "sign": (1, 1, lambda x: 1.0 if x >= 0 else -1.0),
    "sin": (1, 1, math.sin), "cos": (1, 1, math.cos), "tan": (1, 1, math.tan),
    "asin": (1, 1, math.asin), "acos": (1, 1, math.acos), "atan": (1, 1, math.atan), "atan2": (2, 2, math.atan2),
    "ceil": (1, 1, np.ceil), "floor": (1, 1, np.floor), "round": (1, 1, _round),
    "ternary": (3, 3, lambda condition, a, b: a if condition else b),
}  # fmt: skip


#: random numbers: {name: (fewest arguments, most)}
RANDOM = {"random": (3, 3), "normal": (3, 3)}


def _stagger(run, first, second):
    if not first > second > 0:
        raise ValueError("stagger(x,y) takes x > y > 0")
    begin = run.step // first * first
    return begin + (second if run.step - begin < second else first)


def _logfreq(run, first, count, factor):
    if not 0 < count < factor or first <= 0:
        raise ValueError("logfreq(x,y,z) takes x > 0 and 0 < y < z")
    if run.step < first:
        return first
    begin = first
    while run.step >= factor * begin:
        begin *= factor
    multiple = run.step // begin
    return (multiple + 1 if multiple < count else factor) * begin


def _stride(run, first, last, step):
    if not 0 <= first <= last or step <= 0:
        raise ValueError("stride(x,y,z) takes 0 <= x <= y and z > 0")
    if run.step < first:
        return first
    following = run.step + step - (run.step - first) % step
    return following if following <= last else _NEVER


def _ramp(run, first, last):
    return first + (last - first) * (run.step - run.begin) / max(run.end - run.begin, 1)


#: the step that does not come
_NEVER = 9223372036854775807.0
#: functions of the present step and numbers: {name: (fewest arguments, most, function)}
STEP_FUNCTIONS = {
    "ramp": (2, 2, _ramp), "stagger": (2, 2, _stagger), "logfreq": (3, 3, _logfreq), "stride": (3, 3, _stride),
    "vdisplace": (2, 2, lambda run, x, v: x + v * run.time),
    "swiggle": (3, 3, lambda run, x, a, period: x + a * math.sin(2 * math.pi * run.time / period)),
    "cwiggle": (3, 3, lambda run, x, a, period: x + a * (1 - math.cos(2 * math.pi * run.time / period))),
}  # fmt: skip


@dataclass(frozen=True)
class Moment:
    """When a formula is evaluated: the step, first and last step of the run, and the time since its first step."""

    step: int = 0
    begin: int = 0
    end: int = 0
    time: float = 0.0


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
        """A value with the signs before it, which bind tighter than every operator."""
        if self._take("-"):
            return 0.0 - self._unary()
        if self._take("!"):
            return float(not self._unary())
        return self._atom()

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
        if name in FUNCTIONS:
            return float(FUNCTIONS[name][2](*self._arguments(name, FUNCTIONS)))
        if name in STEP_FUNCTIONS:
            return float(STEP_FUNCTIONS[name][2](self.lookup.moment(), *self._arguments(name, STEP_FUNCTIONS)))
        if name in RANDOM:
            return self.lookup.random(name, *self._arguments(name, RANDOM))
        start = self.position - len(self.token[1]) if self.token[0] != "end" else self.position
        end = self.text.find(")", start)
        if end < 0:
            raise ScriptError(f"')' is missing in the formula {self.text!r}")
        words = [w.strip() for w in self.text[start:end].split(",")]
        self.position = end + 1
        self.token = self._next()
        return float(self.lookup.function(name, words))

    def _arguments(self, name, table):
        arguments = []
        if not self._take(")"):
            arguments.append(self._level(0))
            while self._take(","):
                arguments.append(self._level(0))
            self._expect(")")
        fewest, most, *_ = table[name]
        if not fewest <= len(arguments) <= most:
            raise ScriptError(f"{name}() takes {fewest} arguments, not {len(arguments)}, in the formula {self.text!r}")
        return arguments


def evaluate(text, lookup):
    """Value of a formula.  ``lookup`` is like :class:`Variables`."""
    try:
        return _Formula(text, lookup).evaluate()
    except (ZeroDivisionError, ValueError, OverflowError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise ScriptError(f"the formula {text!r} has no value: {error}") from error
    except RecursionError as error:
        raise ScriptError(f"the formula {text[:40]!r}... is nested too deeply") from error


def format_number(value, digits=15):
    """A number as LAMMPS writes the value of a variable; with 20 digits, that of an immediate formula."""
    return f"{value:.{digits}g}"


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
    keywords, computes, fixes and group functions, and ``moment()`` for functions of the step.
    """

    STYLES = ("index", "loop", "string", "equal", "file", "getenv", "format", "internal", "delete")
    #: set once, so that loops and -var work
    _KEPT = ("index", "loop", "file", "getenv")

    def __init__(self, outside=None):
        self.outside, self._all, self._depth, self._stream = outside, {}, 0, None

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
        if known and style in self._KEPT:
            return
        if known and known["style"] != style:
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

    def _new_string(self, words):
        if len(words) > 1:
            raise ScriptError(f"a string variable takes one word; write it in quotes: \"{' '.join(words)}\"")
        return {"values": [self.substitute(words[0])], "at": 0}

    @staticmethod
    def _new_equal(words):
        return {"formula": " ".join(words)}

    @staticmethod
    def _new_internal(words):
        try:
            return {"formula": repr(float(words[0]))}
        except ValueError:
            raise ScriptError(f"an internal variable takes a number, not {words[0]!r}") from None

    def _new_file(self, words):
        lines = self._on_root(lambda: read_text(words[0])).splitlines()
        values = [text for line in lines if (text := line.partition("#")[0].strip())]
        if not values:
            raise ScriptError(f"{words[0]} has no lines for a variable of style file")
        return {"values": values, "at": 0}

    def _on_root(self, look):
        return look() if self.outside is None else self.outside.processes.on_root(look)

    def _new_getenv(self, words):
        return {"values": [self._on_root(lambda: os.environ.get(words[0], ""))], "at": 0}  # ranks' may differ

    def _new_format(self, words):
        if len(words) != 2:
            raise ScriptError("variable NAME format takes an equal-style variable and a format such as %.3g")
        self._defined(words[0])
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
            number = self.number(name[2:])
            return float(format_number(number))  # LAMMPS hands on the variable's text
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

    def moment(self):
        """The Moment of the present evaluation."""
        return Moment() if self.outside is None else self.outside.moment()

    def random(self, name, a, b, seed):
        """A number of one stream, which the seed of its first use begins."""
        if self._stream is None:
            if not 0 < seed <= 900_000_000:
                raise ScriptError(f"{name}(): the seed must be 1 to 900000000, not {seed:g}")
            self._stream = Marsaglia(int(seed))
        if name == "random":
            return a + (b - a) * self._stream.uniform()
        return a + b * self._stream.normal()

    def evaluate(self, text):
        """Value of a formula."""
        return evaluate(text, self)

    def advance(self, names):
        """The ``next`` command.  True if one was used up (it is deleted)."""
        used_up = []
        for name in names:
            variable = self._all.get(name)
            if variable is None or variable["style"] not in ("index", "loop", "file"):
                raise ScriptError(f"next {name}: not an index, loop or file variable")
            variable["at"] += 1
            first, last, _ = variable.get("range", (1, len(variable.get("values", ())), 0))
            if variable["at"] > last - first:
                used_up.append(name)
        for name in used_up:
            del self._all[name]
        return bool(used_up)

    def words(self, text):
        """Words of a line, variables replaced."""
        return split_words(self.substitute(without_comment(text)))

    def substitute(self, text):
        """``text`` with $x, ${name} and $(formula) replaced; quoted parts of it are left as they are."""
        if "$" not in text:
            return text
        parts = _quoted_parts(text)
        return "".join(f"{quote}{part}{quote}" if quote else self._replaced(part) for part, quote in parts)

    def _replaced(self, text):
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
                out.append(c_format("%" + form, value) if form else format_number(value, 20))
                position = end
            else:
                out.append(self.text(sign))
                position = dollar + 2


# --------------------------------------------------------------------- conditions of "if"

_condition_token = re.compile(
    r"\s*(?:(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![^\s()&|=!<>]))"
    r"|(?P<op>\(|\)|&&|\|\||\|\^|==|!=|<=|>=|<|>|!)|(?P<word>[^\s()&|=!<>\"'+]+))"
)


class _Condition:
    """Recursive descent over the condition of an ``if``: operators as in formulas, operands numbers or words."""

    def __init__(self, text):
        self.text, self.tokens, position = text, [], 0
        while text[position:].strip():
            match = _condition_token.match(text, position)
            if match is None:
                raise ScriptError(f"cannot read {text[position:].strip()[:20]!r} in the condition {text!r}")
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()
        self.tokens.append(("end", ""))

    def evaluate(self):
        value = self._level(0)
        if self.tokens[0][0] != "end":
            raise ScriptError(f"unexpected {self.tokens[0][1]!r} in the condition {self.text!r}")
        return self._number(value) != 0

    def _number(self, value):
        if isinstance(value, str):
            raise ScriptError(
                f"the condition {self.text!r} holds the word {value!r} where a number or comparison is meant"
            )
        return value

    def _level(self, level):
        if level == 4:  # there is no arithmetic
            return self._operand()
        value = self._level(level + 1)
        while self.tokens[0][0] == "op" and self.tokens[0][1] in _binary[level]:
            op = self.tokens.pop(0)[1]
            other = self._level(level + 1)
            if op in ("==", "!=") and (isinstance(value, str) or isinstance(other, str)):
                value = float((value == other) == (op == "=="))  # a word never equals a number
            elif op in ("<", "<=", ">", ">=") and (isinstance(value, str) or isinstance(other, str)):
                raise ScriptError(f"the condition {self.text!r} compares words by {op}; only == and != can")
            else:
                value = _binary[level][op](self._number(value), self._number(other))
        return value

    def _operand(self):
        kind, text = self.tokens.pop(0)
        if kind == "number":
            return float(text)
        if kind == "word":
            return text
        if text == "!":
            return float(not self._number(self._operand()))
        if text == "(":
            value = self._level(0)
            if self.tokens.pop(0) != ("op", ")"):
                raise ScriptError(f"')' is missing in the condition {self.text!r}")
            return value
        place = f"before {text!r}" if text else "at its end"
        raise ScriptError(f"the condition {self.text!r} lacks something {place}")


def condition(text):
    """Truth of the condition of an ``if`` command (variables already replaced)."""
    try:
        return _Condition(text).evaluate()
    except RecursionError:
        raise ScriptError("the condition is nested too deeply") from None
