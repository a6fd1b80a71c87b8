"""The ASE calculator: against finite differences, DeePMD-kit's results, and as ASE's tools use it."""

import inspect
import re
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import ase
import numpy as np
import pytest
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress
from ase.calculators.socketio import SocketClient

from dpmd import DP
from dpmd.errors import InputError


@pytest.fixture(scope="module")
def model(find_model):
    return find_model("water_md0.pb")


def situations(water):
    """Structures by name, made of 24 water atoms in a cube of 6.2 Å, smaller than the cutoff."""
    triclinic = water.copy()
    triclinic.set_cell(water.cell.array @ [[1.02, 0, 0], [0.15, 0.98, 0], [-0.2, 0.1, 1.0]], scale_atoms=True)
    slab = water.copy()
    slab.set_cell([6.2, 6.2, 20.0])
    slab.pbc = [True, True, False]
    wire = water.copy()
    wire.set_cell(np.diag([6.2, 15.0, 15.0]))
    wire.pbc = [True, False, False]
    flat = water.copy()
    flat.set_cell(water.cell.array @ [[1, 0, 0], [0.6, 1, 0], [0, 0.5, 1]], scale_atoms=True)
    return {"small cube": water, "triclinic": triclinic, "slab": slab, "wire": wire, "very triclinic": flat}


def test_what_python_shows(model):
    """A calculator names its model; ``help`` shows dpmd's arguments and options, not ASE's."""
    shown = repr(DP(model, device="cpu"))
    assert shown.startswith("DP(")
    assert "water_md0.pb" in shown
    assert "precision='double'" in shown
    assert "Load a model" in DP.__init__.__doc__
    from dpmd import Simulation, building

    options = inspect.signature(building.simulation).parameters
    for name, parameter in options.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            assert re.search(rf"\b{name}\b", Simulation.from_atoms.__doc__), name


@pytest.mark.parametrize("name", ["small cube", "triclinic", "slab", "wire", "very triclinic"])
def test_forces_and_stress_are_derivatives(name, model, small_water):
    atoms = situations(small_water)[name].copy()
    atoms.calc = DP(model)
    indices = [0, 9, 23]
    numerical = calculate_numerical_forces(atoms, eps=1e-5, iatoms=indices)
    np.testing.assert_allclose(atoms.get_forces()[indices], numerical, rtol=0, atol=1e-6)
    periodic = atoms.pbc.copy()
    numerical = calculate_numerical_stress(atoms, eps=1e-5)
    assert (atoms.pbc == periodic).all()
    np.testing.assert_allclose(atoms.get_stress(), numerical, rtol=0, atol=1e-6)


def structure_of(case):
    values = case.load()
    box = values["box"].reshape(-1, 3)
    symbols = np.array([str(s) for s in values["type_map"]])[values["atype"]]
    return values, ase.Atoms(symbols, values["coord"].reshape(-1, 3), cell=box if len(box) else None, pbc=len(box) > 0)


@pytest.mark.reference_cases(models=["water_md0", "f_faparam", "f_exclude_c"], largest=200)
def test_equals_the_calculator_of_deepmd(reference_case):
    """What ``deepmd.calculator.DP`` returns: energy, forces, virial, and stress = -virial / volume."""
    values, atoms = structure_of(reference_case)
    parameters = {name: values[name].ravel() for name in ("fparam", "aparam") if name in values}
    atoms.calc = DP(str(reference_case.model), **parameters)
    assert atoms.get_potential_energy() == pytest.approx(float(values["energy"]), abs=1e-7)
    assert atoms.get_potential_energy(force_consistent=True) == atoms.get_potential_energy()
    np.testing.assert_allclose(atoms.get_forces(), values["force"].reshape(-1, 3), rtol=0, atol=1e-8)
    np.testing.assert_allclose(atoms.get_potential_energies(), values["atom_energy"].ravel(), rtol=0, atol=1e-8)
    virial = values["virial"].reshape(3, 3)
    np.testing.assert_allclose(atoms.calc.results["virial"], virial, rtol=0, atol=1e-7)
    if atoms.pbc.any():
        stress = -0.5 * (virial + virial.T).ravel()[[0, 4, 8, 5, 2, 1]] / atoms.get_volume()
        np.testing.assert_allclose(atoms.get_stress(), stress, rtol=0, atol=1e-9)
        np.testing.assert_allclose(atoms.get_stresses().sum(axis=0), stress, rtol=0, atol=1e-9)


def test_lists_are_kept_while_atoms_move_little(model, small_water):
    atoms = small_water.copy()
    atoms.calc = DP(model, skin=1.0)
    random = np.random.default_rng(0)
    for _ in range(10):
        atoms.positions += random.normal(0, 0.01, atoms.positions.shape)
        atoms.get_forces()
    assert atoms.calc.potential._followed.domain.rebuilds == 1
    for change in ("cell", "wrap", "far", "elements"):
        if change == "cell":
            atoms.set_cell(atoms.cell.array * 1.001, scale_atoms=True)
        elif change == "wrap":
            atoms.positions -= 4.0
            atoms.wrap()
        elif change == "far":
            atoms.positions[3] += 1.0
        else:
            atoms = atoms[[*range(23)]]
            atoms.calc = DP(model)
        fresh = DP(model, skin=0.0)
        np.testing.assert_allclose(atoms.get_forces(), fresh.get_forces(atoms), rtol=0, atol=1e-11)
        assert atoms.get_potential_energy() == pytest.approx(fresh.get_potential_energy(atoms), abs=1e-10)


def test_changes_are_noticed(model, small_water):
    atoms = small_water.copy()
    atoms.calc = DP(model)
    energy = atoms.get_potential_energy()
    assert not atoms.calc.calculation_required(atoms, ["energy", "forces", "stress"])
    atoms.positions[0, 0] += 1e-9
    assert atoms.calc.calculation_required(atoms, ["energy"])
    atoms.pbc = [True, True, False]
    assert abs(atoms.get_potential_energy() - energy) > 1e-3
    atoms.pbc = False
    with pytest.raises(NotImplementedError):
        atoms.get_stress()


def test_types_can_be_renamed(model, small_water):
    """``type_dict`` and ``type_map`` say which element is which type, as in deepmd's calculator."""
    energy = DP(model).get_potential_energy(small_water)
    renamed = ase.Atoms(["S" if s == "O" else "Li" for s in small_water.symbols], small_water.positions)
    renamed.cell, renamed.pbc = small_water.cell, True
    assert DP(model, type_dict={"Li": 1, "S": 0}).get_potential_energy(renamed) == pytest.approx(energy, abs=1e-12)
    assert DP(model, type_map=["S", "Li"]).get_potential_energy(renamed) == pytest.approx(energy, abs=1e-12)
    with pytest.raises(InputError, match="no type for Li, S"):
        DP(model).get_potential_energy(renamed)


def test_arguments_of_deepmd(model, small_water):
    assert DP(model, "name", None, None).get_potential_energy(small_water) < 0
    with pytest.raises(ValueError, match="several heads"):
        DP(model, head="H2O")


def test_positions_that_are_not_numbers(model, small_water):
    atoms = small_water.copy()
    atoms.calc = DP(model)
    atoms.get_forces()
    atoms.positions[5] = np.nan
    with pytest.raises(InputError, match="atom 5"):
        atoms.get_forces()


def test_ase_finds_it_by_name():
    from ase.calculators.calculator import get_calculator_class

    import dpmd.ase_io  # what the entry point "ase.ioformats" loads

    dpmd.ase_io.register_calculator()  # twice does no harm
    assert get_calculator_class("dpmd") is DP


def test_listing_calculators_does_not_load_the_engine():
    code = "import sys, dpmd.ase_io; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


_IPI = """
<simulation verbosity='low'>
  <output prefix='run'>
    <properties stride='1' filename='out'> [ step, potential{{electronvolt}}, conserved{{electronvolt}} ] </properties>
  </output>
  <total_steps> 6 </total_steps>
  <prng><seed> 1 </seed></prng>
  <ffsocket mode='unix' name='driver' pbc='false'><address> {address} </address></ffsocket>
  <system>
    <initialize nbeads='1'>
      <file mode='ase'> start.xyz </file>
      <velocities mode='thermal' units='kelvin'> 200 </velocities>
    </initialize>
    <forces><force forcefield='driver'/></forces>
    <motion mode='dynamics'>
      <dynamics mode='nve'><timestep units='femtosecond'> 0.5 </timestep></dynamics>
    </motion>
  </system>
</simulation>
"""


@pytest.mark.timeout(120)
def test_serves_ipi_through_a_socket(model, small_water, tmp_path):
    """i-PI drives; ASE's SocketClient answers with our forces."""
    pytest.importorskip("ipi")
    program = shutil.which("i-pi") or Path(sys.executable).with_name("i-pi")
    address = f"dpmd-{uuid.uuid4().hex[:12]}"
    small_water.write(tmp_path / "start.xyz", format="extxyz")
    (tmp_path / "input.xml").write_text(_IPI.format(address=address))
    atoms = small_water.copy()
    atoms.calc = DP(model)
    energy = atoms.get_potential_energy()
    with open(tmp_path / "log", "w") as log:
        server = subprocess.Popen([str(program), "input.xml"], cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT)
    try:
        for _ in range(600):
            if Path(f"/tmp/ipi_{address}").exists() or server.poll() is not None:
                break
            time.sleep(0.1)
        SocketClient(unixsocket=address).run(atoms, use_stress=True)
        assert server.wait(60) == 0, (tmp_path / "log").read_text()
    finally:
        if server.poll() is None:
            server.kill()
    rows = np.loadtxt(tmp_path / "run.out")
    assert len(rows) == 7
    assert rows[0, 1] == pytest.approx(energy, rel=3e-7)  # i-PI's units are of CODATA 2010
    assert np.ptp(rows[:, 2]) < 0.02  # conserved, eV
