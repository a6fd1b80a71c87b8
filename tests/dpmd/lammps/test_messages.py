"""What is said about scripts that fail speaks of scripts, not of the keys and sections of TOML inputs."""

import re
from pathlib import Path

import pytest

from dpmd.errors import InputError, RunError

#: words of the TOML input and of options that scripts do not have
_OTHER_DOOR = re.compile(r"--continue|\[[a-z]\w*\]|\w+_(K|A|u|fs|bar|eV_A)\b|\b[a-z_]+ = \"|TOML|extxyz input")
#: {what is wrong: (commands after the head, words of the message)}
FAILURES = {
    "no restart file": ("clear\nread_restart gone.restart", "no file gone.restart"),
    "no restart files": ("clear\nread_restart gone.*", "no file fits"),
    "not a restart file": ("clear\nread_restart water.lmp", "not a dpmd checkpoint"),
    "no data file": ("clear\nread_data gone.lmp", "gone.lmp: cannot be read"),
    "no model": ("pair_style deepmd gone.pb", "gone.pb does not exist"),
    "not a model": ("pair_style deepmd water.lmp\npair_coeff * * O H\nrun 1", "water.lmp"),
    "other element": ("pair_coeff * * O Cu\nrun 1", "the model has no type Cu"),
    "no mass": ("clear\natom_style atomic\nread_data water.lmp\npair_style deepmd water_md0.pb\npair_coeff * *\nrun 1",
                "no mass"),
    "committee": ("pair_style deepmd water_md0.pb f_faparam.pb\npair_coeff * * O H\nrun 1", "f_faparam.pb takes 2"),
    "no parameters": ("pair_style deepmd f_faparam.pb\npair_coeff * * O H\nrun 1", "numbers as fparam"),
    "wide skin": ("neighbor 20 bin\nrun 1", "a skin of 20"),
    "long time step": ("velocity all create 300 4\nfix 1 all nve\ntimestep 5\nrun 50", ""),
    "overlap": ("set_overlap", ""),
    "barostat too fast": ("velocity all create 300 4\nfix 1 all nph iso 0 1e9 0.0001\nrun 50", ""),
    "barostat on a face": (
        "change_box all boundary p p f\nfix 1 all npt temp 300 300 0.1 iso 0 0 1\nrun 5", "periodic",
    ),
    "lost atoms": ("velocity all create 9000 4\nchange_box all boundary p p f\nfix 1 all nve\nrun 300", ""),
    "relaxation by fire": ("min_style fire\nfix 1 all box/relax iso 0\nminimize 0 0 5 5", "cg and sd"),
    "number": ("fix 1 all nvt temp 300 x 0.1", "must be a number"),
    "thermo": ("thermo_style custom step volume", "not supported"),
    "variable": ("print ${none}", "not defined"),
    "folder": ("dump 1 all custom 5 nowhere/a.dump id\nrun 0", "no folder nowhere"),
    "at rest": ("velocity all set 0 0 0\nvelocity all scale 300", "at rest"),
}  # fmt: skip


@pytest.mark.parametrize("what", FAILURES)
def test_messages_speak_of_scripts(what, script, head):
    commands, words = FAILURES[what]
    if what == "overlap":
        lines = Path("water.lmp").read_text().splitlines()
        at = lines.index(next(line for line in lines if line.startswith("Atoms"))) + 2
        a, b = lines[at].split(), lines[at + 1].split()
        lines[at + 1] = " ".join([*b[:2], *a[2:5], *b[5:]])
        Path("water.lmp").write_text("\n".join(lines) + "\n")
        commands = "run 1"
    with pytest.raises((InputError, RunError)) as error:
        script(head + commands + "\n")
    message = str(error.value)
    assert words in message
    assert not _OTHER_DOOR.search(message), message
