"""The text that ``dpmd info`` prints."""

import re

import pytest

from dpmd.models import load
from dpmd.models.describe import count_parameters, describe


def lines(text):
    """``{label: [texts]}`` of the rows of a description."""
    found = {}
    for line in text.splitlines():
        if line.startswith("  ") and re.match(r"  \S.*?  ", line):
            label, _, rest = line.strip().partition("  ")
            found.setdefault(label, []).append(rest.strip())
    return found


def test_water(find_model):
    rows = lines(describe(load(find_model("water_md0.pb"))))
    assert rows["file"] == [str(find_model("water_md0.pb"))]
    assert rows["format"] == ["TensorFlow graph (.pb)"]
    assert rows["version"] == ["1.1"]
    assert rows["atom types"] == ["O H"]
    assert rows["cutoff"] == ["6 Å, smooth from 0.5 Å"]
    assert rows["sel"] == ["O 46, H 92"]
    assert rows["embedding"] == ["6-12-24 tanh; one network per neighbour type"]
    assert rows["networks"] == ["24-24-24 tanh, resnet_dt; one per centre type"]
    assert rows["compressed"] == ["no"]
    assert rows["nearest atoms"] == ["0.8854 Å, in the training data"]
    assert "tables" not in rows
    assert "Warnings" not in rows


def test_parameters_are_counted_once(find_model):
    # two embeddings 1-6-12-24 and two fitting networks 96-24-24-24-1 with two time steps
    embedding = (6 + 6) + (72 + 12) + (288 + 24)
    fitting = (96 * 24 + 24) + 2 * (24 * 24 + 24 + 24) + 25
    assert count_parameters(load(find_model("water_md0.dp"))) == (2 * embedding + 2 * fitting, 0)
    assert count_parameters(load(find_model("f_onesideF.dp"))) == (4 * embedding + 2 * fitting, 0)
    assert count_parameters(load(find_model("water_md0_c.pb"))) == (2 * fitting, 2 * 1360 * 24 * 6)


def test_optional_rows(find_model, edited_dp):
    rows = lines(describe(load(find_model("f_exclude_c.pb"))))
    assert rows["excluded pairs"] == ["O-O O-H H-O (skipped; centre first)"]
    assert rows["tables"] == ["1 from the file, 2060 rows: -1 to 14 in steps of 0.01, to 70 in steps of 0.1"]
    rows = lines(describe(load(find_model("f_faparam.pb"))))
    assert rows["frame parameters"] == ["2, default none"]
    assert rows["atom parameters"] == ["1"]
    assert lines(describe(load(find_model("f_atomener.pb"))))["vacuum subtracted"] == ["O H"]

    def edit(tree):
        tree["model"]["atom_exclude_types"] = [1]
        tree["model"]["@variables"]["out_std"] *= 2

    text = describe(load(edited_dp("f_exclude.dp", edit)))
    assert lines(text)["no energy from"] == ["H"]
    assert "masked" in lines(text)["excluded pairs"][0]
    assert "Warnings\n  The file holds out_std = 2, 2" in text


def test_rows_are_aligned(model_path):
    text = describe(load(model_path))
    rows = [line for line in text.splitlines() if line.startswith("  ")]
    starts = {re.match(r"  \S+(?: \S+)*\s{2,}", row).end() for row in rows}
    assert len(starts) == 1


@pytest.mark.parametrize("words", ["Model", "Descriptor", "Fitting"])
def test_sections(find_model, words):
    assert words in describe(load(find_model("water_md0.pth"))).splitlines()
