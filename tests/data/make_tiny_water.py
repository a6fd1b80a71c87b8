"""Makes dpmd/data/tiny_water.dp and .json, the model and numbers of ``dpmd doctor``.

Random weights (fixed seed), small enough to come with every installation.  The numbers are those of the
reference operators.  Run from the top of the repository: ``python tests/data/make_tiny_water.py``.
"""

import json
from pathlib import Path

import ase
import numpy as np
from ase.build import molecule

from dpmd.kernels.neighbors import NeighborListBuilder
from dpmd.kernels.reference import ReferenceOperators
from dpmd.models import load
from dpmd.models.parameters import (
    DeepPotentialModel,
    DenseLayer,
    Embedding,
    EnergyFitting,
    ModelSource,
    Network,
    SmoothDescriptor,
)
from dpmd.models.writers import write
from dpmd.parallel.batch import Batch

FOLDER = Path(__file__).resolve().parents[2] / "dpmd" / "data"


def tiny_model(rng):
    def layer(n_in, n_out, activation="tanh", skip="none", timestep=None, scale=1.0):
        weight = scale * rng.normal(size=(n_in, n_out)) / np.sqrt(n_in)
        return DenseLayer(weight, 0.3 * rng.normal(size=n_out), timestep, activation, skip)

    embeddings = tuple(Embedding(Network((layer(1, 4), layer(4, 8, skip="double")))) for _ in range(2))
    descriptor = SmoothDescriptor(
        rcut=4.0, rcut_smth=1.0, switch_start=1.0, switch_end=4.0, switch_width=3.0, sel=(20, 40), axis_neuron=4,
        neighbor_count=60, radial_mean=np.array([0.05, 0.04]), radial_std=np.array([0.1, 0.09]),
        angular_std=np.array([0.06, 0.07]), embeddings=(embeddings, embeddings), pair_rules=np.zeros((2, 2), int),
        type_one_side=True, shared_selection=True,
    )  # fmt: skip

    def fitting():
        timestep = 0.1 + 0.02 * rng.normal(size=12)
        return Network(
            (layer(32, 12, scale=2.0), layer(12, 12, skip="add", timestep=timestep), layer(12, 1, activation="linear"))
        )

    return DeepPotentialModel(
        ("O", "H"),
        descriptor,
        EnergyFitting((fitting(), fitting()), np.array([-2.0, -1.0]), np.array([False, False])),
        "float64",
        ModelSource("tiny_water.dp", "made for dpmd doctor", backend="dpmd", min_neighbor_distance=0.9),
    )


def tiny_structure():
    atoms = ase.Atoms()
    for x in range(2):
        for y in range(2):
            water = molecule("H2O")
            water.rotate(37 * x + 11, "x")
            water.rotate(53 * y + 7, "z")
            water.translate([3.1 * x, 3.1 * y, 0.4 * x])
            atoms += water
    atoms.cell, atoms.pbc = [[6.2, 0, 0], [0.7, 6.2, 0], [0, 0.5, 3.4]], True
    return atoms


def main():
    path = FOLDER / "tiny_water.dp"
    write(tiny_model(np.random.default_rng(2026)), path)
    model, atoms = load(path), tiny_structure()
    types = np.array([model.type_map.index(s) for s in atoms.symbols], np.int32)
    batch = Batch(
        atoms.positions, types, [0, len(atoms)], atoms.cell.array[None], atoms.pbc[None], model.cutoff,
        NeighborListBuilder(model.n_types),
    )  # fmt: skip
    result = ReferenceOperators(model).evaluate(batch.positions, batch.types, batch.neighbors, batch.forces)
    numbers = {
        "symbols": list(atoms.symbols),
        "positions": atoms.positions.tolist(),
        "cell": atoms.cell.array.tolist(),
        "energy": float(result.energies[0]),
        "forces": batch.fold(batch.forces).tolist(),
        "virial": result.virials[0].tolist(),
    }
    path.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
