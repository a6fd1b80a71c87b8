"""Sums over atoms on a device, always added up in the same order."""

import numpy as np

#: warps that share a sum, at most
SUM_WARPS = 1024


class Sums:
    """What the kernels of atoms.cu leave per warp, brought to the host.

    device : a :class:`~dpmd.kernels.cuda.device.CudaDevice`.
    """

    def __init__(self, device):
        self.device, self._kernels = device, device.compile(("atoms.cu",), {})
        self._partial = device.empty(SUM_WARPS * 9, np.float64)

    def partial(self, name, columns, n, *arguments):
        """Results (warps, columns) of the kernel ``name`` for ``n`` atoms, given ``n, warps, *arguments``."""
        warps = min(SUM_WARPS, max(-(-n // 32), 1))
        self._kernels.warps(name, warps, n, warps, *arguments, self._partial)
        return self.device.download(self._partial[: warps * columns]).reshape(warps, columns)

    def sum(self, name, columns, n, *arguments):
        """Sums (columns,) over the warps."""
        return self.partial(name, columns, n, *arguments).sum(axis=0)
