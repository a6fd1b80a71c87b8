"""A model in words, as ``dpmd info MODEL`` prints it."""

from collections import Counter

from .parameters import PairRule

_RULES = {
    PairRule.SKIPPED: "skipped",
    PairRule.MASKED: "masked",
    PairRule.REMOVED: "removed from the neighbour list",
}


def describe(model):
    """Several lines of text about ``model``: where it comes from, what it computes, how large it is."""
    sections = [
        ("Model", _source_lines(model)),
        ("Descriptor", _descriptor_lines(model)),
        ("Fitting", _fitting_lines(model)),
    ]
    lines = []
    width = max(len(label) for _, rows in sections for label, _ in rows)
    for title, rows in sections:
        lines += ([""] if lines else []) + [title]
        lines += [f"  {label:<{width}}  {text}" for label, text in rows]
    if model.source.warnings:
        lines += ["", "Warnings", *(f"  {w}" for w in model.source.warnings)]
    return "\n".join(lines)


def count_parameters(model):
    """Number of weights, biases and time steps of all networks, and of coefficients of tables.

    Returns ``(of networks, of tables)``; embeddings shared by several pairs count once.
    """
    embeddings = [e for e, _ in model.descriptor.unique_embeddings()]
    networks = [*(e.network for e in embeddings if e.network is not None), *model.fitting.networks]
    in_networks = sum(
        part.size
        for net in networks
        for layer in net.layers
        for part in (layer.weight, layer.bias, layer.timestep)
        if part is not None
    )
    return in_networks, sum(e.table.coefficients.size for e in embeddings if e.table is not None)


def _source_lines(model):
    source = model.source
    in_networks, in_tables = count_parameters(model)
    rows = [("file", source.path), ("format", source.format)]
    rows += [(label, text) for label, text in (("backend", source.backend), ("version", source.version)) if text]
    rows += [
        ("atom types", " ".join(model.type_map)),
        ("precision", model.precision),
        ("parameters", f"{in_networks:,}" + (f", and {in_tables:,} coefficients of tables" if in_tables else "")),
        ("compressed", "yes" if model.compressed else "no"),
    ]
    if source.min_neighbor_distance is not None:
        rows.append(("nearest atoms", f"{source.min_neighbor_distance:.4f} Å, in the training data"))
    return rows


# --------------------------------------------------------------------- descriptor


def _descriptor_lines(model):
    d = model.descriptor
    sides = "one network per neighbour type" if d.type_one_side else "one network per pair of types"
    rows = [
        ("kind", f"{d.kind} (DeepPot-SE)" if d.kind == "se_e2_a" else d.kind),
        ("cutoff", f"{d.rcut:g} Å, smooth from {d.rcut_smth:g} Å"),
        ("sel", ", ".join(f"{name} {n}" for name, n in zip(model.type_map, d.sel, strict=True)) + _divisor(d)),
        ("embedding", f"{_network_text(_some_network(d), d.n_embedding)}; {sides}"),
        ("axis neurons", f"{d.axis_neuron}, for {d.n_out} numbers per atom"),
    ]
    if d.protection:
        rows.append(("protection", f"{d.protection:g} Å"))
    rows += [("excluded pairs", text) for text in _excluded_lines(model)]
    rows += _table_lines(model)
    return rows


def _divisor(descriptor):
    total = sum(descriptor.sel)
    return "" if descriptor.neighbor_count == total else f" (average over {descriptor.neighbor_count}, not {total})"


def _some_network(descriptor):
    return next((e.network for e, _ in descriptor.unique_embeddings() if e.network is not None), None)


def _network_text(network, width=0):
    """Widths and activations, e.g. ``25-50-100 tanh, resnet_dt``; the linear output layer is left out."""
    if network is None:
        return f"tables of width {width}, without networks"
    layers = network.layers
    if len(layers) > 1 and layers[-1].n_out == 1 and layers[-1].activation == "linear":
        layers = layers[:-1]
    activations = list(dict.fromkeys(layer.activation for layer in layers))
    text = f"{'-'.join(str(layer.n_out) for layer in layers)} {', '.join(activations)}"
    return text + (", resnet_dt" if any(layer.timestep is not None for layer in layers) else "")


def _excluded_lines(model):
    """One line for each rule other than INCLUDED, except for types that have no slots at all."""
    d, names = model.descriptor, model.type_map
    for rule, text in _RULES.items():
        pairs = [
            f"{names[i]}-{names[j]}"
            for i in range(d.n_types)
            for j in range(d.n_types)
            if d.pair_rules[i, j] == rule and d.sel[j]
        ]
        if pairs:
            yield f"{' '.join(pairs)} ({text}; centre first)"


def _table_lines(model):
    """One line for each kind of table among the distinct embeddings."""
    tables = [e.table for e, _ in model.descriptor.unique_embeddings() if e.table is not None]
    origin = "from the file" if model.compressed else "made by dpmd"
    kinds = Counter(
        (t.lower, t.upper, t.maximum, t.fine_step, t.coarse_step, len(t.coefficients)) for t in tables
    )  # fmt: skip
    for (lower, upper, maximum, fine, coarse, rows), count in kinds.items():
        text = (
            f"{count} {origin}, {rows} rows: {lower:g} to {upper:g} in steps of {fine:g}, "
            f"to {maximum:g} in steps of {coarse:g}"
        )
        yield "tables", text


# --------------------------------------------------------------------- fitting


def _fitting_lines(model):
    f = model.fitting
    texts = list(dict.fromkeys(_network_text(net) for net in f.networks))
    rows = [
        ("networks", f"{' | '.join(texts)}; one per centre type"),
        ("energy bias", ", ".join(f"{n} {b:.6g} eV" for n, b in zip(model.type_map, f.energy_bias, strict=True))),
    ]
    if f.n_fparam:
        default = "none" if f.default_fparam is None else " ".join(f"{v:g}" for v in f.default_fparam)
        rows.append(("frame parameters", f"{f.n_fparam}, default {default}"))
    if f.n_aparam:
        rows.append(("atom parameters", str(f.n_aparam)))
    if f.subtract_vacuum.any():
        rows.append(("vacuum subtracted", _names(model, [t for t in range(model.n_types) if f.subtract_vacuum[t]])))
    if f.silent_types:
        rows.append(("no energy from", _names(model, sorted(f.silent_types))))
    return rows


def _names(model, types):
    return " ".join(model.type_map[t] for t in types)
