"""A model's parameters as flat arrays of one floating-point type, for compiled kernels."""

from dataclasses import dataclass

import numpy as np

from dpmd.models import DenseLayer, Network, PairRule
from dpmd.models.lowrank import with_outputs_first
from dpmd.models.networks import evaluate
from dpmd.models.tables import evaluate_table, radius_of_input

from .activations import activation_code
from .matrix import pack_matrix, pack_matrix_half
from .simd import aligned_zeros, lanes, round_up

#: how much a change of basis may magnify rounding
_LARGEST_CONDITION = {"float64": 1e4, "float32": 200.0}
#: layers with fewer inputs or outputs gain nothing from bfloat16
_SMALLEST_HALF = 32
_skips = {"none": 0, "add": 1, "double": 2}

# columns of a layer's row in PackedNetworks.layers: places of the packed W and W^T, sizes, ...
FORWARD, BACKWARD, N_IN, N_OUT, WIDTH_IN, WIDTH_OUT, BIAS, TIMESTEP, SKIP, ACTIVATION = range(10)
HALF_FORWARD, HALF_BACKWARD = 10, 11  # places of W and W^T in bfloat16, or -1
STEP = 12  # rows of W that the tiles of a product go through together
# columns of a segment's row in PackedModel.segments: place of the table, first column of its features
BASE, WIDTH, COLUMN, N_FINE, N_COARSE = range(5)
# and of its numbers
LOWER, UPPER, MAXIMUM, INVERSE_FINE, INVERSE_COARSE = range(5)
# columns of a centre type's rows, for centres without and with near neighbours: is the descriptor made of far
# features, their width, number of features and rows of the descriptor, places of V and V^T, fitting network
FOLDED, FAR_WIDTH, FEATURES, AXIS, EXPAND, CONTRACT, FITTING_NETWORK = range(7)


class _Numbers:
    """Arrays put one after another."""

    def __init__(self, dtype):
        self.dtype, self.parts, self.size = dtype, [], 0

    def put(self, array):
        """Append ``array``, flattened; returns where it begins."""
        self.parts.append(np.ascontiguousarray(array, self.dtype).ravel())
        self.size += self.parts[-1].size
        return self.size - self.parts[-1].size

    def joined(self):
        result = aligned_zeros(self.size + 64, self.dtype)  # vectors may be read past the end
        np.concatenate([*self.parts, np.zeros(64, self.dtype)], out=result)
        return result


@dataclass
class PackedNetworks:
    """Networks in one flat array.

    numbers : packed weights, biases and timesteps; half : int32, weights in bfloat16, or None;
    layers : (layers, 13) int64, see above; activation_parameters : (layers, 3);
    first : (networks + 1,) first layer of each network.
    """

    numbers: np.ndarray
    half: np.ndarray | None
    layers: np.ndarray
    activation_parameters: np.ndarray
    first: np.ndarray


def pack_networks(networks, dtype, numbers=None, half=False, step=1024):
    """Pack a list of :class:`dpmd.models.Network`; None entries get no layers.

    numbers : a :class:`_Numbers` to append to; half : also pack large weights in bfloat16;
    step : see :func:`dpmd.kernels.cpu.matrix.multiply`.
    """
    lane = lanes(np.dtype(dtype))
    numbers, halves = numbers or _Numbers(dtype), _Numbers(np.int32)
    layers, parameters, first = [], [], [0]
    for network in networks:
        for layer in network.layers if network is not None else ():
            code, extra = activation_code(layer.activation)
            width_in, width = round_up(layer.n_in, lane), round_up(layer.n_out, lane)
            padding = (0, width - layer.n_out)
            in_half = (-1, -1)
            if half and min(layer.weight.shape) >= _SMALLEST_HALF:
                in_half = [halves.put(pack_matrix_half(w)) for w in (layer.weight, layer.weight.T)]
            layers.append([
                numbers.put(pack_matrix(layer.weight, dtype)), numbers.put(pack_matrix(layer.weight.T, dtype)),
                layer.n_in, layer.n_out, width_in, width, numbers.put(np.pad(layer.bias, padding)),
                -1 if layer.timestep is None else numbers.put(np.pad(layer.timestep, padding)),
                _skips[layer.skip], code, *in_half, step,
            ])  # fmt: skip
            parameters.append(extra)
        first.append(len(layers))
    return PackedNetworks(
        numbers.joined(),
        halves.joined() if half else None,
        np.array(layers, np.int64).reshape(-1, 13),
        np.array(parameters, float).reshape(-1, 3),
        np.array(first, np.int64),
    )


def _put_table(numbers, table, width):
    """Append a table in powers of the fraction of a row; returns its place.

    Rows are (6, width).  Two more rows continue it linearly below and above, in powers of the
    distance itself.
    """
    rows, channels, _ = table.coefficients.shape
    step = np.where(np.arange(rows) < table.n_fine, table.fine_step, table.coarse_step)
    packed = np.zeros((rows + 2, 6, width), numbers.dtype)
    scaled = table.coefficients * step[:, None, None] ** np.arange(6)
    packed[:rows, :, :channels] = scaled.transpose(0, 2, 1)
    for row, x in ((rows, table.lower), (rows + 1, table.maximum)):
        value, slope = evaluate_table(table, np.array([x]))
        packed[row, 0, :channels], packed[row, 1, :channels] = value[0], slope[0]
    return numbers.put(packed)


def _table_numbers(table):
    return table.lower, table.upper, table.maximum, 1 / table.fine_step, 1 / table.coarse_step


@dataclass
class PackedModel:
    """Descriptor and fitting networks of a model; fields as in ``kernels.ModelArrays``.

    near_width, far_width : the largest rows of features over all centre types.
    """

    split: np.ndarray
    networks: np.ndarray
    segments: np.ndarray
    segment_numbers: np.ndarray
    padding: np.ndarray
    centres: np.ndarray
    tables: np.ndarray
    exact: PackedNetworks
    fitting: PackedNetworks
    near_width: int
    far_width: int


def _trapezoid(n_features, axis):
    """Index pairs (a, m), a < axis, a <= m < n_features, in the order of the kernel's descriptor."""
    return np.array([(a, m) for a in range(axis) for m in range(a, n_features)]).T


def descriptor_size(n_features, axis):
    """How many inputs of the fitting network the kernel's descriptor has."""
    return axis * n_features - axis * (axis - 1) // 2


def _input_map(combine, axis, n_file_axis, n_extra, scale):
    """Matrix (inputs of the kernel, inputs of the file) of the linear map between descriptors.

    combine : (features, M), the outputs G = features @ combine.  The file's input m A + a is
    ``scale sum_jk combine[j, m] combine[k, a] D[j, k]``; the kernel keeps D[j, k] for j <= k, j < axis.
    With ``axis`` less than the number of features, the first ``axis`` features are outputs themselves.
    """
    n_features, n_embedding = combine.shape
    j, k = _trapezoid(n_features, axis)
    second = combine[:, :n_file_axis]
    full = np.einsum("pm,pa->pma", combine[k], second[j])
    full += np.einsum("pm,pa->pma", combine[j], second[k])
    full[j == k] /= 2
    n = n_embedding * n_file_axis
    result = np.zeros((len(j) + n_extra, n + n_extra))
    result[: len(j), :n] = scale * full.reshape(len(j), n)
    result[len(j) :, n:] = np.eye(n_extra)
    return result


def _with_inputs(network, input_map):
    """The network as a function of other inputs, ``inputs @ input_map`` being its own."""
    first = network.layers[0]
    if first.skip == "none":
        folded = DenseLayer(input_map @ first.weight, first.bias, first.timestep, first.activation)
        return Network((folded, *network.layers[1:]))
    # a skip connection passes the inputs on, so they are needed themselves
    return Network((DenseLayer(input_map, np.zeros(first.n_in), None, "linear"), *network.layers))


def _bases(descriptor, centre, precision, dtype):
    """Low-rank bases (or None) of the pairs of a centre type that contribute, ``{neighbour type: basis}``.

    Second, whether the one basis has the outputs of the second factor of D as its first functions,
    which takes the fewest inputs of the fitting network where there is one type of neighbour.
    """
    d = descriptor
    bases = {
        b: embedding.basis(precision)
        for b, embedding in enumerate(d.embeddings[centre])
        if embedding is not None and d.sel[b] > 0 and d.pair_rules[centre, b] != PairRule.SKIPPED
    }
    if len(bases) == 1:
        (b, only), = bases.items()
        if only is not None and only.everywhere:
            changed = with_outputs_first(only, d.axis_neuron, _LARGEST_CONDITION[np.dtype(dtype).name])
            if changed is not None:
                return {b: changed}, True
    return bases, False


def pack_model(model, dtype, precision, half=False, step=1024):
    """Pack a model; pairs with a table use it, others their exact network.

    precision : whose low-rank bases to use, where the model has any; half : fitting networks also
    in bfloat16; step : see :func:`dpmd.kernels.cpu.matrix.multiply`.
    """
    d, fitting = model.descriptor, model.fitting
    lane, n = lanes(np.dtype(dtype)), d.n_types
    near_width = round_up(d.n_embedding, lane)
    split, pair_networks = np.full((n, n), np.inf), np.full((n, n), -1, np.int64)
    segments, segment_numbers = np.zeros((n, n, 2, 5), np.int64), np.ones((n, n, 2, 5))
    padding, centres = np.zeros((n, n, near_width), dtype), np.zeros((n, 2, 7), np.int64)
    tables, embedding_networks, places, kept = _Numbers(dtype), [], {}, []

    def segment(table, column):
        """Row and numbers of a segment; tables that several pairs share are stored once."""
        width = round_up(table.n_out, lane)
        if id(table) not in places:
            places[id(table)] = _put_table(tables, table, width)
            kept.append(table)  # so that its id stays its own
        n_coarse = len(table.coefficients) - table.n_fine
        return [places[id(table)], width, column, table.n_fine, n_coarse], _table_numbers(table)

    numbers, fit_networks = _Numbers(dtype), []
    n_extra = fitting.n_fparam + fitting.n_aparam
    widest = 0
    for a in range(n):
        far_width, combine = 0, []
        empty = -d.radial_mean[a] / d.radial_std[a]
        bases, outputs_first = _bases(d, a, precision, dtype)
        for b, far in bases.items():
            embedding = d.embeddings[a][b]
            if far is not None:
                split[a, b] = radius_of_input(d, a, far.split) ** 2
                segments[a, b, 0], segment_numbers[a, b, 0] = segment(far.functions, far_width)
                expansion = np.zeros((round_up(far.functions.n_out, lane), d.n_embedding))
                expansion[: far.functions.n_out] = far.expansion
                combine.append(expansion)
                far_width += len(expansion)
                padding[a, b, : far.functions.n_out] = empty * evaluate_table(far.functions, np.array([empty]))[0][0]
            if embedding.table is not None:
                segments[a, b, 1], segment_numbers[a, b, 1] = segment(embedding.table, 0)
                value = evaluate_table(embedding.table, np.array([empty]))[0][0]
            else:
                segments[a, b, 1, WIDTH] = near_width
                if id(embedding) not in places:
                    places[id(embedding)] = len(embedding_networks)
                    embedding_networks.append(embedding.network)
                pair_networks[a, b] = places[id(embedding)]
                value = evaluate(embedding.network, np.array([[empty]]))[0]
            if far is None:
                padding[a, b, : d.n_embedding] = empty * value
        widest = max(widest, far_width)

        def fitting_for(outputs, axis, a=a):
            """Number of the fitting network for features of which the outputs are these combinations."""
            network = None
            if a not in fitting.silent_types:
                scale = 1 / d.neighbor_count**2
                network = _with_inputs(fitting.networks[a], _input_map(outputs, axis, d.axis_neuron, n_extra, scale))
            fit_networks.append(network)
            return len(fit_networks) - 1

        plain = False, far_width, d.n_embedding, d.axis_neuron, 0, 0, fitting_for(np.eye(d.n_embedding), d.axis_neuron)
        centres[a] = plain
        if not combine:
            continue
        expansion = np.concatenate(combine)
        centres[a, :, EXPAND] = numbers.put(pack_matrix(expansion, dtype))
        centres[a, :, CONTRACT] = numbers.put(pack_matrix(expansion.T, dtype))
        own_axis = d.axis_neuron if outputs_first else far_width
        if all(basis is not None and basis.everywhere for basis in bases.values()) and (
            descriptor_size(far_width, own_axis) < descriptor_size(d.n_embedding, d.axis_neuron)
        ):
            # functions beyond the last are padding
            n_features = next(iter(bases.values())).rank if len(bases) == 1 else far_width
            axis = min(own_axis, n_features)
            centres[a, 0] = True, far_width, n_features, axis, 0, 0, fitting_for(expansion[:n_features], axis)
    return PackedModel(
        split, pair_networks, segments, segment_numbers, padding, centres, tables.joined(),
        pack_networks(embedding_networks, dtype), pack_networks(fit_networks, dtype, numbers, half, step),
        near_width, widest,
    )  # fmt: skip
