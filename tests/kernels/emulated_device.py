"""A device made of numpy and the host's C++ compiler, with the methods of ``CudaDevice``."""

import ctypes
import hashlib
import os
import re
import subprocess
import time
from pathlib import Path

import numpy as np

from dpmd.kernels.cuda.device import HALF, PLAIN, Flag, _argument, source

_names = re.compile(r'extern "C" __global__ void(?: LAUNCH_BOUNDS\(\w+\)| FEW_BOUNDS)? (\w+)\(')
_types = {"i": ctypes.c_int, "l": ctypes.c_longlong, "d": ctypes.c_double, "f": ctypes.c_float, "L": ctypes.c_void_p}


class _Kernels:
    def __init__(self, library):
        self._library = library

    def _launch(self, name, blocks, threads, arguments):
        values = []
        for value in map(_argument, arguments):
            if isinstance(value, np.ndarray):
                assert value.flags.c_contiguous
                values.append(ctypes.c_void_p(value.ctypes.data))
            else:
                values.append(_types[np.dtype(type(value)).char](value.item()))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        getattr(self._library, f"emulate_{name}")(blocks, threads, pointers)

    def warps(self, name, count, *arguments):
        self._launch(name, count, 32, arguments)

    def threads(self, name, count, *arguments):
        self._launch(name, -(-count // 32), 32, arguments)

    def prepared(self, name, count, *arguments):
        return lambda: self.threads(name, count, *arguments)

    def blocks(self, name, count, threads, *arguments):
        self._launch(name, count, threads, arguments)


class Stopwatch:
    def __init__(self):
        self._last, self._seconds = time.perf_counter(), {}

    def mark(self, phase):
        now = time.perf_counter()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def seconds(self):
        return self._seconds


class _Connection:
    """Messages between emulated devices, by MPI."""

    description = "by emulated NCCL"

    def exchange(self, outgoing, incoming):
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        requests = [world.Irecv(array.view(np.uint8), rank) for rank, array in incoming]
        MPI.Request.Waitall(requests + [world.Isend(array.view(np.uint8), rank) for rank, array in outgoing])


class EmulatedDevice:
    """See :class:`dpmd.kernels.cuda.CudaDevice`.  folder : for compiled kernels."""

    name, has_bf16, fast_double, xp, index, identity = "emulation on a CPU", True, True, np, 0, "the only one"
    memory_errors = ()

    def __init__(self, folder):
        self.folder = Path(folder)

    def empty(self, shape, dtype):
        array = np.empty(shape, dtype)
        array.view(np.uint8).fill(0xFF)  # NaN: what no kernel wrote must not go unnoticed
        return array

    def zeros(self, shape, dtype):
        return np.zeros(shape, dtype)

    def upload(self, array):
        return np.array(array, order="C")

    def download(self, array, out=None):
        if out is None:
            return array.copy()
        out[...] = array
        return out

    def store(self, array, values):
        array[...] = values

    def host_array(self, n_bytes):
        return np.empty(n_bytes, np.uint8)

    def memory(self):
        return 2**33, 2**34, 0

    def release(self):
        pass

    def stopwatch(self):
        return Stopwatch()

    def synchronize(self):
        pass

    def connection_problem(self):
        return ""

    def connection_key(self):
        return "key"

    def connect(self, size, key, rank):
        assert key == "key"
        return _Connection()

    def flag(self):
        memory = bytearray(64)
        return Flag(memory, ctypes.addressof(ctypes.c_char.from_buffer(memory)), lambda: self.synchronize)

    def compile(self, names, macros):
        text = source("common.cuh", *names)
        kernels = _names.findall(text)
        header = Path(__file__).with_name("emulator.h").read_text(encoding="utf-8")
        wrappers = "\n".join(
            f'extern "C" void emulate_{name}(int blocks, int threads, void** arguments)'
            f"{{ emulator::emulate({name}, blocks, threads, arguments); }}"
            for name in kernels
            if name != "exact_rows" or macros.get("EXACT")
        )
        options = [f"-D{name}={value}" for name, value in sorted(macros.items())]
        code = f"{header}\n{text}\n{wrappers}\n"
        key = hashlib.sha256("\n".join([code, *options]).encode()).hexdigest()[:16]
        library = self.folder / f"{key}.so"
        if not library.exists():
            file = self.folder / f"{key}.{os.getpid()}.cpp"
            file.write_text(code, encoding="utf-8")
            made = file.with_suffix(".so")
            command = ["g++", "-O1", "-w", "-std=c++17", "-shared", "-fPIC", *options, str(file), "-o", str(made)]
            subprocess.run(command, check=True)
            made.replace(library)  # several ranks may compile the same
        return _Kernels(ctypes.CDLL(str(library)))

    def record(self, function):
        return function

    def concurrently(self, functions):
        for function in functions:
            function()

    def multiply(self, kind, a, b, c, shape, lead, accumulate=False):
        m, n, k = shape

        def matrix(array, rows, columns, leading):
            flat = array.reshape(-1)
            view = np.lib.stride_tricks.as_strided(
                flat, (rows, columns), (leading * flat.itemsize, flat.itemsize), writeable=True
            )
            if kind == PLAIN or flat.dtype.kind == "f":
                return view
            if kind == HALF:
                return np.ascontiguousarray(view).view(np.float16).astype(np.float32)
            return (np.ascontiguousarray(view).astype(np.uint32) << 16).view(np.float32)

        product = matrix(a, m, k, lead[0]) @ matrix(b, k, n, lead[1])
        out = matrix(c, m, n, lead[2])
        out[:] = product + (out if accumulate else 0)
