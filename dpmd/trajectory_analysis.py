"""Structure and motion of a simulation: RDF, coordination, MSD and diffusion, VACF and vibrations.

Functions take arrays or lists of ASE Atoms and can be used on any trajectory; the classes at the end do
the same during a run, as hooks (``[[analysis]]`` in an input file).

Correlations over all time origins are sums over the whole series; they are computed by fast Fourier
transforms (scipy.fft), in N log N.  Sources: M. P. Allen, D. J. Tildesley, "Computer Simulation of
Liquids" (2017), chapters 2.6, 2.7 and 8; G. R. Kneller et al., Comput. Phys. Commun. 91, 191 (1995).
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.fft

from dpmd.kernels.neighbors import NeighborListBuilder
from dpmd.models.files import write_text
from dpmd.parallel.batch import Batch
from dpmd.parallel.domain import complete_cell

from .errors import InputError
from .simulation import Hook

#: m^2/s per Å^2/ps
DIFFUSION_SI = 1e-8
#: 1/cm per THz
WAVENUMBER = 33.35640951981521
#: blocks of a series from whose slopes a diffusion coefficient and its error come
DIFFUSION_BLOCKS = 8


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

    def state(self):
        """All counts, as named arrays."""
        most = max((n for row in self.coordination for seen in row for n in seen), default=0)
        coordination = np.zeros((self.n_types, self.n_types, most + 1), np.int64)
        for a, row in enumerate(self.coordination):
            for b, seen in enumerate(row):
                coordination[a, b, list(seen)] = list(seen.values())
        return {
            "counts": self.counts, "coordination": coordination, "density": self.density, "atoms": self.atoms,
            "frames": np.array(self.frames),
        }  # fmt: skip

    def restore(self, state):
        """Go on from what :meth:`state` returned."""
        self.counts, self.density, self.atoms = (np.array(state[name]) for name in ("counts", "density", "atoms"))
        self.frames = int(state["frames"])
        self.coordination = [
            [{n: int(row[n]) for n in np.flatnonzero(row).tolist()} for row in rows] for rows in state["coordination"]
        ]

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


@dataclass(frozen=True)
class Diffusion:
    """A diffusion coefficient and its standard error, Å^2/ps (times 1e-8: m^2/s).

    begin, end : ps, the lags of the msd whose slope it is; reason : why there is none (then it is NaN), else "".
    """

    coefficient: float = math.nan
    error: float = math.nan
    begin: float = math.nan
    end: float = math.nan
    reason: str = ""


def diffusion_coefficient(positions, interval):
    """Slope / 6 of a straight line through the mean square displacement, as :class:`Diffusion`.

    positions : (frames, n, 3) Å, unwrapped; interval : ps between frames.
    The series is cut into 8 blocks.  Each gives a slope, between the lag at which free flight has ended (doubling
    the lag multiplies the msd by less than 2^1.15; 2^2 in free flight) and half its length; their mean and its
    standard error are returned (D. Frenkel, B. Smit, "Understanding Molecular Simulation" (2002), chapter 4.4
    and appendix D.3).  No coefficient is given where that lag is not reached, or not left behind by a factor of
    two, or where the line is not straight: where the slopes of its halves differ by more than a fifth and three
    standard errors.
    """
    positions = np.asarray(positions, float)
    length = len(positions) // DIFFUSION_BLOCKS
    last = length // 2
    if last < 6:
        return Diffusion(reason=f"{len(positions)} samples are too few; it takes {12 * DIFFUSION_BLOCKS}")
    first = len(positions) - DIFFUSION_BLOCKS * length
    blocks = positions[first:].reshape(DIFFUSION_BLOCKS, length, *positions.shape[1:])
    msd = np.array([mean_square_displacement(block)[: last + 1] for block in blocks])
    mean = np.maximum(msd.mean(axis=0), 1e-300)
    lags = np.arange(1, last // 2 + 1)
    exponents = np.log2(mean[2 * lags] / mean[lags])
    diffusive = np.flatnonzero(exponents <= 1.15)
    here = f"lags reach to {last * interval:.3g} ps, a {2 * DIFFUSION_BLOCKS}th of the run"
    if not len(diffusive):
        return Diffusion(
            reason=f"atoms still fly freely: the msd grows as t^{exponents[-1]:.2g} ({here}); the run is too short"
        )
    begin = int(lags[diffusive[0]])
    times = interval * np.arange(last + 1)

    def slopes(start, stop):
        t = times[start : stop + 1] - times[start : stop + 1].mean()
        return msd[:, start : stop + 1] @ t / (t @ t)

    def standard_error(values):
        return values.std(ddof=1) / math.sqrt(len(values))

    whole, middle = slopes(begin, last), (begin + last) // 2
    bend = slopes(middle, last) - slopes(begin, middle)
    if abs(bend.mean()) > max(3 * standard_error(bend), 0.2 * abs(whole.mean())):
        return Diffusion(
            reason=f"the msd is not a straight line from {times[begin]:.3g} ps on ({here}); the run is too short"
        )
    return Diffusion(whole.mean() / 6, standard_error(whole) / 6, float(times[begin]), float(times[last]))


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


def _first_line(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.readline().rstrip("\n")


class _Series:
    """Rows of one shape, to which others are added; ``rows`` (n, ...) is a view of them."""

    def __init__(self):
        self._room, self._n = None, 0

    def append(self, row):
        if self._room is None:
            self._room = np.empty((16, *row.shape))
        if self._n == len(self._room):
            self._room = np.concatenate([self._room, np.empty_like(self._room)])
        self._room[self._n] = row
        self._n += 1

    @property
    def rows(self):
        return self._room[: self._n]

    @rows.setter
    def rows(self, rows):
        self._room, self._n = np.array(rows, float), len(rows)


class AnalysisHook(Hook):
    """An analysis that gathers samples during a run and writes a CSV file with checkpoints and at its end.

    every : steps between samples; path : file; first_step : samples before it are left out; log : a
    function of text for what is found, or None.  On several ranks root does it all; ``whole`` is the
    system with everybody's atoms.

    The samples are part of checkpoints (:meth:`state`, :meth:`restore`), so that a run that goes on from one writes
    the file that an unstopped run writes.
    """

    several_ranks = True
    #: of each sample that is kept, in memory and in checkpoints
    bytes_per_atom = 0

    def __init__(self, path, every, first_step=0, log=None):
        self.path, self.every, self.first_step, self.log = Path(path), every, first_step, log
        self.steps, self._next_save = [], 0.0
        #: samples in the file
        self._written = 0

    @property
    def format(self):
        """What samples are taken; those of another kind cannot be added to them."""
        return f"{self.title} (every = {self.every}, first_step = {self.first_step})"

    def position(self):
        """Samples so far."""
        return len(self.steps)

    def state(self):
        """The samples, as named arrays."""
        return {"steps": np.array(self.steps, np.int64)}

    def restore(self, state):
        """Go on from the samples that :meth:`state` returned."""
        self.steps = state["steps"].tolist()

    def start(self, simulation):
        self._seen, self.whole = None, simulation.system.whole()

    def __call__(self, simulation):
        step = simulation.system.step
        if step >= self.first_step and step % self.every == 0 and step != self._seen:
            self._seen = step
            self.whole = simulation.system.whole()
            if self.whole is not None:
                self.steps.append(step)
                self.sample(self.whole)

    def saving(self, simulation, last):
        # long series take time, which is to be less than a twentieth of the run's
        begin = time.monotonic()
        if last or begin > self._next_save:
            self._write(simulation)
            end = time.monotonic()
            self._next_save = end + 20 * (end - begin)

    def finish(self, simulation):
        self._write(simulation)
        if self.steps and self.log:
            for text in self.findings(simulation):
                self.log(text)

    def complete(self, simulation):
        """Write the file where a run that was killed after its last checkpoint has left none, or an older one."""
        self.start(simulation)
        if self.steps and not (self.path.exists() and self._header() == _first_line(self.path)):
            self._write(simulation)
            self.log(f"{self.path} was written from the samples of the checkpoint")

    def _header(self):
        return f"# {self.title}; steps {self.steps[0]} to {self.steps[-1]}, {len(self.steps)} samples"

    def _write(self, simulation):
        if len(self.steps) == self._written:
            return
        columns = self.columns(simulation)
        lines = [self._header(), ",".join(columns)]
        lines += [",".join(f"{v:.8g}" for v in row) for row in zip(*columns.values(), strict=True)]
        write_text(self.path, "\n".join(lines) + "\n")
        self._written = len(self.steps)

    def findings(self, simulation):
        """Sentences for the log at the end."""
        return ()

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

    @property
    def format(self):
        return f"{super().format[:-1]}, cutoff_A = {self.cutoff:g}, bins = {self.bins})"

    def state(self):
        return super().state() | (self.counter.state() if self.counter else {})

    def restore(self, state):
        super().restore(state)
        if self.steps:
            self.counter = PairCounter(len(state["atoms"]), self.cutoff, self.bins)
            self.counter.restore(state)

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
        present = self._present_types(self.whole)
        pairs = [(f"{a}-{b}", i, j) for i, a in present for j, b in present]
        most = max((max(self.counter.coordination[i][j], default=0) for _, i, j in pairs), default=0)
        found = {"neighbours": np.arange(most + 1)}
        for name, i, j in pairs:
            seen = self.counter.coordination[i][j]
            share = np.array([seen.get(n, 0) for n in range(most + 1)], float)
            found[f"share_{name}"] = share / max(share.sum(), 1)
        return found

    def findings(self, simulation):
        present, mean = self._present_types(self.whole), self.counter.mean_coordination()
        for i, a in present:
            for j, b in present:
                yield f"Coordination {a}-{b} within {self.cutoff:g} Å: {mean[i, j]:.3f}"


class _SeriesHook(AnalysisHook):
    """Keeps a vector of every atom, in id order."""

    bytes_per_atom = 24

    def __init__(self, path, every, first_step=0, log=None):
        super().__init__(path, every, first_step, log)
        self.series = _Series()

    def state(self):
        return super().state() | ({"series": self.series.rows} if self.steps else {})

    def restore(self, state):
        super().restore(state)
        if self.steps:
            self.series.rows = state["series"]

    def sample(self, system):
        vectors = self.vectors(system)
        ordered = np.empty_like(vectors)
        ordered[np.argsort(np.argsort(system.ids))] = vectors
        self.series.append(ordered)

    def vectors(self, system):
        """What is kept, (n, 3), in the order of ``system``."""
        raise NotImplementedError

    def _by_type(self):
        """``(name, (samples, n, 3))`` of each type."""
        types = self.whole.types[np.argsort(self.whole.ids)]
        for t, name in self._present_types(self.whole):
            yield name, self.series.rows[:, types == t]

    def _times(self, simulation):
        """(samples,) ps, from 0 on."""
        return np.arange(len(self.steps)) * self.every * simulation.system.timestep


class MeanSquareDisplacementHook(_SeriesHook):
    """Mean square displacement of each type over all time origins, and diffusion coefficients.

    Displacements are relative to the centre of mass, if there is more than one atom.
    """

    title = "mean square displacement"

    def vectors(self, system):
        positions = system.unwrapped_positions
        if len(positions) > 1:
            positions -= system.masses @ positions / system.masses.sum()
        return positions

    def columns(self, simulation):
        found = {"time_ps": self._times(simulation)}
        return found | {f"msd_{name}_A2": mean_square_displacement(series) for name, series in self._by_type()}

    def findings(self, simulation):
        for name, series in self._by_type():
            found = diffusion_coefficient(series, self.every * simulation.system.timestep)
            if found.reason:
                yield f"Diffusion of {name}: cannot be given: {found.reason}"
                continue
            value, error = found.coefficient * DIFFUSION_SI, found.error * DIFFUSION_SI
            yield (
                f"Diffusion of {name}: {value:.3g} +- {error:.2g} m^2/s "
                f"(slope of the msd from {found.begin:.3g} to {found.end:.3g} ps in {DIFFUSION_BLOCKS} blocks, "
                "no finite-size correction)"
            )


class VelocityAutocorrelationHook(_SeriesHook):
    """Velocity autocorrelation of each type over all time origins."""

    title = "velocity autocorrelation"

    def vectors(self, system):
        return system.velocities

    def columns(self, simulation):
        found = {"time_ps": self._times(simulation)}
        return found | {f"vacf_{name}": velocity_autocorrelation(series) for name, series in self._by_type()}


class VibrationalDensityHook(VelocityAutocorrelationHook):
    """Vibrational density of states, all atoms (weighted by mass) and each type."""

    title = "vibrational density of states"

    def columns(self, simulation):
        interval, masses = self.every * simulation.system.timestep, self.whole.masses[np.argsort(self.whole.ids)]
        frequencies, total = vibrational_density_of_states(self.series.rows, interval, masses)
        found = {"frequency_THz": frequencies, "wavenumber_per_cm": frequencies * WAVENUMBER, "vdos_total": total}
        for name, series in self._by_type():
            found[f"vdos_{name}"] = vibrational_density_of_states(series, interval)[1]
        return found


#: kinds of ``[[analysis]]``
KINDS = {
    "rdf": RadialDistributionHook,
    "coordination": CoordinationHook,
    "msd": MeanSquareDisplacementHook,
    "vacf": VelocityAutocorrelationHook,
    "vdos": VibrationalDensityHook,
}


def output_path(section):
    """Where a validated ``[[analysis]]`` section writes.  Raises InputError if it lacks something."""
    if section.type == "coordination" and section.cutoff_A is None:
        raise InputError(
            f"{section.where('type')}: coordination needs cutoff_A, up to which distance in Å an atom is a neighbour"
        )
    return Path(section.file or f"{section.type}.csv")


def create(section, cutoff, log=None):
    """The hook that a validated ``[[analysis]]`` section describes; cutoff : Å, the model's."""
    more = {}
    if section.type in ("rdf", "coordination"):
        more = {"cutoff": section.cutoff_A or cutoff, "bins": section.bins}
    return KINDS[section.type](output_path(section), section.every, section.first_step, log, **more)
