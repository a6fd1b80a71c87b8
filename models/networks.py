"""Dense networks and activation functions in numpy, with exact derivatives.

These are the reference for every faster implementation and the source of tables.
"""

import numpy as np

from .errors import ModelError

# --------------------------------------------------------------------- activation functions
# Each returns value, first and second derivative, elementwise.


def _tanh(x):
    t = np.tanh(x)
    d = 1 - t * t
    return t, d, -2 * t * d


def _relu(x):
    on = (x > 0).astype(x.dtype)
    return x * on, on, np.zeros_like(x)


def _relu6(x):
    on = ((x > 0) & (x < 6)).astype(x.dtype)
    return np.clip(x, 0, 6), on, np.zeros_like(x)


def _sigmoid_value(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def _softplus(x):
    s = _sigmoid_value(x)
    return np.logaddexp(0, x), s, s * (1 - s)


def _sigmoid(x):
    s = _sigmoid_value(x)
    d = s * (1 - s)
    return s, d, d * (1 - 2 * s)


def _gelu(x):
    # the tanh approximation, under both of its names
    c, k = np.sqrt(2 / np.pi), 0.044715
    t, dt, ddt = _tanh(c * (x + k * x**3))
    u1, u2 = c * (1 + 3 * k * x * x), 6 * c * k * x
    return (
        0.5 * x * (1 + t),
        0.5 * (1 + t) + 0.5 * x * dt * u1,
        dt * u1 + 0.5 * x * (ddt * u1 * u1 + dt * u2),
    )


def _silu(x):
    s = _sigmoid_value(x)
    d = s * (1 - s)
    return x * s, s + x * d, 2 * d + x * d * (1 - 2 * s)


def silut_constants(threshold):
    """``(k, c)`` of ``silut``: slope and value of silu at ``threshold``, where tanh takes over."""
    s = _sigmoid_value(np.float64(threshold))
    return s + threshold * s * (1 - s), threshold * s


def _silut(threshold):
    k, c = silut_constants(threshold)

    def function(x):
        t, dt, ddt = _tanh(k * (x - threshold))
        low = _silu(x)
        return tuple(np.where(x < threshold, a, b) for a, b in zip(low, (t + c, k * dt, k * k * ddt), strict=True))

    return function


def _linear(x):
    return x, np.ones_like(x), np.zeros_like(x)


_simple = {
    "tanh": _tanh,
    "relu": _relu,
    "relu6": _relu6,
    "softplus": _softplus,
    "sigmoid": _sigmoid,
    "gelu": _gelu,
    "silu": _silu,
    "linear": _linear,
}
_aliases = {"gelu_tf": "gelu", "none": "linear", "": "linear", "null": "linear"}

#: activations whose first derivative jumps: quintic tables of them are wrong there
KINKED = frozenset({"relu", "relu6"})


def canonical_activation(name):
    """The name used inside dpmd for a file's activation name (case-insensitive, aliases).

    ``silut`` and ``custom_silu`` carry their threshold: ``"silut:3.0"``.
    Raises ModelError for an unknown name.
    """
    key = "linear" if name is None else str(name).strip().lower()
    key = _aliases.get(key, key)
    if key in _simple:
        return key
    head, _, tail = key.partition(":")
    if head in ("silut", "custom_silu"):
        try:
            return f"silut:{float(tail) if tail else 3.0!r}"
        except ValueError:
            pass
    raise ModelError(
        f"activation function {name!r} is not known; supported: {', '.join(sorted(_simple))}, silut[:threshold]"
    )


def activation(name):
    """Function ``x -> (value, first, second derivative)`` of a canonical activation name."""
    if name.startswith("silut:"):
        return _silut(float(name.split(":")[1]))
    return _simple[name]


# --------------------------------------------------------------------- networks


def _skip(layer, x):
    if layer.skip == "add":
        return x
    if layer.skip == "double":
        return np.concatenate([x, x], axis=-1)
    return 0.0


def evaluate(network, x):
    """Outputs (n, n_out) of ``network`` for inputs ``x`` (n, n_in)."""
    for layer in network.layers:
        h = activation(layer.activation)(x @ layer.weight + layer.bias)[0]
        if layer.timestep is not None:
            h = h * layer.timestep
        x = h + _skip(layer, x)
    return x


def value_and_gradient(network, x):
    """Scalar outputs (n,) and their gradients (n, n_in) with respect to the inputs ``x``.

    Reverse mode; ``network.n_out`` must be 1.
    """
    slopes = []
    for layer in network.layers:
        h, d, _ = activation(layer.activation)(x @ layer.weight + layer.bias)
        if layer.timestep is not None:
            h, d = h * layer.timestep, d * layer.timestep
        slopes.append(d)
        x = h + _skip(layer, x)
    gradient = np.ones((len(x), 1))
    for layer, d in zip(reversed(network.layers), reversed(slopes), strict=True):
        through = (gradient * d) @ layer.weight.T
        if layer.skip == "add":
            through = through + gradient
        elif layer.skip == "double":
            through = through + gradient[:, : layer.n_in] + gradient[:, layer.n_in :]
        gradient = through
    return x[:, 0], gradient


def derivatives_of_scalar_input(network, x):
    """Outputs and their first and second derivatives, each (n, n_out), for scalar inputs ``x`` (n,).

    Forward mode through ``y = skip(x) + h(z)``, ``z = x W + b``: y' = skip(x') + h' z',
    y'' = skip(x'') + h'' z'^2 + h' z''.
    """
    y = np.asarray(x, float)[:, None]
    y1, y2 = np.ones_like(y), np.zeros_like(y)
    for layer in network.layers:
        z1, z2 = y1 @ layer.weight, y2 @ layer.weight
        h, d, dd = activation(layer.activation)(y @ layer.weight + layer.bias)
        if layer.timestep is not None:
            h, d, dd = h * layer.timestep, d * layer.timestep, dd * layer.timestep
        y = h + _skip(layer, y)
        y2 = dd * z1 * z1 + d * z2 + _skip(layer, y2)
        y1 = d * z1 + _skip(layer, y1)
    return y, y1, y2


def has_kinks(network):
    """True if the derivative of the network is discontinuous (relu, relu6)."""
    return any(layer.activation in KINKED for layer in network.layers)
