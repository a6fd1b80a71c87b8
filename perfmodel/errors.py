"""The one exception of this layer, and messages that suggest what was meant."""

from difflib import get_close_matches


class PerformanceModelError(ValueError):
    """Input that cannot be predicted; the message says what is wrong and what to do."""


def unknown(kind, name, known):
    """A :class:`PerformanceModelError` for a misspelt name, listing the nearest known ones."""
    known = sorted(known)
    near = get_close_matches(str(name).lower(), known, n=3, cutoff=0.4)
    # A name that contains, or is contained in, a known one is near whatever its length.
    near += [k for k in known if k not in near and (str(name).lower() in k or k in str(name).lower())]
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    return PerformanceModelError(f"unknown {kind} {str(name)!r}; {hint}")


def check_positive_integer(name, value):
    """``value`` as an int >= 1, or a :class:`PerformanceModelError` that names the quantity."""
    if isinstance(value, bool) or int(value) != value or value < 1:
        raise PerformanceModelError(f"{name} must be a whole number of at least 1; got {value}")
    return int(value)


def check_positive(name, value, unit=""):
    """``value`` as a finite float > 0, or a :class:`PerformanceModelError`."""
    value = float(value)
    if not 0 < value < float("inf"):
        raise PerformanceModelError(f"{name} must be a positive number{' of ' + unit if unit else ''}; got {value:g}")
    return value
