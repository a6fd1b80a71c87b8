"""Lines, words, variables, formulas and conditions as LAMMPS reads them."""

import io
from pathlib import Path

import pytest

from dpmd.errors import InputError
from dpmd.lammps.interpreter import run_script

_TABLE = Path(__file__).resolve().parents[2] / "data/lammps/language.txt"
SCRIPTS = [block for block in _TABLE.read_text(encoding="utf-8").split("\n\n") if not block.startswith("# ")]


def printed(text, options):
    """The lines that a script prints, without dpmd's own."""
    Path("in.script").write_text(text)
    screen = io.StringIO()
    run_script("in.script", options, log_path=None, screen=screen)
    return screen.getvalue().splitlines()[1:-1]


@pytest.mark.parametrize("block", SCRIPTS, ids=range(len(SCRIPTS)))
def test_as_lammps_prints_it(block, tmp_path, monkeypatch, script_options):
    monkeypatch.chdir(tmp_path)
    lines = block.strip().splitlines()
    expected = [line[2:] for line in lines if line.startswith(">")]
    text = "\n".join(line for line in lines if line != "!" and not line.startswith(">")) + "\n"
    if lines[-1] == "!":
        with pytest.raises(InputError):
            printed(text, script_options)
    else:
        assert printed(text, script_options) == expected


def test_there_are_scripts():
    assert len(SCRIPTS) >= 30


def test_what_has_no_value_is_said(tmp_path, monkeypatch, script_options):
    monkeypatch.chdir(tmp_path)
    for formula, words in (
        ("1/0", "division by zero"), ("5%0", "modulo 0"), ("0^-1", "negative power"), ("stagger(1,10)", "x > y > 0"),
        ("ln(0)", "math domain"), ("random(0,1,0)", "seed must be"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            printed(f'print "$({formula})"\n', script_options)


def test_lines_of_a_file_one_after_the_other(tmp_path, monkeypatch, script_options):
    monkeypatch.chdir(tmp_path)
    Path("names").write_text("# three names\na\n\nb c  # with a space\nd\n")
    lines = printed('variable n file names\nlabel l\nprint "<$n>"\nnext n\njump SELF l\n', script_options)
    assert lines == ["<a>", "<b c>", "<d>"]
