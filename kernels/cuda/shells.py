"""Low-rank tables for the farther neighbours.

The M outputs of an embedding are functions of one number.  Beyond a split radius a few functions
U(s) = G(s) V^T span them: V from a singular value decomposition of G over that range, as many as a
tolerance asks for.  The sharp part at short distances keeps the full table row.
"""

from dataclasses import dataclass

import numpy as np

from dpmd.models.tables import evaluate_table, quintic_coefficients, switch

from .packing import FAR_LANES

#: Å, split radii that are tried
_SPLITS = (0.0, 1.2, 1.6, 2.0, 2.4, 3.0)
#: rows of the full table that one row of the far table spans: smoother functions, fewer rows to cache
_MERGED_ROWS = 4
#: largest error of the embedding beyond the split, relative to its largest value
TOLERANCE = {"mixed": 3e-7, "half": 3e-6}


@dataclass
class Shell:
    """Basis functions beyond ``split`` (Å): see :func:`dpmd.kernels.cuda.packing.pack_embeddings`."""

    split: float
    basis: np.ndarray
    lower: float
    step: float
    coefficients: np.ndarray

    def evaluate(self, x):
        """Basis functions (n, B) at inputs ``x`` (n,)."""
        z = (np.asarray(x, float) - self.lower) / self.step
        row = np.clip(z.astype(int), 0, len(self.coefficients) - 1)
        t = (z - row)[:, None]
        a = np.moveaxis(self.coefficients[row], -1, 0)
        return a[0] + t * (a[1] + t * (a[2] + t * (a[3] + t * (a[4] + t * a[5]))))


def _inputs(descriptor, centres, r):
    """Normalised inputs of neighbours at distances r, for all centre types given."""
    weight, _ = switch(r, descriptor.switch_start, descriptor.switch_end, descriptor.switch_width)
    radial = weight / (r + descriptor.protection)
    return np.concatenate([(radial - descriptor.radial_mean[a]) / descriptor.radial_std[a] for a in centres])


def _make(descriptor, embedding, centres, split, tolerance):
    """The shell beyond ``split`` with the fewest functions (a multiple of 8), or None if many are needed."""
    table = embedding.table
    r = np.linspace(max(split, 0.3), descriptor.switch_end, 1200)
    x = _inputs(descriptor, centres, r)
    if x.max() > table.upper - 2 * _MERGED_ROWS * table.fine_step:
        return None
    values = evaluate_table(table, x)[0]
    weight = np.tile(r * r, len(centres))
    _, _, basis = np.linalg.svd(values * weight[:, None] ** 0.5, full_matrices=False)
    scale = np.abs(values).max()
    for rank in range(FAR_LANES, values.shape[1] // 2 + 1, FAR_LANES):
        V = basis[:rank]
        if np.abs(values - values @ V.T @ V).max() < tolerance * scale:
            break
    else:
        return None
    first = int(np.floor((x.min() - table.lower) / table.fine_step + 1e-9))
    first = max(first, 0)
    rows = int(np.ceil((x.max() - table.lower) / table.fine_step - first) / _MERGED_ROWS) + 1
    knots = first + _MERGED_ROWS * np.arange(rows + 1)
    if knots[-1] > table.n_fine:
        return None
    at = np.einsum("kmc,bm->ckb", table.coefficients[knots][:, :, :3], V)
    step = _MERGED_ROWS * table.fine_step
    coefficients = quintic_coefficients(at[0], at[1], 2 * at[2], np.full(rows, step)) * step ** np.arange(6)
    return Shell(split, V, table.lower + first * table.fine_step, step, coefficients)


def make_shells(model, precision):
    """A function for :func:`dpmd.kernels.cuda.packing.pack_embeddings`, or None if full tables are best.

    The split radius is the one of least cost, the number of table entries that a centre reads, with
    as many neighbours as an evenly filled ``sel`` holds.
    """
    d = model.descriptor
    if precision == "double" or d.n_embedding < 32 or any(e.table is None for e, _ in d.unique_embeddings()):
        return None
    best, least = None, d.n_embedding * 0.8
    for split in _SPLITS:
        if split > 0.6 * d.switch_end:
            continue
        near = 2 * (split / d.switch_end) ** 3 * d.n_embedding
        made = {}
        for embedding, pairs in d.unique_embeddings():
            made[id(embedding)] = _make(d, embedding, sorted({a for a, _ in pairs}), split, TOLERANCE[precision])
        if any(shell is None for shell in made.values()):
            continue
        cost = near + max(len(shell.basis) for shell in made.values())
        if cost < least:
            best, least = made, cost
    return None if best is None else lambda embedding, pairs: best[id(embedding)]
