"""Fixtures for operators.

``evaluate`` : function (operators, case, skin=1.0) -> dict of results in the case's atom order.
``operators_of`` : function (model path, class, preparation) -> operators, made once per session.
"""

import numpy as np
import pytest

from dpmd.models import load
from dpmd.parallel import SerialDomain
from dpmd.parallel.domain import complete_cell
from dpmd.system import System


def system_of(arrays, type_names):
    n = len(arrays["atype"])
    periodic = np.full(3, len(arrays["box"]) > 0)
    return System(
        ids=np.arange(1, n + 1),
        types=arrays["atype"].astype(np.int32),
        masses=np.ones(n),
        positions=arrays["coord"].astype(float),
        velocities=np.zeros((n, 3)),
        cell=complete_cell(arrays["box"] if periodic.any() else np.zeros((3, 3)), periodic),
        periodic=periodic,
        type_names=type_names,
    )


@pytest.fixture(scope="session")
def evaluate():
    def run(operators, case, skin=1.0):
        arrays, model = (case if isinstance(case, dict) else case.load()), operators.model
        system = system_of(arrays, model.type_map)
        domain = SerialDomain(model.cutoff, skin, model.n_types)
        domain.update(system)
        parameters = {}
        if "fparam" in arrays:
            parameters["frame_parameters"] = arrays["fparam"]
        if "aparam" in arrays:
            parameters["atomic_parameters"] = arrays["aparam"].reshape(len(system), -1)[system.ids - 1]
        result = operators.evaluate(
            domain.positions, domain.types, domain.neighbors, domain.forces, atomic_virials=True, **parameters
        )
        back = np.argsort(system.ids)
        return {
            "energy": result.energies[0],
            "energies": result.atomic_energies[back],
            "forces": domain.fold(domain.forces)[back],
            "virial": result.virials[0],
            "virials": domain.fold(result.atomic_virials)[back],
            "overflowed": result.overflowed,
        }

    return run


@pytest.fixture(scope="session")
def operators_of():
    made = {}

    def get(path, kind, prepare):
        key = (path, getattr(kind, "__code__", kind), getattr(prepare, "__code__", prepare))
        if key not in made:
            made[key] = kind(prepare(load(path)))
        return made[key]

    return get
