"""A model's parameters as the CUDA kernels read them."""

from dataclasses import dataclass

import numpy as np

from dpmd.models import ModelError, Network, PairRule
from dpmd.models.networks import activation, evaluate, silut_constants, value_and_gradient
from dpmd.models.tables import evaluate_table, radius_of_input

from .device import HALF, PLAIN, SPLIT

_activations = ("linear", "tanh", "relu", "relu6", "softplus", "sigmoid", "gelu", "silu")
_skips = {"none": 0, "add": 1, "double": 2}
#: lanes that share a neighbour nearer and farther than the split radius
NEAR_LANES, FAR_LANES = 32, 8


def activation_code(name):
    """Number and parameters ``(code, (threshold, slope, offset))`` of a canonical activation name."""
    if name.startswith("silut:"):
        threshold = float(name.split(":")[1])
        return len(_activations), (threshold, *silut_constants(threshold))
    return _activations.index(name), (0.0, 0.0, 0.0)


def even(n):
    """``n`` rounded up to an even number."""
    return (n + 1) // 2 * 2


def fours(n):
    """``n`` rounded up to a multiple of four, as layers of networks are."""
    return (n + 3) // 4 * 4


# --------------------------------------------------------------------- tables


def arrange(coefficients, lanes):
    """Coefficients (rows, outputs, 6) in the order in which lanes read them: (rows, 6 per lanes).

    Output m = lane + lanes p: c0..c3 at [p][lane], after all of those c4, c5 at [p][lane].
    """
    rows, outputs, _ = coefficients.shape
    per = -(-outputs // lanes)
    padded = np.zeros((rows, per * lanes, 6))
    padded[:, :outputs] = coefficients
    return np.concatenate([padded[:, :, :4].reshape(rows, -1), padded[:, :, 4:].reshape(rows, -1)], axis=1)


def scaled_rows(table):
    """Coefficients (rows + 2, M, 6) in powers of the fraction of a row.

    The two extra rows continue the table linearly below and above, in powers of the distance.
    """
    rows = len(table.coefficients)
    step = np.where(np.arange(rows) < table.n_fine, table.fine_step, table.coarse_step)
    scaled = np.zeros((rows + 2, *table.coefficients.shape[1:]))
    scaled[:rows] = table.coefficients * step[:, None, None] ** np.arange(6)
    for row, x in ((rows, table.lower), (rows + 1, table.maximum)):
        value, slope = evaluate_table(table, np.array([x]))
        scaled[row, :, 0], scaled[row, :, 1] = value[0], slope[0]
    return scaled


@dataclass
class Embeddings:
    """Arrays that ``embedding.cu`` takes; T types, M outputs, B basis functions of the far shells.

    near, far : tables, rows as :func:`arrange` makes them; pair_numbers (T, T, 8), pair_integers
    (T, T, 8), columns named in ``embedding.cu``; padding (T, T, M) what an empty slot adds;
    expansion (T, T, B, M); networks : exact embedding networks, in the order of NETWORK.
    """

    near: np.ndarray
    far: np.ndarray
    pair_numbers: np.ndarray
    pair_integers: np.ndarray
    padding: np.ndarray
    expansion: np.ndarray
    networks: list


def far_table(functions):
    """Coefficients (rows, B, 6) of the fine section of a table, in powers of the fraction of a step."""
    return functions.coefficients[: functions.n_fine] * functions.fine_step ** np.arange(6)


def pack_embeddings(descriptor, precision=None):
    """Pack the embeddings of a descriptor, see :class:`Embeddings`.

    precision : whose low-rank bases to use where the model has any; None for full table rows.
    """
    n, width = descriptor.n_types, descriptor.n_embedding
    numbers, integers = np.zeros((n, n, 8)), np.zeros((n, n, 8), np.int32)
    integers[:, :, 0], integers[:, :, 1], integers[:, :, 7] = PairRule.SKIPPED, np.array(descriptor.sel), -1
    numbers[:, :, 5] = np.inf
    padding = np.zeros((n, n, width))
    near, far, networks, near_rows, far_rows = [], [], [], 0, 0
    unique = descriptor.unique_embeddings()
    bases = [embedding.basis(precision) if precision else None for embedding, _ in unique]
    n_basis = max((-(-basis.rank // FAR_LANES) * FAR_LANES for basis in bases if basis), default=0)
    expansion = np.zeros((n, n, n_basis, width))
    for (embedding, pairs), basis in zip(unique, bases, strict=True):
        table, network = embedding.table, -1
        if table is not None:
            near.append(arrange(scaled_rows(table), NEAR_LANES))
        else:
            network = len(networks)
            networks.append(embedding.network)
        for a, b in pairs:
            if descriptor.sel[b] == 0:
                continue
            integers[a, b, 0], integers[a, b, 7] = descriptor.pair_rules[a, b], network
            empty = np.array([-descriptor.radial_mean[a] / descriptor.radial_std[a]])
            if table is None:
                padding[a, b] = empty * evaluate(embedding.network, empty[:, None])[0]
                continue
            numbers[a, b, :5] = table.lower, table.upper, table.maximum, 1 / table.fine_step, 1 / table.coarse_step
            integers[a, b, 2:5] = near_rows, table.n_fine, len(table.coefficients) - table.n_fine
            if basis is None:
                padding[a, b] = empty * evaluate_table(table, empty)[0][0]
                continue
            functions = basis.functions
            radius = radius_of_input(descriptor, a, min(basis.split, functions.upper))
            numbers[a, b, 5:] = radius**2, functions.lower, 1 / functions.fine_step
            integers[a, b, 5:7] = far_rows, functions.n_fine
            expansion[a, b, : basis.rank] = basis.expansion
            padding[a, b] = empty * (evaluate_table(functions, empty)[0][0] @ basis.expansion)
        if table is not None:
            near_rows += len(near[-1])
        if basis is not None:
            coefficients = np.zeros((basis.functions.n_fine, n_basis, 6))
            coefficients[:, : basis.rank] = far_table(basis.functions)
            far.append(arrange(coefficients, FAR_LANES))
            far_rows += len(far[-1])
    return Embeddings(
        near=np.concatenate(near) if near else np.zeros((1, 6)),
        far=np.concatenate(far) if far else np.zeros((1, 6)),
        pair_numbers=numbers, pair_integers=integers, padding=padding, expansion=expansion, networks=networks,
    )  # fmt: skip


def pack_exact_networks(networks, dtype):
    """Weights (flat), layers (n, 8) int32, activation parameters (n, 3), first layer of each network."""
    weights, layers, parameters, first, offset = [], [], [], [0], 0

    def put(array):
        nonlocal offset
        weights.append(np.ascontiguousarray(array, dtype).ravel())
        offset += weights[-1].size
        return offset - weights[-1].size

    for network in networks:
        for layer in network.layers:
            if max(layer.n_in, layer.n_out) > 256:
                raise ModelError("exact embedding networks wider than 256 do not run on a GPU; use --device cpu")
            code, extra = activation_code(layer.activation)
            timestep = -1 if layer.timestep is None else put(layer.timestep)
            row = [put(layer.weight), layer.n_in, layer.n_out, put(layer.bias), timestep, _skips[layer.skip], code, 0]
            layers.append(row)
            parameters.append(extra)
        first.append(len(layers))
    return np.concatenate(weights), np.array(layers, np.int32), np.array(parameters), np.array(first, np.int32)


# --------------------------------------------------------------------- fitting networks


def _bf16(array):
    """float32 array rounded to bf16: (bits as uint16, rounded values)."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    high = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return high, (high.astype(np.uint32) << 16).view(np.float32)


def pack_weight(weight, kind, dtype):
    """A weight (k, n) for :meth:`CudaDevice.multiply`.

    SPLIT: (3 k, n), lo, hi, hi of the weight, for inputs hi, lo, hi: the small products come first, since
    matrix units cut off, not round, what is added to a large sum.
    """
    if kind == PLAIN:
        return np.ascontiguousarray(weight, dtype)
    if kind == HALF:
        return np.ascontiguousarray(weight, np.float16).view(np.uint16)
    high, rounded = _bf16(weight)
    low, _ = _bf16(np.asarray(weight, np.float32) - rounded)
    return np.concatenate([low, high, high])


@dataclass
class HiddenLayer:
    """A hidden layer, widths multiples of 4: weight (k, n) and its transpose as :func:`pack_weight` gives them."""

    weight: np.ndarray
    transposed: np.ndarray
    bias: np.ndarray
    timestep: np.ndarray | None
    code: int
    parameters: np.ndarray
    skip: int
    n_in: int
    n_out: int


@dataclass
class FittingNetwork:
    """Hidden layers, the weights (width,) of the last layer and its bias (eV).

    Of HALF, None else: reference (d_stride,) is subtracted from the descriptor, whose product is in the first
    layer's bias; slope_reference (width,) from what goes back through the first layer, whose product
    gradient_reference (d_stride,) is added to the gradient.
    """

    layers: list
    top: np.ndarray
    bias: float
    reference: np.ndarray | None = None
    slope_reference: np.ndarray | None = None
    gradient_reference: np.ndarray | None = None


def _pad(array, *shape):
    padded = np.zeros(shape)
    padded[tuple(slice(0, s) for s in array.shape)] = array
    return padded


def _arrange_inputs(rows, descriptor, n_extra, d_stride):
    """Rows (M A + n_extra, ...) by the inputs of a file as those of the kernels, (d_stride, ...)."""
    width, axis, m_even = descriptor.n_embedding, descriptor.axis_neuron, even(descriptor.n_embedding)
    arranged = np.zeros((d_stride, *rows.shape[1:]))
    by_axis = rows[: width * axis].reshape(width, axis, -1)
    for a in range(axis):
        arranged[a * m_even : a * m_even + width] = by_axis[:, a].reshape(width, *rows.shape[1:])
    arranged[axis * m_even : axis * m_even + n_extra] = rows[width * axis :]
    return arranged


def pack_fitting(network, descriptor, n_extra, d_stride, kind, dtype, reference=None):
    """A fitting network whose first layer takes rows of ``d_stride`` (descriptor, then extra inputs).

    reference : (M A,) for HALF, a descriptor about which the first layer's products are taken, so that only
    differences from it are rounded: D W + b = (D - D0) W + (D0 W + b), and the same for h W^T backwards.  An
    energy is a small difference of large sums, which 11 bits of the whole descriptor are too few for (copper:
    0.9 meV/atom and 100 bar; about the reference a sixth of that).  Later layers do not need it.

    Raises ModelError for shapes that the kernels do not know.
    """
    *hidden, last = network.layers
    if last.n_out != 1 or last.activation != "linear" or last.skip != "none" or not hidden:
        raise ModelError("fitting networks must end with one linear output to run on a GPU; use --device cpu")
    layers, references = [], {}
    for number, layer in enumerate(hidden):
        n_in, n_out, bias = fours(layer.n_in), fours(layer.n_out), layer.bias
        if number == 0:
            if layer.skip != "none":
                raise ModelError("a fitting network whose first layer has a skip does not run on a GPU")
            weight = np.zeros((d_stride, n_out))
            weight[:, : layer.n_out] = _arrange_inputs(layer.weight, descriptor, n_extra, d_stride)
            n_in = d_stride
            if reference is not None:
                inputs = np.concatenate([reference, np.zeros(n_extra)])
                references, bias = _references(network, inputs, weight)
                references["reference"] = _arrange_inputs(inputs, descriptor, n_extra, d_stride)
        else:
            if layer.skip == "double" and layer.n_in % 4:
                raise ModelError(
                    "a doubling layer whose width is no multiple of 4 does not run on a GPU; use --device cpu"
                )
            weight = _pad(layer.weight, n_in, n_out)
        code, parameters = activation_code(layer.activation)
        layers.append(
            HiddenLayer(
                weight=pack_weight(weight, kind, dtype),
                transposed=pack_weight(np.ascontiguousarray(weight.T), kind, dtype),
                bias=_pad(bias, n_out).astype(dtype),
                timestep=None if layer.timestep is None else _pad(layer.timestep, n_out).astype(dtype),
                code=code, parameters=np.array(parameters), skip=_skips[layer.skip], n_in=n_in, n_out=n_out,
            )
        )  # fmt: skip
    scale = 1.0 if last.timestep is None else float(last.timestep[0])
    top = _pad(last.weight[:, 0] * scale, fours(last.n_in)).astype(dtype)
    references = {name: array.astype(dtype) for name, array in references.items()}
    return FittingNetwork(layers, top, float(last.bias[0]) * scale, **references)


def _references(network, inputs, weight):
    """What goes back through the first layer at ``inputs`` and its product, and the layer's bias with D0 W.

    weight : (d_stride, n_out) of the first layer, arranged and padded.
    """
    first, *above = network.layers
    z = inputs[None] @ first.weight + first.bias
    value, slope, _ = activation(first.activation)(z)
    if first.timestep is not None:
        value, slope = value * first.timestep, slope * first.timestep
    _, gradient = value_and_gradient(Network(tuple(above)), value)
    slope_reference = _pad((gradient * slope)[0], weight.shape[1])
    return {"slope_reference": slope_reference, "gradient_reference": weight @ slope_reference}, z[0]


__all__ = ["SPLIT", "Embeddings", "FittingNetwork", "pack_embeddings", "pack_exact_networks", "pack_fitting"]
