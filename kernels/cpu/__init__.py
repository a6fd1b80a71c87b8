"""Operators for CPUs: explicit vectors, written by numba's compiler for the machine at hand.

From the bottom up: :mod:`.simd` writes vector code, :mod:`.matrix` multiplies by constant matrices,
:mod:`.activations` and :mod:`.networks` evaluate networks, :mod:`.embedding` table rows and
descriptors, :mod:`.kernels` runs over blocks of centres, :mod:`.packing` lays a model out for it,
and :mod:`.operators` is what the layers above use.
"""

from .operators import CpuOperators

__all__ = ["CpuOperators"]
