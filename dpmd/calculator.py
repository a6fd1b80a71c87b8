"""The ASE calculator."""

from ase.calculators.calculator import Calculator, all_changes

from .potential import Potential, assign_types
from .units import stress_from_virial


class DP(Calculator):
    """Deep Potential as an ASE calculator, a drop-in for ``deepmd.calculator.DP``.

    model : path of a model file; label : as in ASE; type_dict or type_map : ``{symbol: type}`` or
    a list of symbols, if they differ from the model's own; neighbor_list : accepted and unused;
    head : refused, since models with several heads are not read.
    device, precision, threads, skin : see :class:`dpmd.Potential`.
    fparam, aparam : frame and atomic parameters, for models that have them.

    Results: energy, free_energy (eV), forces (eV/Å), stress (eV/Å^3, tension positive, Voigt;
    only where all three directions are periodic), energies (eV per atom), virial (3, 3) eV,
    stresses (eV/Å^3 per atom, of the atomic virials over the cell volume).
    """

    implemented_properties = ["energy", "free_energy", "forces", "stress", "energies", "stresses", "virial"]

    def __init__(
        self,
        model,
        label="DP",
        type_dict=None,
        neighbor_list=None,
        head=None,
        *,
        device="auto",
        precision="double",
        threads=None,
        skin=1.0,
        type_map=None,
        fparam=None,
        aparam=None,
        **kwargs,
    ):
        super().__init__(label=label, **kwargs)
        if head is not None:
            raise ValueError(f"head={head!r}: models with several heads are not supported; freeze one head first")
        self.potential = Potential(model, device, precision, threads, skin=skin)
        names = type_map or self.potential.type_map
        if type_dict:
            names = sorted(type_dict, key=type_dict.get)
        self.type_map = tuple(names)
        self.fparam, self.aparam = fparam, aparam

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        types = assign_types(self.atoms.symbols, self.type_map)
        per_atom = "stresses" in properties
        result = self.potential.evaluate(self.atoms, self.fparam, self.aparam, atomic_virials=per_atom, types=types)
        self.results = {name: result[name] for name in ("energy", "forces", "energies", "virial")}
        self.results["free_energy"] = result["energy"]
        if self.atoms.pbc.all():
            volume = self.atoms.get_volume()
            self.results["stress"] = stress_from_virial(result["virial"], volume)
            if per_atom:
                self.results["stresses"] = stress_from_virial(result["virials"], volume)
