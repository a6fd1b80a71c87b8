"""The table of commands, the help made from it, and telling scripts from TOML."""

from pathlib import Path

import pytest

from dpmd import cli
from dpmd.errors import InputError
from dpmd.lammps.commands import BY_NAME, COMMANDS, help_text
from dpmd.lammps.interpreter import is_script, unsupported
from dpmd.lammps.language import read_lines

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.name)
def test_every_command_is_explained(command):
    assert command.help
    assert help_text(command.name).startswith(f"{command.name} {command.usage}"[:20])
    for style in command.styles[1] if command.styles else ():
        assert style in help_text(style)


def test_names_are_unique():
    assert len(BY_NAME) == len(COMMANDS)


def test_help_on_the_command_line(capsys):
    for arguments, word in ((["--help-lammps"], "minimize"), (["--help-lammps", "npt"], "Tstart")):
        with pytest.raises(SystemExit) as exit_:
            cli.md_run(arguments)
        assert exit_.value.code == 0
        assert word in capsys.readouterr().out


def test_unknown_help():
    with pytest.raises(InputError, match="did you mean 'thermo_style'"):
        help_text("thermo_styl")


def test_scripts_and_toml_are_told_apart():
    inputs = list(ROOT.glob("examples/*/*.toml"))
    examples, stored = list(ROOT.glob("examples/lammps/in.*")), list(ROOT.glob("tests/data/lammps/*.in"))
    assert len(inputs) > 1
    assert examples
    assert len(stored) > 10
    for path in inputs:
        assert not is_script(path.read_text(encoding="utf-8"))
    for path in [*examples, *stored]:
        assert is_script(path.read_text(encoding="utf-8"))
        assert unsupported(read_lines(path)) == []
    assert not is_script("[run]\nsteps = 1\nrun = 5\n")
    assert is_script("units metal # steps = 5\n")


def test_command_line_of_lammps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpmd.cli._launchers", ())
    Path("in.x").write_text('variable n index 1\nvariable t equal $n*2\nprint "n=$n $t ${a}"\n')
    arguments = ["-in", "in.x", "-v", "n", "7", "8", "-var", "a", "-3", "-l", "my.log", "-sc", "out.txt", "-e", "both"]
    with pytest.raises(SystemExit) as exit_:
        cli.md_run(arguments)
    assert exit_.value.code == 0
    assert "\nn=7 14 -3\n" in Path("my.log").read_text()
    assert "\nn=7 14 -3\n" in Path("out.txt").read_text()
    Path("in.x").write_text("units metal\nunits real\nfix 1 all nvt\n")
    with pytest.raises(SystemExit) as exit_:
        cli.md_run(["in.x"])
    assert exit_.value.code == 2
    assert "ERROR: in.x:3: " in capsys.readouterr().err
