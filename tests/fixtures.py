"""Model files and reference results of DeePMD-kit 3.2.0 that tests compare with.

They lie in ``tests/data`` and, the large ones, in ``../shared/fixtures`` beside the repository
(used when present).  Test modules cannot import this file: see ``conftest.py`` for the fixtures
made of it.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parent / "data"
SHARED = DATA.parents[2] / "shared"

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
def _files(kind):
    """Path of each file of ``data/<kind>``, and of the shared folder where the repository has none."""
    found = {}
    for folder in (SHARED / "fixtures" / ("models" if kind == "models" else ""), DATA / kind):
        pattern = "*.*" if kind == "models" else "*/*.npz"
        found |= {str(p.relative_to(folder)): p for p in sorted(folder.glob(pattern))}
    return {name: found[name] for name in sorted(found)}


def model_files():
    """Paths of all model files that dpmd reads."""
    known = {p.suffix for p in _files("models").values()} & {".pb", ".pth", ".dp"}
    return [p for p in _files("models").values() if p.suffix in known and p.stem not in REFUSED]


def refused_files():
    """``(path, words of the message)`` of all model files that dpmd refuses."""
    return [(p, REFUSED[p.stem]) for p in _files("models").values() if p.stem in REFUSED]


def model_file(name):
    """Path of a model file by its name, e.g. ``"water_md0.pb"``."""
    return _files("models")[name]


def fixture_cases(models=None, structures=None, largest=None):
    """All :class:`ReferenceCase`: models x formats x structures.

    models, structures : keep only these names (without suffix); largest : most atoms.
    The compressed archive of PyTorch has tables, and results, of its own.
    """
    found = []
    for path in model_files():
        folder = f"{path.stem}_pth" if path.name == "water_md0_c.pth" else path.stem
        for name, reference in _files("references").items():
            if Path(name).parent.name != folder:
                continue
            case = ReferenceCase(path, reference.stem, reference)
            if (
                (models is None or path.stem in models)
                and (structures is None or case.structure in structures)
                and (largest is None or case.n_atoms <= largest)
            ):
                found.append(case)
    return found
