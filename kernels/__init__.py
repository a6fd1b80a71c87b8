"""Operators on arrays: neighbour lists, environment matrix, embedding, fitting, forces.

Imports :mod:`dpmd.models` (parameters) and nothing above.  One sub-package per kind of
hardware: :mod:`~dpmd.kernels.reference` (numpy, the truth), :mod:`~dpmd.kernels.cpu` and
:mod:`~dpmd.kernels.cuda` (GPUs, through CuPy).
"""
