"""One GPU as the operators see it: arrays, compiled kernels, matrix products, recorded steps.

Everything that needs CuPy is here, and imported only when a device is made.  The emulation of
``tests/kernels`` offers the same methods on a CPU.
"""

import ctypes
import os
import platform
import shutil
import warnings
from functools import cache, partial
from importlib import resources

import numpy as np

from dpmd.models import ModelError

#: how numbers are handed to the matrix units, as in common.cuh
PLAIN, HALF, SPLIT = range(3)
#: elements of a product's input
INPUT_TYPES = {HALF: np.dtype(np.uint16), SPLIT: np.dtype(np.uint16)}
#: warps of a block
WARPS = 4
#: bytes that cuBLAS gets for its own use
WORKSPACE = 32 << 20


class DeviceError(ModelError):
    """No usable GPU, or not enough of its memory; the message says what to do."""


@cache
def source(*names):
    """Text of kernel files of this folder (or with absolute paths), one after another."""
    folder = resources.files(__package__)
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def has_driver():
    """Whether an NVIDIA driver seems to be installed."""
    return os.path.exists("/proc/driver/nvidia") or shutil.which("nvidia-smi") is not None


def available():
    """Why no GPU can be used, in words, or None if one can."""
    try:
        import cupy
    except ImportError:
        if not has_driver():
            return "no NVIDIA driver is here, nor CuPy"
        return "CuPy is not installed; pip install '.[cuda13]' in a checkout of dpmd (or [cuda12], as the driver needs)"
    except Exception as error:  # a broken CUDA installation raises many kinds
        return f"CuPy does not load ({error})"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        return f"the CUDA driver does not answer ({error}); nvidia-smi tells more"
    return None if count else "CuPy finds no GPU; nvidia-smi tells whether the driver sees one"


def count():
    """How many GPUs this process can use."""
    if available():
        return 0
    import cupy

    return cupy.cuda.runtime.getDeviceCount()


def identity(index):
    """Text that is the same for two processes if their GPUs number ``index`` are one."""
    import cupy

    return f"{platform.node()} {cupy.cuda.Device(index).pci_bus_id}"


class Flag:
    """Two integers that kernels set and the host reads: host memory that the device sees.

    mark : function that notes the launches so far and returns a function that waits for them.
    """

    def __init__(self, allocation, pointer, mark):
        self._allocation, self._mark, self._wait = allocation, mark, None
        self._value = np.frombuffer(allocation, np.int32, 2)
        self.pointer = np.uint64(pointer)

    def clear(self):
        """Set them to 0; no kernel that may set them must be running."""
        self._value[:] = 0

    def mark(self):
        """Let :meth:`read` wait for the kernels launched so far, not for later ones."""
        self._wait = self._mark()

    def read(self):
        """Wait for the kernels launched before :meth:`mark`, then return the values."""
        self._wait()
        return self._value.tolist()


class Connection:
    """NCCL between the GPUs of ``size`` processes, of which this is number ``rank``; all make one together.

    key : of :meth:`CudaDevice.connection_key`, the same for all; stream : function that returns the present one.
    """

    def __init__(self, nccl, size, key, rank, stream):
        self._nccl, self._stream = nccl, stream
        self._communicator = nccl.NcclCommunicator(size, key, rank)
        version = nccl.get_version()
        self.description = f"by NCCL {version // 10000}.{version // 100 % 100}"

    def exchange(self, outgoing, incoming):
        """Send and receive arrays, lists of (rank, array), as one group; what follows on the stream waits for it."""
        nccl, stream = self._nccl, self._stream().ptr
        nccl.groupStart()
        for rank, array in incoming:
            self._communicator.recv(array.data.ptr, array.nbytes, nccl.NCCL_UINT8, rank, stream)
        for rank, array in outgoing:
            self._communicator.send(array.data.ptr, array.nbytes, nccl.NCCL_UINT8, rank, stream)
        nccl.groupEnd()


def _argument(value):
    if value is None:
        return np.uint64(0)
    if isinstance(value, int):
        return np.int32(value)
    return np.float64(value) if isinstance(value, float) else value


class Stopwatch:
    """Times phases of launches by events."""

    def __init__(self, cupy):
        self._cuda, self._marks = cupy.cuda, []
        self.mark("")

    def mark(self, phase):
        """What was launched since the last mark is ``phase``."""
        self._marks.append((phase, self._cuda.Event()))
        self._marks[-1][1].record()

    def seconds(self):
        """{phase: seconds}, once everything marked is done."""
        self._marks[-1][1].synchronize()
        found = {}
        for (_, begin), (phase, end) in zip(self._marks[:-1], self._marks[1:], strict=True):
            found[phase] = found.get(phase, 0.0) + 1e-3 * self._cuda.get_elapsed_time(begin, end)
        return found


class _Kernels:
    def __init__(self, module):
        self._module, self._functions = module, {}

    def _function(self, name):
        if name not in self._functions:
            self._functions[name] = self._module.get_function(name)
        return self._functions[name]

    def warps(self, name, count, *arguments):
        """Launch ``count`` warps.  Python ints are passed as int, floats as double, None as a null pointer."""
        if count:
            self._function(name)((-(-count // WARPS),), (32 * WARPS,), tuple(map(_argument, arguments)))

    def threads(self, name, count, *arguments):
        """Launch at least ``count`` threads; see :meth:`warps`."""
        if count:
            self._function(name)((-(-count // 128),), (128,), tuple(map(_argument, arguments)))

    def prepared(self, name, count, *arguments):
        """A function that launches :meth:`threads` with these arguments, for launches of every step."""
        function, grid, arguments = self._function(name), (-(-count // 128),), tuple(map(_argument, arguments))
        return partial(function, grid, (128,), arguments) if count else lambda: None

    def blocks(self, name, count, threads, *arguments):
        """Launch ``count`` blocks of ``threads`` threads; see :meth:`warps`."""
        if count:
            self._function(name)((count,), (threads,), tuple(map(_argument, arguments)))


class _Blas:
    """cuBLAS through ctypes: CuPy's own binding refuses to be recorded."""

    def __init__(self, cupy):
        cupy.cuda.device.get_cublas_handle()  # loads the library
        self._library = ctypes.CDLL(f"libcublas.so.{cupy.cuda.runtime.runtimeGetVersion() // 1000}")
        self._handle = ctypes.c_void_p()
        self._check(self._library.cublasCreate_v2(ctypes.byref(self._handle)), "cublasCreate")
        self._workspace = cupy.empty(WORKSPACE, np.uint8)  # of its own, so that recorded steps allocate none
        self._one = {t: np.ones(1, t) for t in (np.float32, np.float64)}
        self._zero = {t: np.zeros(1, t) for t in (np.float32, np.float64)}

    @staticmethod
    def _check(status, what):
        if status:
            raise DeviceError(f"{what} failed with status {status}; a wrong cuBLAS for this driver, or no memory left")

    def multiply(self, stream, kind, a, b, c, dtype, shape, lead, accumulate):
        """Row-major product of arrays at addresses a, b, c; see :meth:`CudaDevice.multiply`."""
        (m, n, k), number = shape, ctypes.c_int
        self._library.cublasSetStream_v2(self._handle, ctypes.c_void_p(stream))
        self._library.cublasSetWorkspace_v2(
            self._handle, ctypes.c_void_p(self._workspace.data.ptr), ctypes.c_size_t(self._workspace.nbytes)
        )
        out = 1 if dtype == np.float64 else 0  # CUDA_R_64F, CUDA_R_32F
        given = {PLAIN: out, HALF: 2, SPLIT: 14}[kind]  # CUDA_R_16F, CUDA_R_16BF
        compute = 70 if out else 68  # CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32F
        one, beta = self._one[dtype.type], (self._one if accumulate else self._zero)[dtype.type]
        status = self._library.cublasGemmEx(
            self._handle, number(0), number(0), number(n), number(m), number(k), ctypes.c_void_p(one.ctypes.data),
            ctypes.c_void_p(b), number(given), number(lead[1]), ctypes.c_void_p(a), number(given), number(lead[0]),
            ctypes.c_void_p(beta.ctypes.data), ctypes.c_void_p(c), number(out), number(lead[2]), number(compute),
            number(-1),
        )  # fmt: skip
        self._check(status, "cublasGemmEx")


class CudaDevice:
    """GPU number ``index`` through CuPy.  Raises DeviceError if it cannot be used."""

    def __init__(self, index=0):
        reason = available()
        if reason:
            raise DeviceError(f"device cuda:{index}: {reason}")
        import cupy

        self.xp = cupy
        #: what is raised when memory is short, besides DeviceError
        self.memory_errors = (cupy.cuda.memory.OutOfMemoryError,)
        count = cupy.cuda.runtime.getDeviceCount()
        if index >= count:
            raise DeviceError(f"device cuda:{index}: there are {count} GPUs, numbered from 0")
        self.index = index
        cupy.cuda.Device(index).use()
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        self.name = properties["name"].decode()
        self.capability = 10 * properties["major"] + properties["minor"]
        self.has_bf16 = self.capability >= 80
        #: whether double precision is half as fast as single, not a 64th
        self.fast_double = self.capability in (60, 70, 80, 90, 100)
        #: see :func:`identity`
        self.identity = identity(index)
        self._recording, self._branches = cupy.cuda.Stream(non_blocking=True), []
        self._is_recording = False
        self._compiled = {}
        self._blas = _Blas(cupy)

    # ------------------------------------------------------------------ arrays

    def empty(self, shape, dtype):
        """Uninitialised array.  Raises DeviceError when memory is short."""
        try:
            return self.xp.empty(shape, dtype)
        except self.xp.cuda.memory.OutOfMemoryError:
            self.release()
            try:
                return self.xp.empty(shape, dtype)
            except self.xp.cuda.memory.OutOfMemoryError as error:
                raise DeviceError(
                    f"device cuda:{self.index}: out of memory ({error}); use fewer atoms, a smaller skin or precision "
                    '"mixed", or more GPUs'
                ) from None

    def zeros(self, shape, dtype):
        """Array of zeros."""
        array = self.empty(shape, dtype)
        array.fill(0)
        return array

    def upload(self, array):
        """A copy on the device."""
        array = np.ascontiguousarray(array)
        copy = self.empty(array.shape, array.dtype)
        copy.set(array)
        return copy

    def download(self, array, out=None):
        """A copy on the host, in ``out`` if it is given, once everything launched is done."""
        return array.get(out=out)

    def store(self, array, values):
        """Copy ``values``, of the same shape and type, into an array on the device."""
        array.set(values)

    def host_array(self, n_bytes):
        """Memory (n_bytes,) uint8 of the host that is quickly copied to and from the device."""
        return np.frombuffer(self.xp.cuda.alloc_pinned_memory(max(n_bytes, 1)), np.uint8, n_bytes)

    def memory(self):
        """Bytes ``(free, total, held by this process)``."""
        free, total = self.xp.cuda.runtime.memGetInfo()
        pool = self.xp.get_default_memory_pool()
        return free + pool.free_bytes(), total, pool.used_bytes()

    def release(self):
        """Give memory that is no longer used back to the driver."""
        self.xp.get_default_memory_pool().free_all_blocks()

    def flag(self):
        """A new :class:`Flag`."""
        memory = self.xp.cuda.alloc_pinned_memory(64)
        event = self.xp.cuda.Event(block=False, disable_timing=True)

        def mark():
            event.record()
            return event.synchronize

        return Flag(memory, memory.ptr, mark)

    # ------------------------------------------------------------------ other GPUs

    def connection_problem(self):
        """Why NCCL cannot be used, or an empty text."""
        # multicast is of no use to messages between two, and its set-up takes memory and permissions
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what CuPy says is said in the log
            from cupy.cuda import nccl
        cuda = self.xp.cuda.runtime.runtimeGetVersion() // 1000
        return "" if nccl.available else f"no NCCL; pip install nvidia-nccl-cu{cuda}"

    def connection_key(self):
        """What one process has to tell the others before all :meth:`connect`."""
        return self.xp.cuda.nccl.get_unique_id()

    def connect(self, size, key, rank):
        """A :class:`Connection` to the other processes."""
        return Connection(self.xp.cuda.nccl, size, key, rank, self.xp.cuda.get_current_stream)

    # ------------------------------------------------------------------ work

    def stopwatch(self):
        """A new :class:`Stopwatch`, running."""
        return Stopwatch(self.xp)

    def synchronize(self):
        """Wait until everything launched is done."""
        self.xp.cuda.get_current_stream().synchronize()

    def compile(self, names, macros):
        """Kernels of source files with macros defined; compiled once per machine (CuPy keeps them)."""
        key = (*names, *sorted(macros.items()))
        if key not in self._compiled:
            self._compiled[key] = self._compile(names, macros)
        return self._compiled[key]

    def _compile(self, names, macros):
        options = ("-std=c++17", f"-DWARPS={WARPS}", *(f"-D{name}={value}" for name, value in sorted(macros.items())))
        return _Kernels(self.xp.RawModule(code=source("common.cuh", *names), options=options))

    def record(self, function):
        """Record the launches of ``function`` as a graph; returns a function that replays them."""
        with self._recording as stream:
            stream.begin_capture()
            self._is_recording = True
            try:
                function()
            finally:
                self._is_recording = False
                graph = stream.end_capture()
        return graph.launch

    def concurrently(self, functions):
        """Call functions whose launches do not depend on each other; while recording, as branches of the graph.

        They must not use :meth:`multiply`, whose workspace is one for all.
        """
        if not self._is_recording:
            for function in functions:
                function()
            return
        xp, main = self.xp, self._recording
        while len(self._branches) < len(functions) - 1:
            self._branches.append(xp.cuda.Stream(non_blocking=True))
        start = main.record(xp.cuda.Event(disable_timing=True))
        for branch, function in zip(self._branches, functions[1:], strict=False):
            branch.wait_event(start)
            with branch:
                function()
        functions[0]()
        for branch, _ in zip(self._branches, functions[1:], strict=False):
            main.wait_event(branch.record(xp.cuda.Event(disable_timing=True)))

    def multiply(self, kind, a, b, c, shape, lead, accumulate=False):
        """c (m, n) = a (m, k) @ b (k, n), row-major, added to c if ``accumulate``.

        kind : PLAIN (numbers of c's type), HALF (fp16) or SPLIT (bf16), accumulated in c's type;
        shape : (m, n, k); lead : row lengths (elements) of a, b and c.
        """
        stream = self.xp.cuda.get_current_stream().ptr
        self._blas.multiply(stream, kind, a.data.ptr, b.data.ptr, c.data.ptr, c.dtype, shape, lead, accumulate)
