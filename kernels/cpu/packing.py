"""A model's parameters as flat arrays of one floating-point type, for compiled kernels."""

from dataclasses import dataclass

import numpy as np

from dpmd.models import PairRule
from dpmd.models.networks import evaluate
from dpmd.models.tables import evaluate_table

from .activations import activation_code

_skips = {"none": 0, "add": 1, "double": 2}

# columns of a layer's row in PackedNetworks.layers
WEIGHT, N_IN, N_OUT, BIAS, TIMESTEP, SKIP, ACTIVATION = range(7)
# columns of a pair's row in PackedPairs.numbers
LOWER, UPPER, MAXIMUM, INVERSE_FINE, INVERSE_COARSE, PADDING_INPUT = range(6)
# columns of a pair's row in PackedPairs.integers
RULE, TABLE, N_FINE, N_COARSE, NETWORK = range(5)


@dataclass
class PackedNetworks:
    """Networks in one flat array.

    numbers : weights, biases and timesteps; layers : (layers, 7) int64, offsets and kinds;
    activation_parameters : (layers, 3); first : (networks + 1,) first layer of each network;
    widest : the largest width of an input or output.
    """

    numbers: np.ndarray
    layers: np.ndarray
    activation_parameters: np.ndarray
    first: np.ndarray

    @property
    def widest(self):
        return int(self.layers[:, [N_IN, N_OUT]].max(initial=1))

    @property
    def deepest(self):
        """The largest number of layers in a network."""
        return int(np.diff(self.first).max(initial=0))


def pack_networks(networks, dtype):
    """Pack a list of :class:`dpmd.models.Network`; None entries get no layers."""
    numbers, layers, parameters, first, offset = [], [], [], [0], 0

    def put(array):
        nonlocal offset
        numbers.append(np.ascontiguousarray(array, dtype).ravel())
        offset += numbers[-1].size
        return offset - numbers[-1].size

    for network in networks:
        for layer in network.layers if network is not None else ():
            code, extra = activation_code(layer.activation)
            weight, bias = put(layer.weight), put(layer.bias)
            timestep = -1 if layer.timestep is None else put(layer.timestep)
            layers.append([weight, layer.n_in, layer.n_out, bias, timestep, _skips[layer.skip], code])
            parameters.append(extra)
        first.append(len(layers))
    return PackedNetworks(
        np.concatenate(numbers) if numbers else np.zeros(0, dtype),
        np.array(layers, np.int64).reshape(-1, 7),
        np.array(parameters, float).reshape(-1, 3),
        np.array(first, np.int64),
    )


@dataclass
class PackedPairs:
    """What each (centre, neighbour) type pair contributes.

    width : M rounded up to the vector width, the length of a table row's vectors.
    coefficients : tables one after another, each (rows + 2, 6, width) in powers of the fraction
        of a row; the two extra rows continue the table linearly below and above, in powers of
        the distance itself.
    numbers : (T, T, 6) float64, integers : (T, T, 5) int64, see the column names above.
    padding : (T, T, width) contribution of an empty slot to the radial column.
    networks : the exact embedding networks.
    """

    width: int
    coefficients: np.ndarray
    numbers: np.ndarray
    integers: np.ndarray
    padding: np.ndarray
    networks: PackedNetworks


def _pack_table(table, width, dtype):
    """Scaled coefficients of a table, linear continuations appended: (rows + 2, 6, width)."""
    rows, channels, _ = table.coefficients.shape
    step = np.where(np.arange(rows) < table.n_fine, table.fine_step, table.coarse_step)
    packed = np.zeros((rows + 2, 6, width), dtype)
    scaled = table.coefficients * step[:, None, None] ** np.arange(6)
    packed[:rows, :, :channels] = scaled.transpose(0, 2, 1)
    for row, x in ((rows, table.lower), (rows + 1, table.maximum)):
        value, slope = evaluate_table(table, np.array([x]))
        packed[row, 0, :channels], packed[row, 1, :channels] = value[0], slope[0]
    return packed


def pack_pairs(descriptor, dtype):
    """Pack the embeddings of a descriptor; pairs with a table use it, others their network."""
    vector = 64 // np.dtype(dtype).itemsize
    width = -(-descriptor.n_embedding // vector) * vector
    n = descriptor.n_types
    numbers, integers = np.ones((n, n, 6)), np.full((n, n, 5), -1, np.int64)
    padding = np.zeros((n, n, width), dtype)
    tables, networks, rows = [], [], 0
    integers[:, :, RULE] = PairRule.SKIPPED
    for embedding, pairs in descriptor.unique_embeddings():
        columns = {}
        if embedding.table is not None:
            t = embedding.table
            tables.append(_pack_table(t, width, dtype))
            columns = {TABLE: rows, N_FINE: t.n_fine, N_COARSE: len(t.coefficients) - t.n_fine}
            rows += len(tables[-1])
        else:
            columns = {NETWORK: len(networks)}
            networks.append(embedding.network)
        for a, b in pairs:
            if descriptor.sel[b] == 0:
                continue
            empty = -descriptor.radial_mean[a] / descriptor.radial_std[a]
            for column, value in columns.items():
                integers[a, b, column] = value
            integers[a, b, RULE] = descriptor.pair_rules[a, b]
            if embedding.table is not None:
                t = embedding.table
                numbers[a, b, :5] = t.lower, t.upper, t.maximum, 1 / t.fine_step, 1 / t.coarse_step
                value = evaluate_table(t, np.array([empty]))[0][0]
            else:
                value = evaluate(embedding.network, np.array([[empty]]))[0]
            numbers[a, b, PADDING_INPUT] = empty
            padding[a, b, : descriptor.n_embedding] = empty * value
    coefficients = np.concatenate(tables) if tables else np.zeros((1, 6, width), dtype)
    return PackedPairs(width, coefficients, numbers, integers, padding, pack_networks(networks, dtype))
