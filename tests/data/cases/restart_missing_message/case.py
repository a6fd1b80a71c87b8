"""A restart file that is not there: the message speaks of scripts, not of the keys of TOML inputs."""


def check(case):
    output = case.md_run("in.lammps", exit_code=2)
    assert "in.lammps:3: " in output
    assert "final0.restart" in output
    for word in ("--continue", "[checkpoint]", "checkpoint"):
        assert word not in output
