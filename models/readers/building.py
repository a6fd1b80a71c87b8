"""From numbers found in a file to checked records: what all readers share.

Whatever a file says is checked here before it becomes a record, so that operators never meet
a shape that does not fit, a value that is not finite, or a network of a kind unknown to them.
All functions raise ModelError; :func:`dpmd.models.readers.load` puts the file's name in front.
"""

import itertools
import math

import numpy as np

from ..errors import ModelError
from ..networks import canonical_activation
from ..parameters import DenseLayer, EmbeddingTable, Network, PairRule

#: what the messages about other kinds of models end with
SUPPORTED = "dpmd reads se_e2_a (DeepPot-SE) energy models"

#: descriptor names of all backends, with the name they are reported by
DESCRIPTOR_ALIASES = {
    "se_a": "se_e2_a",
    "se_r": "se_e2_r",
    "se_t": "se_e3",
    "se_at": "se_e3",
    "se_a_3be": "se_e3",
}

_PRECISIONS = {
    "default": "float64",
    "double": "float64",
    "float64": "float64",
    "single": "float32",
    "float32": "float32",
}


def unsupported(what, advice=""):
    """The ModelError for something that dpmd does not read, e.g. ``"descriptor 'hybrid'"``."""
    return ModelError(f"{what} is not supported; {SUPPORTED}{'; ' + advice if advice else ''}")


def canonical_descriptor(name):
    """The usual name of a descriptor kind, e.g. ``"se_e2_a"`` for ``"se_a"``."""
    name = str(name)[:60]
    return DESCRIPTOR_ALIASES.get(name, name)


def canonical_precision(*names):
    """``"float32"`` if all networks are in single precision, ``"float64"`` otherwise."""
    found = set()
    for name in names:
        if str(name).lower() not in _PRECISIONS:
            raise unsupported(f"network precision {str(name)[:30]!r}")
        found.add(_PRECISIONS[str(name).lower()])
    return "float32" if found == {"float32"} else "float64"


# --------------------------------------------------------------------- numbers


def array(value, name, shape=None):
    """A new contiguous float64 array of finite numbers.

    shape : expected shape with -1 for "any"; leading dimensions of size 1 are dropped or added
        to reach its number of dimensions.
    """
    if value is None:
        raise ModelError(f"{name} is missing")
    found = np.asarray(value)
    if found.dtype.kind not in "fiu":
        raise ModelError(f"{name} does not hold numbers")
    if found.dtype == np.float16:
        raise unsupported(f"network precision 'float16' ({name})")
    if shape is not None:
        while found.ndim > len(shape) and found.shape[0] == 1:
            found = found[0]
        while found.ndim < len(shape):
            found = found[None]
        fits = found.ndim == len(shape) and all(w in (-1, n) for w, n in zip(shape, found.shape, strict=True))
        if not fits:
            raise ModelError(f"{name} has shape {np.shape(value)}, expected {_shape_text(shape)}")
    found = np.array(found, dtype=np.float64, order="C")
    if not np.isfinite(found).all():
        raise ModelError(f"{name} holds values that are not finite")
    return found


def _shape_text(shape):
    return "(" + ", ".join("any" if n == -1 else str(n) for n in shape) + ("," if len(shape) == 1 else "") + ")"


def vector(value, name, length):
    """(length,) float64, whatever dimensions of size 1 the file has around it."""
    flat = array(value, name).reshape(-1)
    if len(flat) != length:
        raise ModelError(f"{name} has {len(flat)} values, expected {length}")
    return flat


def number(value, name):
    """A finite float; numpy scalars and arrays of one element are accepted."""
    if isinstance(value, (bool, str, bytes)) or value is None or np.size(value) != 1:
        raise ModelError(f"{name} is not a number")
    return float(array(value, name).reshape(-1)[0])


def integer(value, name, low=0, high=1_000_000):
    """An int between ``low`` and ``high``."""
    found = number(value, name)
    if found != int(found) or not low <= found <= high:
        raise ModelError(f"{name} is {found:g}, expected a whole number from {low} to {high}")
    return int(found)


def pairs_of_types(value, n_types, name):
    """The set of ordered pairs, both ways round, of a list ``[[a, b], ...]``."""
    if not isinstance(value, (list, tuple)):
        raise ModelError(f"{name} is not a list of pairs of types")
    pairs = set()
    for pair in value:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ModelError(f"{name} is not a list of pairs of types")
        a, b = (integer(t, name, 0, n_types - 1) for t in pair)
        pairs |= {(a, b), (b, a)}
    return pairs


def set_of_types(value, n_types, name):
    """The set of types of a list ``[a, ...]``."""
    if not isinstance(value, (list, tuple)):
        raise ModelError(f"{name} is not a list of types")
    return {integer(t, name, 0, n_types - 1) for t in value}


def positive_or_none(value, name):
    """A positive float, or None for a missing, negative or zero value ("unknown" in files)."""
    if value is None:
        return None
    found = number(value, name)
    return found if found > 0 else None


def type_names(names):
    """The type map as a tuple of different, non-empty strings."""
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(n, str) and n for n in names):
        raise ModelError("the type map is not a list of names")
    if len(set(names)) != len(names):
        raise ModelError(f"the type map names a type twice: {' '.join(names)[:200]}")
    return tuple(names)


# --------------------------------------------------------------------- networks


def skip_by_width(n_in, n_out, doubling=True):
    """The skip connection that the widths of a layer allow: ``"add"``, ``"double"`` or ``"none"``."""
    if n_out == n_in:
        return "add"
    return "double" if doubling and n_out == 2 * n_in else "none"


def dense_layer(weight, bias, timestep, activation, skip, name):
    """A checked :class:`DenseLayer`; a missing ``bias`` is zero.

    skip : ``"none"``, ``"add"``, ``"double"``, or a function of (n_in, n_out) that returns one.
    """
    weight = array(weight, f"weight of {name}", (-1, -1))
    n_in, n_out = weight.shape
    if not weight.size:
        raise ModelError(f"weight of {name} is empty")
    bias = np.zeros(n_out) if bias is None else vector(bias, f"bias of {name}", n_out)
    timestep = None if timestep is None else vector(timestep, f"idt of {name}", n_out)
    if callable(skip):
        skip = skip(n_in, n_out)
    return DenseLayer(weight, bias, timestep, canonical_activation(activation), skip)


def network(layers, name, n_in=None, n_out=None):
    """A checked :class:`Network`, with the width of its input or output where known."""
    if not layers:
        raise ModelError(f"{name} has no layers")
    for position, (a, b) in enumerate(itertools.pairwise(layers), 1):
        if a.n_out != b.n_in:
            raise ModelError(
                f"{name}: layer {position} has {a.n_out} outputs, but layer {position + 1} has {b.n_in} inputs"
            )
    found = Network(tuple(layers))
    if n_in is not None and found.n_in != n_in:
        raise ModelError(f"{name} has {found.n_in} inputs, expected {n_in}")
    if n_out is not None and found.n_out != n_out:
        raise ModelError(f"{name} has {found.n_out} outputs, expected {n_out}")
    return found


def embedding_table(info, coefficients, name):
    """A checked :class:`EmbeddingTable`.

    info : lower, upper, maximum, fine step, coarse step [, check frequency];
    coefficients : (rows, 6 M), the six coefficients of a channel side by side.
    """
    info = array(info, f"range of {name}").reshape(-1)
    if len(info) < 5:
        raise ModelError(f"range of {name} has {len(info)} values, expected 6")
    lower, upper, maximum, fine, coarse = (float(v) for v in info[:5])
    if not (lower < upper <= maximum and fine > 0 and coarse > 0):
        raise ModelError(
            f"range of {name} is impossible: {lower:g} to {upper:g} in steps of {fine:g}, to {maximum:g} in {coarse:g}"
        )
    data = array(coefficients, f"coefficients of {name}", (-1, -1))
    rows, columns = data.shape
    if not data.size or columns % 6:
        raise ModelError(f"coefficients of {name} have shape {data.shape}, expected (rows, 6 x width)")
    expected = (upper - lower) / fine + (maximum - upper) / coarse
    # steps need not divide the range: writers round the sum, or each section, either way
    if abs(rows - expected) > 2:
        raise ModelError(f"{name} has {rows} rows, but its range and steps ask for {math.floor(expected)}")
    return EmbeddingTable(lower, upper, maximum, fine, coarse, data.reshape(rows, columns // 6, 6))


def folded_case_embedding(net, embedding, name):
    """``net`` without its last inputs, which are fed the fixed vector ``embedding``.

    The product with the fixed vector joins the first layer's bias.
    """
    if not len(embedding):
        return net
    first = net.layers[0]
    kept = first.n_in - len(embedding)
    if first.skip != "none" or kept < 1:
        raise unsupported(f"{name}: a case embedding that passes the first layer by its skip connection")
    bias = first.bias + embedding @ first.weight[kept:]
    start = DenseLayer(np.ascontiguousarray(first.weight[:kept]), bias, first.timestep, first.activation, "none")
    return Network((start, *net.layers[1:]))


def scaled_output(net, factor):
    """``net`` with its outputs multiplied by ``factor``, folded into the last (linear) layer."""
    last = net.layers[-1]
    end = DenseLayer(last.weight * factor, last.bias * factor, last.timestep, last.activation, last.skip)
    return Network((*net.layers[:-1], end))


# --------------------------------------------------------------------- descriptor


def cutoffs(rcut, rcut_smth):
    """Checked ``(rcut, rcut_smth)`` in Å."""
    rcut, rcut_smth = number(rcut, "rcut"), number(rcut_smth, "rcut_smth")
    if not rcut > 0:
        raise ModelError(f"rcut is {rcut:g}, expected a positive distance")
    if rcut > 1e4:
        raise ModelError(f"rcut is {rcut:g} Å, which cannot be meant")
    if not 0 <= rcut_smth < rcut:
        raise ModelError(f"rcut_smth is {rcut_smth:g}, expected a distance from 0 to below rcut = {rcut:g}")
    return rcut, rcut_smth


def selection(sel, n_types, name="sel"):
    """Checked numbers of neighbour slots per type."""
    values = np.asarray(sel).reshape(-1).tolist() if sel is not None else []
    if len(values) != n_types:
        raise ModelError(f"{name} has {len(values)} values, expected one for each of the {n_types} types")
    counts = tuple(integer(n, name) for n in values)
    if not sum(counts):
        raise ModelError(f"{name} leaves no room for neighbours: {list(counts)}")
    return counts


def slot_statistics(mean, deviation, n_types, n_slots):
    """Statistics per centre type from arrays that reshape to (T, slots, 4).

    Returns ``(radial_mean, radial_std, angular_std)``, each (T,).  dpmd relies on what training
    always produces: the same values in all slots, angular means of zero, and one deviation for
    the three angular components.
    """
    shape = (n_types, n_slots, 4)
    found = []
    for value, name in ((mean, "davg"), (deviation, "dstd")):
        values = array(value, name)
        if values.size != np.prod(shape):
            raise ModelError(f"{name} has {values.size} values, expected {n_types} x {n_slots} x 4")
        values = values.reshape(shape)
        if not np.allclose(values, values[:, :1], rtol=1e-12, atol=0):
            raise ModelError(f"{name} differs between neighbour slots of one centre type, which is not supported")
        found.append(values[:, 0])
    mean, deviation = found
    if np.any(mean[:, 1:]):
        raise ModelError("davg is not zero for the angular components, which is not supported")
    if not np.allclose(deviation[:, 1:], deviation[:, 1:2], rtol=1e-12, atol=0):
        raise ModelError("dstd differs between the three angular components, which is not supported")
    if not np.all(deviation > 0):
        raise ModelError("dstd holds values that are not positive")
    return mean[:, 0].copy(), deviation[:, 0].copy(), deviation[:, 1].copy()


def pair_rules(sel, excluded, rule, removed=()):
    """(T, T) rules: ``rule`` for the ``excluded`` pairs, REMOVED for the ``removed`` ones.

    A pair that is both removed and excluded follows REMOVED (its neighbours left the list
    before); a type without slots is SKIPPED.
    """
    rules = np.full((len(sel), len(sel)), PairRule.INCLUDED, dtype=np.int64)
    for pair in excluded:
        rules[pair] = rule
    for pair in removed:
        rules[pair] = PairRule.REMOVED
    rules[:, np.asarray(sel) == 0] = PairRule.SKIPPED
    return rules


def check_embeddings(embeddings, rules, axis_neuron):
    """Every pair that contributes has an embedding, and all are of one width."""
    widths = {e.n_out for row in embeddings for e in row if e is not None}
    for centre, row in enumerate(embeddings):
        for neighbor, embedding in enumerate(row):
            if embedding is None and rules[centre, neighbor] != PairRule.SKIPPED:
                raise ModelError(f"the embedding of neighbour type {neighbor} around type {centre} is missing")
    if not widths:
        raise ModelError("all pairs of types are excluded: there is nothing to compute")
    if len(widths) > 1:
        raise ModelError(f"embeddings differ in width: {sorted(widths)}")
    if axis_neuron > min(widths):
        raise ModelError(f"axis_neuron is {axis_neuron}, but embeddings have only {min(widths)} outputs")
