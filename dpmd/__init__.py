"""dpmd: molecular dynamics with Deep Potential neural networks.

The package is five layers, one folder each at the top of the repository:
``dpmd`` (input files, simulation, output, ASE calculator, commands),
``dpmd.parallel`` (who owns which atom), ``dpmd.kernels`` (operators on arrays),
``dpmd.models`` (what a model is) and ``dpmd.perfmodel`` (predicted run times).
Each may import only from those after it (``perfmodel`` stands beside ``dpmd``).
"""

from pathlib import Path as _Path

# In a checkout the sub-packages (kernels/, models/, ...) lie beside this folder, not
# inside it; setup.cfg maps them to dpmd.* when a wheel is built.  Appending the root
# makes a checkout, an editable install and a wheel behave alike.
_here = _Path(__file__).resolve().parent
if not (_here / "kernels").is_dir() and (_here.parent / "kernels" / "__init__.py").is_file():
    __path__.append(str(_here.parent))

__version__ = "0.1.0"

_public = {"DP": "dpmd.calculator", "Potential": "dpmd.potential", "Simulation": "dpmd.simulation"}
__all__ = ["DP", "Potential", "Simulation", "__version__"]


def __getattr__(name):
    """Import the public classes on first use, so that ``dpmd.models`` alone stays light."""
    if name in _public:
        from importlib import import_module

        return getattr(import_module(_public[name]), name)
    raise AttributeError(f"module 'dpmd' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_public])
