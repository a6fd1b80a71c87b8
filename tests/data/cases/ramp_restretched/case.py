"""A run that goes on with more steps under a ramp says at which step its target jumps, and from where to where.

The ramp of 200 steps ends at 600 K; over 400 steps the same ramp is at 300 + 300 / 2 = 450 K at step 200.
"""

import re


def check(case):
    case.md_run("ramp.toml")
    file = case.folder / "ramp.toml"
    text = file.read_text()
    file.write_text(text.replace("steps = 200", "steps = 400"))
    (warning,) = re.findall("WARNING: run.steps.*", case.md_run("ramp.toml", "--continue", "--check"))
    assert re.search(r"was 200 and is 400.* at step 200 .* from 600 to 450 K", warning)
    # as the warning says: the target is held
    file.write_text(text.replace("steps = 200", "steps = 400").replace("[300, 600]", "600"))
    held = case.md_run("ramp.toml", "--continue", "--check")
    assert "run.steps" not in held
    assert "WARNING: ensemble.temperature_K was [300.0, 600.0] and is [600.0], which holds now" in held
