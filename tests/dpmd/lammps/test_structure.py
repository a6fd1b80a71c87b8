"""Data files, boxes and replicas: values of LAMMPS (22 Jul 2025)."""

import bz2
import lzma
from pathlib import Path

import numpy as np
import pytest

from dpmd.errors import InputError

DATA = """tilted

4 atoms
2 atom types

0 6 xlo xhi
-1 6 ylo yhi
0.5 8 zlo zhi
1.0 -0.7 0.3 xy xz yz

Masses

1 15.999
2 1.008

Atoms # full

7 2 1 -0.8 6.1 5.5 7.3 -1 2 1
2 2 2 0.4 0.2 -0.6 0.9 0 0 1
3 5 2 0.4 2.2 1.6 4.9 0 1 0
1 0 1 0.4 3.2 2.6 4.9 0 0 0
"""
#: {(boundary, replicate): id mol type x y z ix iy iz}
REPLICAS = {
    ("p p p", "2 1 1"): """
        1 0 1 3.2 2.6 4.9 0 0 0 / 2 2 2 0.2 -0.6 0.9 0 0 1 / 3 5 2 2.2 1.6 4.9 0 1 0 / 7 2 1 12.1 5.5 7.3 -1 2 1 /
        8 0 1 9.2 2.6 4.9 0 0 0 / 9 7 2 6.2 -0.6 0.9 0 0 1 / 10 10 2 8.2 1.6 4.9 0 1 0 / 14 7 1 6.1 5.5 7.3 0 2 1""",
    ("p p p", "1 1 2"): """
        1 0 1 3.2 2.6 4.9 0 0 0 / 2 2 2 -0.5 -0.3 8.4 0 0 0 / 3 5 2 2.2 1.6 4.9 0 1 0 / 7 2 1 5.4 5.8 14.8 -1 2 0 /
        8 0 1 2.5 2.9 12.4 0 0 0 / 9 7 2 0.2 -0.6 0.9 0 0 1 / 10 10 2 1.5 1.9 12.4 0 1 0 / 14 7 1 6.1 5.5 7.3 -1 2 1""",
    ("p p f", "1 1 2"): """
        1 0 1 3.2 2.6 4.9 0 0 0 / 2 2 2 0.2 -0.6 0.9 0 0 0 / 3 5 2 2.2 1.6 4.9 0 1 0 / 7 2 1 6.1 5.5 7.3 -1 2 0 /
        8 0 1 2.5 2.9 12.4 0 0 0 / 9 7 2 -0.5 -0.3 8.4 0 0 0 / 10 10 2 1.5 1.9 12.4 0 1 0 /
        14 7 1 5.4 5.8 14.8 -1 2 0""",
}


def rows(path):
    """Rows of a dump of one frame."""
    return np.array([line.split() for line in Path(path).read_text().splitlines()[9:]], float)


def made(script, commands):
    """id mol type x y z ix iy iz after commands that make a box of style full."""
    script(
        f"units metal\natom_style full\n{commands}\n"
        "write_dump all custom out.dump id mol type x y z ix iy iz modify sort id format float %.15g\n"
    )
    return rows("out.dump")


@pytest.mark.parametrize(("boundary", "counts"), REPLICAS)
def test_replicas_of_a_tilted_box(script, boundary, counts):
    Path("tri.data").write_text(DATA)
    found = made(
        script, f"boundary {boundary}\nread_data tri.data\ngroup h type 2\nreplicate {counts}\ngroup h id 1"
    )  # fmt: skip
    right = np.array([row.split() for row in REPLICAS[boundary, counts].split("/")], float)
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-9)
    assert "5 atoms in group h" in Path("log.lammps").read_text()  # 4 of type 2, copies included, and the atom 1


def test_groups_stay_when_atoms_come(script):
    log = script(
        "units metal\nlattice sc 3\nregion b block 0 2 0 2 0 2\ncreate_box 2 b\ncreate_atoms 1 box\nmass * 1\n"
        'group a id <= 5\ncreate_atoms 2 single 0.5 0.5 0.5\nprint "$(count(a)) of $(count(all))"\n'
    )
    assert "5 of 9" in log.splitlines()


@pytest.mark.parametrize(("suffix", "compress"), [(".bz2", bz2.compress), (".xz", lzma.compress)])
def test_compressed_data_files(script, suffix, compress):
    Path("tri.data").write_text(DATA)
    Path(f"tri.data{suffix}").write_bytes(compress(DATA.encode()))
    np.testing.assert_array_equal(made(script, f"read_data tri.data{suffix}"), made(script, "read_data tri.data"))
    Path(f"tri.data{suffix}").write_bytes(b"not compressed at all")
    with pytest.raises(InputError, match=f"tri.data{suffix}: cannot be read"):
        script(f"units metal\natom_style full\nread_data tri.data{suffix}\n")


def test_room_for_what_may_come(script):
    Path("tri.data").write_text(DATA)
    found = made(
        script, "read_data tri.data extra/atom/types 2 extra/bond/per/atom 4 extra/special/per/atom 9 nocoeff\n"
        "mass 3*4 7\nlattice sc 3\ncreate_atoms 4 single 1 1 1\n"
    )  # fmt: skip
    assert sorted(found[:, 2]) == [1, 1, 2, 2, 4]
    script(
        "region b block 0 9 0 9 0 9\ncreate_box 1 b bond/types 1 angle/types 1 extra/bond/per/atom 2 "
        "extra/angle/per/atom 1 extra/special/per/atom 5\n"
    )
    for command, words in (
        ("read_data tri.data extra/atom/types x", "extra/atom/types takes a whole number"),
        ("read_data tri.data add append", "give one complete file"),
        ("read_data tri.data extra/atoms 2", "unexpected 'extra/atoms'"),
        ("region b block 0 9 0 9 0 9\ncreate_box 1 b extra/atom/types 2", "unexpected 'extra/atom/types'"),
    ):
        with pytest.raises(InputError, match=words):
            script(f"atom_style full\n{command}\n")


BONDS = """bonded

3 atoms
2 atom types
2 bonds
1 bond types

0 12 xlo xhi
0 12 ylo yhi
0 12 zlo zhi

Masses

1 15.999
2 1.008

Atoms # full

1 1 1 0 6.0 6.0 6.3
2 1 2 0 6.0 6.76 5.7
3 1 2 0 6.0 5.24 5.7

Bonds

1 1 1 2
2 1 1 3
"""


@pytest.mark.parametrize(
    ("special", "noted"),
    [
        ("", True), ("special_bonds amber", True), ("special_bonds lj/coul 0 1 1", True),
        ("special_bonds lj/coul 1 1 1", False), ("special_bonds lj 1 1 1", False),
        ("special_bonds lj/coul 1e-50 1e-50 1e-50 angle yes", False), ("special_bonds coul 0.5 0.5 0.5", False),
    ],
)  # fmt: skip
def test_bonded_pairs_that_lammps_leaves_out(script, special, noted):
    """Where LAMMPS prints -457.15 eV for the water molecule of this file, it is noted; else -467.11 eV, as here."""
    Path("bonds.data").write_text(BONDS)
    log = script(
        f"units metal\natom_style full\nbond_style zero\nread_data bonds.data\n{special}\nbond_coeff *\n"
        "pair_style deepmd water_md0.pb\npair_coeff * * O H\nrun 0\nrun 0\n"
    )
    assert log.count("Note: the data file has bonds") == int(noted)


#: velocities (Å/ps) that LAMMPS gives to the first two of 32 copper atoms, fcc 3.62 Å
VELOCITIES = {
    "all create 300 123 loop local": (
        (-2.6659787220, 0.9303480733, -1.8026611264), (3.2154467935, 3.3896661367, -1.8970786386)),
    "all create 300 123 loop local dist gaussian": (
        (-0.0520500865, -1.0050313141, 0.7292310728), (-0.6178653177, 0.0755602902, 0.9517029893)),
    "a create 300 123 loop local": (
        (-2.9273826556, 0.8723206114, -0.4890843755), (2.6613450009, 3.2092470658, -0.5788030602)),
    "all create 300 123 temp t": (
        (-3.2131357542, -2.1178572178, 2.7442221546), (-0.4530695004, 0.2293299427, 2.6942693209)),
    "all set 1 2 NULL": ((3.62, 7.24, 0), (3.62, 7.24, 0)),
    "all set 1 2 3 units lattice": ((3.62, 7.24, 10.86), (3.62, 7.24, 10.86)),
    "all set 1 2 3 units box": ((1, 2, 3), (1, 2, 3)),
    "all ramp vx 0 5 y 0 3 units lattice": ((0, 0, 0), (3.0166666667, 0, 0)),
    "all ramp vx 0 5 y 0 3": ((0, 0, 0), (3.0166666667, 0, 0)),
    "all ramp vx 0 5 y 0 3 units box": ((0, 0, 0), (3.0166666667, 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("command", VELOCITIES)
def test_velocities(script, command):
    script(
        "units metal\nlattice fcc 3.62\nregion b block 0 2 0 2 0 2\ncreate_box 1 b\ncreate_atoms 1 box\nmass 1 63.5\n"
        f"group a id 1:10\ncompute t a temp\nvelocity {command}\n"
        "write_dump all custom out.dump id vx vy vz modify sort id format float %.12g\n"
    )
    np.testing.assert_allclose(rows("out.dump")[:2, 1:], VELOCITIES[command], rtol=0, atol=1e-8)


def test_computes_go_on_when_atoms_come(script):
    log = script(
        "units metal\nlattice sc 3\nregion b block 0 2 0 2 0 2\ncreate_box 1 b\ncreate_atoms 1 box\nmass 1 2\n"
        'group a id <= 4\nvelocity all set 1 0 0 units box\ncompute k a ke\nprint "$(c_k:%.9g)"\nreplicate 2 1 1\n'
        'print "$(c_k:%.9g)"\ncreate_atoms 1 single 0.5 0.5 0.5\nprint "$(c_k:%.9g)"\n'
    )
    energies = [float(line) for line in log.splitlines() if line.startswith("0.0")]
    assert energies == pytest.approx([4 * 1.0364269e-4, 8 * 1.0364269e-4, 8 * 1.0364269e-4], rel=1e-8)
    with pytest.raises(InputError, match=r"before fixes, dumps and compute msd \(here: m\)"):
        script("lattice sc 3\nregion b block 0 2 0 2 0 2\ncreate_box 1 b\ncreate_atoms 1 box\nmass 1 2\n"
               "compute m all msd\nreplicate 2 1 1\n")  # fmt: skip
