"""Makes computes.json: what LAMMPS with DeePMD-kit prints for computes.in, in both unit styles.

Run in this folder, with ``lmp`` (and its plugin for pair_style deepmd) on the path:
``OMP_NUM_THREADS=1 python make_computes.py``.  Made by LAMMPS 22 Jul 2025 with DeePMD-kit 3.2.0.  Kept are the
thermo columns of both runs, the last rows of each ``fix ave/time`` and a few atoms of the last frame of the dump.
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
#: variables of the script: picoseconds and bars in the unit style
UNITS = {"metal": {"ps": "1", "bar": "1"}, "real": {"ps": "1000", "bar": "0.986923267"}}
ATOMS = [1, 8, 17, 64, 150, 192]


def numbers(words):
    return [float(f"{float(word):.12g}") for word in words]


def thermo(path):
    """{title: values of both runs}; a title that occurs twice belongs to the first of its columns."""
    found, lines = {}, path.read_text().splitlines()
    for start in (k for k, line in enumerate(lines) if line.split()[:1] == ["Step"]):
        end = next(k for k in range(start, len(lines)) if lines[k].startswith("Loop time"))
        rows = [numbers(line.split()) for line in lines[start + 1 : end]]
        for title, column in zip(lines[start].split(), zip(*rows, strict=True), strict=True):
            found.setdefault(title, []).extend(column)
    return found


def last_block(path, heads):
    """Rows of the last block of a file of ``fix ave/time mode vector`` or a dump; heads : of the lines before one."""
    lines = path.read_text().splitlines()
    start = max(k for k, line in enumerate(lines) if heads(line.split()))
    return [numbers(line.split()) for line in lines[start + 1 :]]


def results(folder):
    """What is compared, from the files that computes.in leaves in a folder."""
    atoms = last_block(folder / "atoms.dump", lambda words: words[:2] == ["ITEM:", "ATOMS"])
    rows = {name: last_block(folder / f"{name}.txt", lambda words: len(words) == 2 and words[0].isdigit())
            for name in ("rdf_all", "rdf_types", "rdf_few")}  # fmt: skip
    return {"thermo": thermo(folder / "log.lammps"), **rows, "atoms": [a for a in atoms if a[0] in ATOMS]}


def main():
    found = {}
    for unit, variables in UNITS.items():
        with tempfile.TemporaryDirectory() as name:
            for file in ("lammps/computes.in", "lammps/wtri192.lmp", "models/water_md0.pb"):
                shutil.copy(FOLDER.parent / file, name)
            words = [word for pair in {"unit": unit, **variables}.items() for word in ("-var", *pair)]
            subprocess.run(["lmp", "-in", "computes.in", *words], cwd=name, check=True, stdout=subprocess.DEVNULL)
            found[unit] = results(Path(name))
    lines = [
        f' "{unit}": {{\n' + ",\n".join(f'  "{key}": {json.dumps(value)}' for key, value in parts.items()) + "\n }"
        for unit, parts in found.items()
    ]
    (FOLDER / "computes.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
