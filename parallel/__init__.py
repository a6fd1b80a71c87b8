"""Who owns which atom: domains, ghosts, and exchange between ranks and nodes."""

from importlib import import_module

_public = {
    "SerialDomain": "domain",
    "NodeDomain": "node_domain",
    "RankDomain": "rank_domain",
    "OneProcess": "processes",
    "Processes": "processes",
}
__all__ = list(_public)


def __getattr__(name):
    """Import the public classes on first use: dp-perf needs ``geometry`` alone, and no numba."""
    if name in _public:
        return getattr(import_module(f"{__name__}.{_public[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
