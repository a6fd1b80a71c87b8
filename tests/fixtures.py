"""Model files and reference results of DeePMD-kit 3.2.0 that tests compare with.

They lie in ``tests/data``, the trained models in ``examples``.  Test modules cannot import this file: see
``conftest.py`` for the fixtures made of it.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parent / "data"
TRAINED = {f"{name}.dp": DATA.parents[1] / "examples" / name / f"{name}.dp" for name in ("copper", "water")}

#: models that dpmd refuses, with words that the message must contain
REFUSED = {
    "f_dpa1_strip": "descriptor 'se_atten_v2'",
    "f_dpa1_strip_c": "descriptor 'se_atten_v2'",
    "f_hybrid": "descriptor 'hybrid'",
    "f_se_e2_r2": "descriptor 'se_e2_r'",
    "f_se_e3": "descriptor 'se_e3'",
    "f_tebd_sea": "type embedding",
    "f_zbl": "short-range table",
    "pt_dpa1": "descriptor 'dpa1'",
}


@dataclass(frozen=True)
class ReferenceCase:
    """One model file with the result for one structure.

    ``load()`` gives the arrays: coord (N, 3) Å; box (3, 3) rows a b c in Å, or (0, 3) when not
    periodic; atype (N,); type_map; energy eV; force (N, 3) eV/Å; virial (9,) eV; atom_energy (N,);
    atom_virial (N, 9); fparam and aparam (1, N x n) where the model takes them.
    """

    model: Path
    structure: str
    reference: Path

    def load(self):
        with np.load(self.reference) as file:
            return dict(file)

    @property
    def n_atoms(self):
        with np.load(self.reference) as file:
            return len(file["atype"])

    def __str__(self):
        return f"{self.model.name}-{self.structure}"


@cache
def _models():
    """Path of each model file by its name."""
    found = TRAINED | {path.name: path for path in (DATA / "models").glob("*.*")}
    return {name: found[name] for name in sorted(found)}


@cache
def _references():
    """Paths of all reference results; the folder is named after the model."""
    return sorted((DATA / "references").glob("*/*.npz"))


def model_files():
    """Paths of all model files that dpmd reads."""
    return [p for p in _models().values() if p.suffix in {".pb", ".pth", ".dp"} and p.stem not in REFUSED]


def refused_files():
    """``(path, words of the message)`` of all model files that dpmd refuses."""
    return [(p, REFUSED[p.stem]) for p in _models().values() if p.stem in REFUSED]


def model_file(name):
    """Path of a model file by its name, e.g. ``"water_md0.pb"``."""
    return _models()[name]


def fixture_cases(models=None, structures=None, largest=None):
    """All :class:`ReferenceCase`: models x formats x structures.

    models, structures : keep only these names (without suffix); largest : most atoms.
    The compressed archive of PyTorch has tables, and results, of its own.
    """
    found = []
    for path in model_files():
        folder = f"{path.stem}_pth" if path.name == "water_md0_c.pth" else path.stem
        for reference in _references():
            if reference.parent.name != folder:
                continue
            case = ReferenceCase(path, reference.stem, reference)
            if (
                (models is None or path.stem in models)
                and (structures is None or case.structure in structures)
                and (largest is None or case.n_atoms <= largest)
            ):
                found.append(case)
    return found
