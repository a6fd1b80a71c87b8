"""Plot a run of the copper example: exchange and conservation of energy."""

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

ATOMS = 256


def main(name="copper"):
    """Read NAME.thermo.csv, write NAME.png."""
    with open(f"{name}.thermo.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    column = {key: np.array([float(row[key]) for row in rows]) for key in rows[0]}
    change = {key: 1000 * (column[key] - column[key][0]) / ATOMS for key in ("potential_eV", "kinetic_eV", "total_eV")}

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
    for key, color in (("potential_eV", "tab:blue"), ("kinetic_eV", "tab:red"), ("total_eV", "black")):
        axes[0].plot(column["time_ps"], change[key], color=color, label=key.split("_")[0])
    axes[0].set(xlabel="time / ps", ylabel="meV/atom", title="Kinetic becomes potential energy")
    figure.legend(frameon=False, loc="outside lower center", ncols=3)  # within the axes curves cross it
    axes[1].plot(column["time_ps"], change["total_eV"], color="black")
    axes[1].set(xlabel="time / ps", ylabel="meV/atom", title="Total energy, magnified")
    figure.savefig(f"{name}.png", dpi=150)
    late = column["temperature_K"][len(rows) // 4 :]
    spread = np.ptp(change["total_eV"][len(rows) // 4 :])
    print(
        f"{name}.png: temperature settles at {late.mean():.0f} K; total energy within "
        f"{spread:.3f} meV/atom"
    )


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "copper"
    if not Path(f"{name}.thermo.csv").exists():
        sys.exit("no results here: run 'md-run copper.toml' first")
    main(name)
