"""Operators for GPUs: CUDA C++ compiled through CuPy when first used, products by cuBLAS.

Importing this package needs no GPU and no CuPy; making a :class:`CudaOperators` does.
"""

from .device import CudaDevice, DeviceError, available, count, identity
from .operators import CudaOperators

__all__ = ["CudaDevice", "CudaOperators", "DeviceError", "available", "count", "identity"]
