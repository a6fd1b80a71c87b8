"""Models as read from files reproduce the results of DeePMD-kit.

A small engine of its own, in numpy, on nothing but the records: brute-force neighbours, one atom
at a time, derivatives by hand.
"""

import numpy as np
import pytest

from dpmd.models import PairRule, load
from dpmd.models.networks import derivatives_of_scalar_input, value_and_gradient

# --------------------------------------------------------------------- engine


def neighbors(coord, box, cutoff):
    """Per atom: indices of neighbours (with repetitions for images) and vectors to them (n, 3)."""
    shifts = np.zeros((1, 3))
    if len(box):
        inverse = np.linalg.inv(box)
        coord = (coord @ inverse % 1.0) @ box
        reach = np.ceil(cutoff * np.linalg.norm(inverse, axis=0)).astype(int) + 1
        shifts = np.stack(np.meshgrid(*(np.arange(-n, n + 1) for n in reach)), -1).reshape(-1, 3) @ box
    for x in coord:
        vectors = coord[:, None] + shifts - x
        distance = np.linalg.norm(vectors, axis=-1)
        found = np.argwhere((distance < cutoff) & (distance > 1e-10))
        yield found[:, 0], vectors[found[:, 0], found[:, 1]]


def switch(descriptor, r):
    """Switching function and its derivative."""
    u = np.clip((r - descriptor.switch_start) / descriptor.switch_width, 0, 1)
    value = 1 + u**3 * (-6 * u * u + 15 * u - 10)
    return value, -30 * u * u * (1 - u) ** 2 / descriptor.switch_width


def table_values(table, x):
    """Values and derivatives of a table, (n, M) each."""
    inside = np.clip(x, table.lower, np.nextafter(table.maximum, table.lower))
    fine = inside < table.upper
    row = np.where(
        fine,
        np.floor((inside - table.lower) / table.fine_step),
        table.n_fine + np.floor((inside - table.upper) / table.coarse_step),
    ).astype(int)
    row = np.clip(row, 0, len(table.coefficients) - 1)
    start = np.where(
        fine,
        table.lower + row * table.fine_step,
        table.upper + (row - table.n_fine) * table.coarse_step,
    )
    dx = (np.clip(x, table.lower, table.maximum) - start)[:, None]
    a = np.moveaxis(table.coefficients[row], -1, 0)
    value = a[0] + dx * (a[1] + dx * (a[2] + dx * (a[3] + dx * (a[4] + dx * a[5]))))
    slope = a[1] + dx * (2 * a[2] + dx * (3 * a[3] + dx * (4 * a[4] + dx * 5 * a[5])))
    return value + (x - np.clip(x, table.lower, table.maximum))[:, None] * slope, slope


def embedded(embedding, x):
    if embedding.table is not None:
        return table_values(embedding.table, x)
    return derivatives_of_scalar_input(embedding.network, x)[:2]


def atom(model, centre, types, vectors, frame_parameters, atom_parameters):
    """Energy of one atom and its derivatives (n, 3) with respect to the vectors to its neighbours."""
    d, f = model.descriptor, model.fitting
    if centre in f.silent_types:
        return 0.0, np.zeros_like(vectors)
    r = np.linalg.norm(vectors, axis=1)
    w, dw = switch(d, r)
    q = r + d.protection
    v, dv = w / q**2, dw / q**2 - 2 * w / q**3
    rows = np.concatenate([(w / q)[:, None], v[:, None] * vectors], axis=1)
    scale = np.array([d.radial_std[centre]] + 3 * [d.angular_std[centre]])
    rows = (rows - [d.radial_mean[centre], 0, 0, 0]) / scale
    empty = -d.radial_mean[centre] / d.radial_std[centre]

    g, dg = np.zeros((2, len(r), d.n_embedding))
    total = np.zeros((d.n_embedding, 4))
    for neighbor, sel in enumerate(d.sel):
        rule = d.pair_rules[centre, neighbor]
        if rule == PairRule.SKIPPED:
            continue
        embedding = d.embeddings[centre][neighbor]
        here = types == neighbor
        assert here.sum() <= sel, "no reference structure fills the slots"
        if rule == PairRule.INCLUDED:
            g[here], dg[here] = embedded(embedding, rows[here, 0])
        slots = sel if rule == PairRule.REMOVED else sel - here.sum()
        total[:, 0] += slots * empty * embedded(embedding, np.array([empty]))[0][0]
    total = (total + g.T @ rows) / d.neighbor_count

    head = total[: d.axis_neuron]
    inputs = np.concatenate([(total @ head.T).ravel(), frame_parameters, atom_parameters])[None]
    (energy,), gradient = value_and_gradient(f.networks[centre], inputs)
    if f.subtract_vacuum[centre]:
        inputs[:, : d.n_out] = 0
        energy -= value_and_gradient(f.networks[centre], inputs)[0][0]
    gradient = gradient[0, : d.n_out].reshape(d.n_embedding, d.axis_neuron)
    back = gradient @ head
    back[: d.axis_neuron] += gradient.T @ total
    row_gradient = g @ back
    row_gradient[:, 0] += np.einsum("nc,nc->n", rows, dg @ back)
    row_gradient /= d.neighbor_count * scale

    unit = vectors / r[:, None]
    along = row_gradient[:, 0] * (dw / q - w / q**2) + np.einsum("nc,nc->n", row_gradient[:, 1:], vectors) * dv
    return energy + f.energy_bias[centre], along[:, None] * unit + v[:, None] * row_gradient[:, 1:]


def evaluate(model, coord, box, types, fparam=None, aparam=None):
    """Energies (N,), forces (N, 3) and virials (N, 3, 3) per atom."""
    f = model.fitting
    frame = (np.ravel(fparam) - f.fparam_mean) * f.fparam_inverse_std if f.n_fparam else np.zeros(0)
    energies, forces, virials = np.zeros(len(types)), np.zeros((len(types), 3)), np.zeros((len(types), 3, 3))
    for i, (index, vectors) in enumerate(neighbors(coord, box, model.cutoff)):
        own = (aparam[i] - f.aparam_mean) * f.aparam_inverse_std if f.n_aparam else np.zeros(0)
        energies[i], g = atom(model, types[i], types[index], vectors, frame, own)
        forces[i] += g.sum(0)
        np.subtract.at(forces, index, g)
        np.subtract.at(virials, index, g[:, :, None] * vectors[:, None, :])
    return energies, forces, virials


def evaluate_case(model, reference):
    n = len(reference["atype"])
    aparam = reference["aparam"].reshape(n, -1) if "aparam" in reference else None
    return evaluate(
        model, reference["coord"], reference["box"], reference["atype"], reference.get("fparam"), aparam
    )  # fmt: skip


# --------------------------------------------------------------------- tests


def assert_agrees(model, reference):
    # a single-precision model differs by the rounding of whoever evaluates it
    tolerance = 1e-9 if model.precision == "float64" else 5e-5
    energies, forces, virials = evaluate_case(model, reference)
    np.testing.assert_allclose(energies, reference["atom_energy"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(forces, reference["force"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(virials.reshape(-1, 9), reference["atom_virial"], rtol=0, atol=tolerance)


SMALL = ["wsmall24_6.2A", "wsmall3_3.2A", "wcluster60_nopbc", "oneO_nopbc", "oneH_pbc20", "onlyO_4x_nopbc",
         "cu4_conv", "cu1_prim", "one_nopbc", "dimer_nopbc"]  # fmt: skip


@pytest.mark.reference_cases(structures=SMALL)
def test_small_structures(reference_case):
    assert_agrees(load(reference_case.model), reference_case.load())


@pytest.mark.reference_cases(models=["water_md0", "water_md0_c", "f_exclude_c"], structures=["wtri192_rotated", "w192"])
def test_larger_structures(reference_case):
    assert_agrees(load(reference_case.model), reference_case.load())


def test_every_model_has_a_reference(find_cases):
    names = {case.model.name for case in find_cases(structures=[*SMALL, "w192"])}
    expected = {"water_md0.pb", "water_md0.dp", "water_md0.pth", "water_md1.pb", "water_md2.pb", "water_md3.pb",
                "water_md0_c.pb", "water_md0_c.pth", "f_onesideF.dp", "f_onesideF.pth", "f_exclude.dp",
                "f_exclude.pth", "f_exclude_c.pb", "f_faparam.dp", "f_faparam.pth", "f_resnetdt.pb", "f_rect_nets.pb",
                "f_linear_tanh.pb", "f_relu6.pb", "f_atomener.pb", "f_float32.pb", "water.dp", "copper.dp"}  # fmt: skip
    assert expected <= names


def test_the_comparison_notices_small_errors(find_model, find_cases):
    (case,) = find_cases(models=["f_resnetdt"], structures=["oneO_nopbc"])
    model = load(find_model("f_resnetdt.pb"))
    model.fitting.networks[0].layers[0].weight[:] *= 1 + 1e-6
    with pytest.raises(AssertionError):
        assert_agrees(model, case.load())
