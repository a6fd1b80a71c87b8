"""Shortest distances and numbers of neighbours in data sets.

Prints the shortest distance between any two atoms and, per type of neighbour, the most neighbours that
an atom has within the cutoff, with the 'sel' that training would choose (1.1 times as many, rounded up
to a multiple of four), and, if a model is given, its 'sel'.
"""

from pathlib import Path

from .common import add_data, data_paths, load_model


def add_arguments(parser):
    """The command line of ``dpmd neighbor-stat``."""
    add_data(parser)
    parser.add_argument("-r", "--rcut", type=float, metavar="A", help="cutoff in Å; default the model's")
    parser.add_argument("-t", "--type-map", nargs="+", metavar="NAME", help="names of types; default the model's")
    parser.add_argument("-m", "--model", type=Path, metavar="MODEL", help="model whose cutoff and sel to compare with")
    parser.add_argument("--mixed-type", action="store_true", help="count neighbours of all types together")


def run(options):
    """Look at every frame and print the table."""
    import numpy as np

    from dpmd.datasets import read
    from dpmd.errors import InputError
    from dpmd.neighborstat import neighbor_statistics

    model = load_model(options.model) if options.model else None
    cutoff = options.rcut or (model.cutoff if model else None)
    if cutoff is None or cutoff <= 0:
        raise InputError("no cutoff given; name it with -r A (in Å), or a model with -m MODEL")
    sets = [data for path in data_paths(options) for data in read(path)]
    type_map = tuple(options.type_map or (model.type_map if model else ()) or _all_types(sets))
    nearest, most = neighbor_statistics(sets, type_map, cutoff, options.mixed_type)
    print(f"min_nbor_dist: {nearest:.10f}" if np.isfinite(nearest) else "min_nbor_dist: no two atoms within the cutoff")
    print(f"max_nbor_size: {[int(n) for n in most]}   (within {cutoff:g} Å)")
    sel = None if model is None else list(model.descriptor.sel)
    if options.mixed_type and sel is not None:
        sel = [sum(sel)]
    print(f"  {'neighbours':12s} {'most':>6s} {'sel to train':>13s}" + (f" {'sel of model':>13s}" if sel else ""))
    for k, name in enumerate(["all types"] if options.mixed_type else type_map):
        advised = 4 * int(np.ceil(1.1 * most[k] / 4))
        text = f"  {name:12s} {int(most[k]):6d} {advised:13d}"
        if sel:
            text += f" {sel[k]:13d}" + ("   too few: the furthest are left out" if most[k] > sel[k] else "")
        print(text)
    return 0


def _all_types(sets):
    from dpmd.errors import InputError

    names = sorted({name for data in sets for name in data.type_map or ()})
    if not names or any(data.type_map is None for data in sets):
        raise InputError("the data sets do not name their types; give them with -t NAME NAME ...")
    return names
