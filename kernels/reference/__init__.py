"""The truth in tests: numpy, double precision, exact networks, readable, no speed."""

from .operators import ReferenceOperators

__all__ = ["ReferenceOperators"]
