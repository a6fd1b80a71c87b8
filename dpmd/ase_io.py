"""What ASE loads through the entry point ``ase.ioformats``: a file format and the calculator's name.

With dpmd installed, ``ase.io.read("data_0", index=":", format="deepmd")`` reads a DeePMD data set, and
``ase run dpmd -p model=water.dp structure.xyz`` and ``ase.calculators.calculator.get_calculator_class("dpmd")``
find the calculator.  (ASE has no entry point for calculators; the formats' one is loaded by ``ase.io``.)
"""

from ase.calculators import calculator
from ase.utils.plugins import ExternalIOFormat

deepmd_format = ExternalIOFormat(
    desc="DeePMD data set (npy or raw, standard or mixed)", code="+S", module="dpmd.datasets", glob=["*/type.raw"]
)


def register_calculator():
    """Make ``"dpmd"`` known to ASE's registry of calculators, once."""
    if "dpmd" not in calculator.external_calculators:
        from .calculator import DP

        calculator.register_calculator_class("dpmd", DP)


register_calculator()
