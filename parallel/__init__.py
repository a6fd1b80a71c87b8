"""Who owns which atom: domains, ghosts, and exchange between ranks and nodes."""

from .domain import SerialDomain
from .node_domain import NodeDomain
from .processes import OneProcess, Processes
from .rank_domain import RankDomain

__all__ = ["SerialDomain", "NodeDomain", "RankDomain", "OneProcess", "Processes"]
