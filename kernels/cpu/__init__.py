"""Operators for CPUs: numba, SIMD over the embedding width, matrix products from BLAS."""

from .operators import CpuOperators

__all__ = ["CpuOperators"]
