"""Plot a run of the water example: temperature, conserved energy, O-O structure."""

import csv
import sys
from pathlib import Path

import ase.io
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np


def radial_distribution(frames, element="O", longest=6.0, bins=120):
    """g(r) of one element over frames (cubic cells): distances / Å and g."""
    edges = np.linspace(0, longest, bins + 1)
    histogram, expected = np.zeros(bins), np.zeros(bins)
    shells = 4 / 3 * np.pi * (edges[1:] ** 3 - edges[:-1] ** 3)
    for atoms in frames:
        chosen = atoms[atoms.symbols == element]
        distances = chosen.get_all_distances(mic=True)[np.triu_indices(len(chosen), 1)]
        histogram += np.histogram(distances, edges)[0]
        expected += shells * len(chosen) * (len(chosen) - 1) / 2 / atoms.get_volume()
    return (edges[1:] + edges[:-1]) / 2, histogram / expected


def main(name="water"):
    """Read NAME.thermo.csv and NAME.traj.extxyz, write NAME.png."""
    with open(f"{name}.thermo.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    column = {key: np.array([float(row[key]) for row in rows]) for key in rows[0]}
    frames = ase.io.read(f"{name}.traj.extxyz", index=":")
    settled = frames[len(frames) // 4 :]
    r, g = radial_distribution(settled)

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), constrained_layout=True)
    axes[0].plot(column["time_ps"], column["temperature_K"], color="tab:red")
    axes[0].axhline(330, color="0.6", lw=1, ls="--")
    axes[0].set(xlabel="time / ps", ylabel="temperature / K", title="Thermostat at 330 K")
    conserved = column["conserved_eV"] - column["conserved_eV"][0]
    axes[1].plot(column["time_ps"], 1000 * conserved / len(frames[0]), color="tab:blue")
    axes[1].set(xlabel="time / ps", ylabel="meV/atom", title="Conserved energy, change", ylim=(-0.5, 0.5))
    axes[2].plot(r, g, color="tab:green")
    peak = r[np.argmax(g)]
    axes[2].axvline(peak, color="0.6", lw=1, ls="--")
    axes[2].set(xlabel="O-O distance / Å", ylabel="g(r)", title=f"Structure: first peak at {peak:.2f} Å", xlim=(2, 6))
    figure.savefig(f"{name}.png", dpi=150)
    print(f"{name}.png: O-O first peak at {peak:.2f} Å, height {g.max():.1f}, from {len(settled)} frames")


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "water"
    if not Path(f"{name}.thermo.csv").exists():
        sys.exit("no results here: run 'md-run water.toml' first")
    main(name)
