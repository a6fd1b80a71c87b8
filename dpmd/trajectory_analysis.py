"""Structure and motion of a simulation: RDF, coordination, MSD and diffusion, VACF and vibrations.

Functions take arrays or lists of ASE Atoms and can be used on any trajectory; the classes at the end do
the same during a run, as hooks (``[[analysis]]`` in an input file).

Correlations over all time origins are sums over the whole series; they are computed by fast Fourier
transforms (scipy.fft), in N log N.  Sources: M. P. Allen, D. J. Tildesley, "Computer Simulation of
Liquids" (2017), chapters 2.6, 2.7 and 8; G. R. Kneller et al., Comput. Phys. Commun. 91, 191 (1995).
"""

import time
from pathlib import Path

import numpy as np
import scipy.fft

from dpmd.kernels.neighbors import NeighborListBuilder
from dpmd.parallel.batch import Batch
from dpmd.parallel.domain import complete_cell

from .errors import InputError
from .simulation import Hook

#: m^2/s per Å^2/ps
DIFFUSION_SI = 1e-8
#: 1/cm per THz
WAVENUMBER = 33.35640951981521


# --------------------------------------------------------------------- structure


class PairCounter:
    """Distances between atoms, counted by pair of types over many frames.

    n_types : types are 0 ... n_types - 1 (negative ones are left out); cutoff : Å, any, also beyond half
    the cell; bins : of the histogram.
    """

    def __init__(self, n_types, cutoff, bins=200):
        self.n_types, self.cutoff, self.bins = n_types, float(cutoff), bins
        self.counts = np.zeros((n_types, n_types, bins))
        self.coordination = [[{} for _ in range(n_types)] for _ in range(n_types)]
        self.density, self.atoms, self.frames = np.zeros(n_types), np.zeros(n_types), 0
        self._builder = NeighborListBuilder(n_types)

    def add(self, positions, types, cell, periodic):
        """Count a frame: positions (n, 3) Å, types (n,), cell (3, 3) Å, periodic (3,)."""
        types = np.asarray(types, np.int32)
        cell = complete_cell(cell, periodic)
        batch = Batch(
            positions, types, [0, len(types)], cell[None], np.asarray(periodic)[None], self.cutoff, self._builder
        )
        centre, other, distance = batch.pairs()
        near = distance < self.cutoff
        centre, kinds = centre[near], (types[centre[near]], batch.types[other[near]])
        bin_of = np.minimum((distance[near] * (self.bins / self.cutoff)).astype(int), self.bins - 1)
        np.add.at(self.counts, (*kinds, bin_of), 1)
        numbers = np.zeros((len(types), self.n_types), int)
        np.add.at(numbers, (centre, kinds[1]), 1)
        of_type = np.bincount(types[types >= 0], minlength=self.n_types)
        for a in range(self.n_types):
            for b in range(self.n_types):
                seen = self.coordination[a][b]
                for number, times in zip(*np.unique(numbers[types == a, b], return_counts=True), strict=True):
                    seen[int(number)] = seen.get(int(number), 0) + int(times)
        self.atoms += of_type
        self.density += of_type / abs(np.linalg.det(cell))
        self.frames += 1

    @property
    def distances(self):
        """(bins,) Å, middles of the bins."""
        return (np.arange(self.bins) + 0.5) * self.cutoff / self.bins

    def radial_distribution(self):
        """``(g, n)``, each (types, types, bins): the distribution around the first type of the second, and
        how many there are on average up to the end of the bin.

        g = counts / (atoms of the first type x shell volume x density of the second).
        """
        edges = np.linspace(0, self.cutoff, self.bins + 1)
        shells = 4 / 3 * np.pi * np.diff(edges**3)
        per_atom = self.counts / np.maximum(self.atoms, 1)[:, None, None]
        density = self.density / max(self.frames, 1)
        ideal = np.maximum(density, 1e-300)[None, :, None] * shells
        return per_atom / ideal, np.cumsum(per_atom, axis=2)

    def mean_coordination(self):
        """(types, types): neighbours of the second type within the cutoff of one of the first."""
        return self.counts.sum(axis=2) / np.maximum(self.atoms, 1)[:, None]


def pair_distribution(structures, cutoff, bins=200):
    """``(r, g)`` over a list of ASE Atoms: g maps ``("O", "H")`` to (bins,); r and cutoff in Å."""
    counter, names = _count(structures, cutoff, bins)
    g, _ = counter.radial_distribution()
    return counter.distances, {(a, b): g[i, j] for i, a in enumerate(names) for j, b in enumerate(names)}


def coordination_numbers(structures, cutoff):
    """Mean numbers of neighbours within ``cutoff`` (Å) over ASE Atoms, e.g. ``{("O", "H"): 2.0, ...}``."""
    counter, names = _count(structures, cutoff, 1)
    mean = counter.mean_coordination()
    return {(a, b): float(mean[i, j]) for i, a in enumerate(names) for j, b in enumerate(names)}


def _count(structures, cutoff, bins):
    names = sorted({symbol for atoms in structures for symbol in atoms.symbols})
    counter = PairCounter(len(names), cutoff, bins)
    for atoms in structures:
        types = [names.index(symbol) for symbol in atoms.symbols]
        counter.add(atoms.positions, types, atoms.cell.array, atoms.pbc)
    return counter, names


# --------------------------------------------------------------------- motion


def _autocorrelation(series):
    """Mean over time origins of ``series[t] * series[t + lag]``, (times, ...), by FFT with zero padding."""
    n = len(series)
    size = scipy.fft.next_fast_len(2 * n)
    spectrum = scipy.fft.rfft(series, size, axis=0)
    sums = scipy.fft.irfft(spectrum * spectrum.conj(), size, axis=0)[:n]
    return sums / np.arange(n, 0, -1).reshape(-1, *(1,) * (series.ndim - 1))


def mean_square_displacement(positions):
    """(frames,) Å^2 as a function of lag, over all time origins and atoms; entry 0 is zero.

    positions : (frames, n, 3) Å, unwrapped, equally spaced in time.
    msd(m) = <r(t)^2> + <r(t + m)^2> - 2 <r(t) . r(t + m)>, the first two by running sums.
    """
    positions = np.asarray(positions, float)
    positions = positions - positions[0]  # small numbers for the sums
    n = len(positions)
    square = (positions**2).sum(axis=2)
    total = 2 * square.sum(axis=0)
    before = np.concatenate([np.zeros((1, square.shape[1])), np.cumsum(square, axis=0)[:-1]])
    after = np.concatenate([np.zeros((1, square.shape[1])), np.cumsum(square[::-1], axis=0)[:-1]])
    both = (total - before - after) / np.arange(n, 0, -1)[:, None]
    correlation = _autocorrelation(positions).sum(axis=2)
    return np.maximum((both - 2 * correlation).mean(axis=1), 0.0)


def diffusion_coefficient(times, displacement, begin=0.1, end=0.5):
    """Slope / 6 of a straight line through msd(t), Å^2/ps (times 1e-8: m^2/s).

    begin, end : the part of the longest lag that is fitted; short lags are ballistic, long ones have
    few independent samples.  NaN for fewer than three points.
    """
    chosen = (times >= begin * times[-1]) & (times <= end * times[-1])
    if chosen.sum() < 3:
        return float("nan")
    return float(np.polyfit(times[chosen], displacement[chosen], 1)[0] / 6)


def velocity_autocorrelation(velocities, weights=None):
    """(frames,) of <v(t) . v(t + lag)> over all time origins and atoms, normalised to 1 at lag 0.

    velocities : (frames, n, 3), equally spaced in time; weights : (n,), e.g. masses, default equal.
    """
    correlation = _autocorrelation(np.asarray(velocities, float)).sum(axis=2)
    mean = np.average(correlation, axis=1, weights=weights)
    return mean / mean[0] if mean[0] != 0 else mean


def vibrational_density_of_states(velocities, interval, masses=None):
    """``(frequencies in THz, density)``: power spectrum of the velocities, of area 1.

    velocities : (frames, n, 3), every ``interval`` ps; masses : (n,) u, weights of the atoms.
    The correlation is damped by a Hann window, so that its end does not ring.
    """
    correlation = velocity_autocorrelation(velocities, masses)
    n = max(len(correlation) // 2, 1)  # longer lags are noise
    damped = correlation[:n] * 0.5 * (1 + np.cos(np.pi * np.arange(n) / n))
    density = scipy.fft.dct(damped, type=1) if n > 1 else np.ones(1)
    density = np.maximum(density, 0.0)
    frequencies = np.arange(n) / (2 * max(n - 1, 1) * interval)
    area = np.trapezoid(density, frequencies) if n > 1 else 1.0
    return frequencies, density / area if area > 0 else density


def unwrapped(structures):
    """(frames, n, 3) Å: positions of ASE Atoms as if no atom had been wrapped into the cell.

    Between frames no atom may move by more than half the cell.
    """
    positions = [structures[0].positions.copy()]
    for old, new in zip(structures[:-1], structures[1:], strict=True):
        step = new.positions - old.positions
        if new.pbc.any():
            fractions = new.cell.scaled_positions(step)
            step = step - (np.round(fractions) * new.pbc) @ new.cell.array
        positions.append(positions[-1] + step)
    return np.array(positions)


# --------------------------------------------------------------------- during a run


class AnalysisHook(Hook):
    """An analysis that gathers samples during a run and writes a CSV file with checkpoints and at its end.

    every : steps between samples; path : file; first_step : samples before it are left out; log : a
    function of text for what is found, or None.  On several ranks root does it all; ``whole`` is the
    system with everybody's atoms.
    """

    several_ranks = True

    def __init__(self, path, every, first_step=0, log=None):
        self.path, self.every, self.first_step, self.log = Path(path), every, first_step, log
        self.steps, self._next_save = [], 0.0

    def start(self, simulation):
        self._seen = None

    def __call__(self, simulation):
        step = simulation.system.step
        if step >= self.first_step and step % self.every == 0 and step != self._seen:
            self._seen = step
            self.whole = simulation.system.whole()
            if self.whole is not None:
                self.steps.append(step)
                self.sample(self.whole)

    def saved(self, simulation):
        # a run that is killed is to lose no samples; but long series take time, less than a twentieth of it
        begin = time.monotonic()
        if self.steps and begin > self._next_save:
            log, self.log = self.log, None
            self._write(simulation)
            self.log, end = log, time.monotonic()
            self._next_save = end + 20 * (end - begin)

    def finish(self, simulation):
        if self.steps:
            self._write(simulation)

    def _write(self, simulation):
        columns = self.columns(simulation)
        header = f"# {self.title}; steps {self.steps[0]} to {self.steps[-1]}, {len(self.steps)} samples"
        lines = [header, ",".join(columns)]
        lines += [",".join(f"{v:.8g}" for v in row) for row in zip(*columns.values(), strict=True)]
        self.path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def sample(self, system):
        """Take up the present state."""
        raise NotImplementedError

    def columns(self, simulation):
        """The file's columns by name, arrays of equal length."""
        raise NotImplementedError

    def _present_types(self, system):
        return [(t, name) for t, name in enumerate(system.type_names) if (system.types == t).any()]


class RadialDistributionHook(AnalysisHook):
    """Radial distribution functions g(r) and running coordination numbers n(r) of all pairs of types.

    cutoff : Å; bins : of the histogram.
    """

    title = "radial distribution"

    def __init__(self, path, every, first_step=0, log=None, cutoff=6.0, bins=200):
        super().__init__(path, every, first_step, log)
        self.cutoff, self.bins, self.counter = cutoff, bins, None

    def sample(self, system):
        if self.counter is None:
            self.counter = PairCounter(len(system.type_names), self.cutoff, self.bins)
        self.counter.add(system.positions, system.types, system.cell, system.periodic)

    def columns(self, simulation):
        g, n = self.counter.radial_distribution()
        present = self._present_types(self.whole)
        found = {"r_A": self.counter.distances}
        found |= {f"g_{a}-{b}": g[i, j] for k, (i, a) in enumerate(present) for j, b in present[k:]}
        return found | {f"n_{a}-{b}": n[i, j] for i, a in present for j, b in present}


class CoordinationHook(RadialDistributionHook):
    """How many neighbours of each type atoms have within ``cutoff`` (Å): mean and distribution."""

    title = "coordination numbers"

    def columns(self, simulation):
        present, mean = self._present_types(self.whole), self.counter.mean_coordination()
        pairs = [(f"{a}-{b}", i, j) for i, a in present for j, b in present]
        most = max((max(self.counter.coordination[i][j], default=0) for _, i, j in pairs), default=0)
        found = {"neighbours": np.arange(most + 1)}
        for name, i, j in pairs:
            seen = self.counter.coordination[i][j]
            share = np.array([seen.get(n, 0) for n in range(most + 1)], float)
            found[f"share_{name}"] = share / max(share.sum(), 1)
            if self.log:
                self.log(f"Coordination {name} within {self.cutoff:g} Å: {mean[i, j]:.3f}")
        return found


class MeanSquareDisplacementHook(AnalysisHook):
    """Mean square displacement of each type over all time origins, and diffusion coefficients.

    Displacements are relative to the centre of mass.  Keeps 24 bytes per atom and sample.
    """

    title = "mean square displacement"

    def __init__(self, path, every, first_step=0, log=None):
        super().__init__(path, every, first_step, log)
        self.positions = []

    def sample(self, system):
        positions = system.unwrapped_positions
        positions -= system.masses @ positions / system.masses.sum()
        ordered = np.empty_like(positions)
        ordered[np.argsort(np.argsort(system.ids))] = positions
        self.positions.append(ordered)

    def columns(self, simulation):
        system = self.whole
        series, types = np.array(self.positions), system.types[np.argsort(system.ids)]
        times = np.arange(len(series)) * self.every * simulation.system.timestep
        found = {"time_ps": times}
        for t, name in self._present_types(system):
            found[f"msd_{name}_A2"] = msd = mean_square_displacement(series[:, types == t])
            coefficient = diffusion_coefficient(times, msd) if len(times) > 2 else float("nan")
            if self.log and coefficient == coefficient:
                self.log(
                    f"Diffusion of {name}: {coefficient * DIFFUSION_SI:.3g} m^2/s (msd fitted from "
                    f"{0.1 * times[-1]:.3g} to {0.5 * times[-1]:.3g} ps, no finite-size correction)"
                )
        return found


class VelocityAutocorrelationHook(AnalysisHook):
    """Velocity autocorrelation of each type over all time origins.  Keeps 24 bytes per atom and sample."""

    title = "velocity autocorrelation"

    def __init__(self, path, every, first_step=0, log=None):
        super().__init__(path, every, first_step, log)
        self.velocities = []

    def sample(self, system):
        ordered = np.empty_like(system.velocities)
        ordered[np.argsort(np.argsort(system.ids))] = system.velocities
        self.velocities.append(ordered)

    def _series(self, simulation):
        order = np.argsort(self.whole.ids)
        return np.array(self.velocities), self.whole.types[order], self.whole.masses[order]

    def columns(self, simulation):
        series, types, _ = self._series(simulation)
        found = {"time_ps": np.arange(len(series)) * self.every * simulation.system.timestep}
        for t, name in self._present_types(self.whole):
            found[f"vacf_{name}"] = velocity_autocorrelation(series[:, types == t])
        return found


class VibrationalDensityHook(VelocityAutocorrelationHook):
    """Vibrational density of states, all atoms (weighted by mass) and each type."""

    title = "vibrational density of states"

    def columns(self, simulation):
        series, types, masses = self._series(simulation)
        interval = self.every * simulation.system.timestep
        frequencies, total = vibrational_density_of_states(series, interval, masses)
        found = {"frequency_THz": frequencies, "wavenumber_per_cm": frequencies * WAVENUMBER, "vdos_total": total}
        for t, name in self._present_types(self.whole):
            found[f"vdos_{name}"] = vibrational_density_of_states(series[:, types == t], interval)[1]
        return found


#: kinds of ``[[analysis]]``
KINDS = {
    "rdf": RadialDistributionHook,
    "coordination": CoordinationHook,
    "msd": MeanSquareDisplacementHook,
    "vacf": VelocityAutocorrelationHook,
    "vdos": VibrationalDensityHook,
}


def create(section, log=None, going_on_from=None):
    """The hook that a validated ``[[analysis]]`` section describes.

    going_on_from : step at which a continued run starts.  Samples of the earlier part are in its file,
    which is kept: the new one carries the step in its name.  The log says so.
    """
    path = Path(section.file or f"{section.type}.csv")
    if going_on_from is not None:
        part = path.with_name(f"{path.stem}.from{going_on_from}{path.suffix}")
        if log:
            kept = "are" if path.exists() else "should be (but it is not there)"
            log(f"  analysis    {section.type} from step {going_on_from} on: {part}; earlier samples {kept} in {path}")
        path = part
    if section.type in ("rdf", "coordination"):
        if section.cutoff_A is None:
            raise InputError(f"{section.where('type')}: {section.type} needs cutoff_A, the largest distance in Å")
        return KINDS[section.type](
            path, section.every, section.first_step, log, cutoff=section.cutoff_A, bins=section.bins
        )
    return KINDS[section.type](path, section.every, section.first_step, log)
