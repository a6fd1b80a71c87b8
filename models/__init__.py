"""What a model is: parameters, readers of files, tables.

Imports no other layer of dpmd.  ``load(path)`` is the entrance; it returns a
:class:`~dpmd.models.parameters.DeepPotentialModel`.
"""

from .errors import ModelError
from .parameters import (
    DeepPotentialModel,
    DenseLayer,
    Embedding,
    EmbeddingTable,
    EnergyFitting,
    ModelSource,
    Network,
    PairRule,
    SmoothDescriptor,
)
from .readers import load

__all__ = [
    "DeepPotentialModel",
    "DenseLayer",
    "Embedding",
    "EmbeddingTable",
    "EnergyFitting",
    "ModelError",
    "ModelSource",
    "Network",
    "PairRule",
    "SmoothDescriptor",
    "load",
]
