"""Compile the hot kernels for 64-bit ARM, on any machine, and print what instructions came out.

    NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES=+sve DPMD_VECTOR_BYTES=64 python aarch64_assembly.py a64fx +sve

numba compiles for the machine it runs on; its LLVM code before optimisation is the same for all, so
that is taken and compiled anew for ARM.  One line per kernel: name, vector multiply-adds, calls.
The environment variables have to be set before the kernels are imported.
"""

import re
import sys

import llvmlite.binding as llvm
import numba.core.codegen
import numpy as np
from numba import float32, float64, int64, njit, void

from dpmd.kernels.cpu import embedding, kernels, matrix
from dpmd.kernels.cpu.activations import _tanh_and_slope

n = int64


def hot_kernels(number):
    """Compiled functions whose code is mostly one kernel: {name: (function, signature)}."""
    a = number[::1]

    def tile(x, y, z, i):
        matrix._tile_3(x, i, i, y, i, i, z, i, i, i)

    def accumulate(x, y, z, rows, i):
        embedding.accumulate(x, i, i, y, i, i, z, i, rows, i, 2 * i)

    def gradient(x, y, z, rows, i):
        embedding.gradient(x, i, i, y, i, i, z, i, rows, i, 2 * i, x)

    def descriptor(x, y, i):
        embedding.descriptor(x, i, i, i, i, y, i)

    def descriptor_gradient(x, y, z, i):
        embedding.descriptor_gradient(x, i, i, i, i, y, i, z)

    def environment(x, y, i):
        kernels._environment(x, i, y, i, y, y, y)

    def tanh(x, y, i):
        _tanh_and_slope(x, y, i)

    rows = numba.int32[::1]
    return {
        "tile": (tile, void(a, a, a, n)),
        "accumulate": (accumulate, void(a, a, a, rows, n)),
        "gradient": (gradient, void(a, a, a, rows, n)),
        "descriptor": (descriptor, void(a, a, n)),
        "descriptor_gradient": (descriptor_gradient, void(a, a, a, n)),
        "environment": (environment, void(a, float64[::1], n)),
        "tanh": (tanh, void(a, a, n)),
    }


def assembly(function, signature, target):
    """ARM assembly of a function, through numba's own LLVM code."""
    modules = []
    add = numba.core.codegen.CPUCodeLibrary.add_ir_module

    def keep(library, module):
        modules.append(str(module))
        return add(library, module)

    numba.core.codegen.CPUCodeLibrary.add_ir_module = keep
    try:
        njit(signature, nogil=True, error_model="numpy")(function)
    finally:
        numba.core.codegen.CPUCodeLibrary.add_ir_module = add
    pattern = rf'define i32 @"?_ZN(?!7cpython)[^\n]*{function.__name__}'  # itself, not its wrapper for Python
    code = next(m for m in modules if re.search(pattern, m))
    code = re.sub(r'target (triple|datalayout) = "[^"]*"\n', "", code)
    head = f'target triple = "{target.triple}"\ntarget datalayout = "{target.target_data}"\n'
    module = llvm.parse_assembly(head + code)
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return target.emit_assembly(module)


def main(cpu, features):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(
        cpu=cpu, features=features, opt=3, codemodel="default", reloc="pic"
    )
    for number, letter in ((float32, "s"), (float64, "d")):
        for name, (function, signature) in hot_kernels(number).items():
            text = assembly(function, signature, target)
            letters = "d" if name == "environment" else letter  # distances in double precision, always
            register = rf"(?:z\d+\.{letters}|v\d+\.\d{letters})"
            adds = len(re.findall(rf"\bf(?:mla|mad|mls|msb|nmls|nmsb)\s+{register}", text))
            calls = len(re.findall(r"\bbl\s+(?!NRT|memset)\w+", text))
            print(np.dtype(str(number)).name, name, adds, calls)


if __name__ == "__main__":
    main(*sys.argv[1:])
