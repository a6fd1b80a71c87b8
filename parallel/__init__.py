"""Who owns which atom: domains, ghosts and, later, exchange between ranks and nodes."""

from .domain import SerialDomain

__all__ = ["SerialDomain"]
