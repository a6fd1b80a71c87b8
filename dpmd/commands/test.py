"""Errors of a model on labelled structures: the table of 'dp test', and a plot.

Data sets: DeePMD folders (npy, raw, mixed type), extended XYZ and whatever else ASE reads.
"""

from pathlib import Path

from .common import add_data, add_engine, add_model, check_output, data_paths, load_potential

_UNITS = {"energy": "eV", "energy per atom": "eV", "force": "eV/Å", "virial": "eV", "virial per atom": "eV"}
_LABELS = {"energy": "Energy", "energy per atom": "Energy/atom", "force": "Force", "virial": "Virial",
           "virial per atom": "Virial/atom"}  # fmt: skip
#: files that -d writes, with numbers per line of the reference
_DETAILS = {
    "energy": ("e", 1, "data_e pred_e"),
    "energy per atom": ("e_peratom", 1, "data_e pred_e"),
    "force": ("f", 3, "data_fx data_fy data_fz pred_fx pred_fy pred_fz"),
    "virial": ("v", 9, " ".join(f"{w}_v{a}{b}" for w in ("data", "pred") for a in "xyz" for b in "xyz")),
    "virial per atom": (
        "v_peratom",
        9,
        " ".join(f"{w}_v{a}{b}" for w in ("data", "pred") for a in "xyz" for b in "xyz"),
    ),
}


def add_arguments(parser):
    """The command line of ``dpmd test``."""
    add_model(parser)
    add_data(parser)
    parser.add_argument("-n", "--numb-test", type=int, default=0, metavar="N", help="frames of each set; default all")
    parser.add_argument(
        "-d",
        "--detail-file",
        metavar="PREFIX",
        help="write references and predictions to PREFIX.e.out, PREFIX.f.out, ...",
    )
    parser.add_argument(
        "-p", "--plot", type=Path, metavar="FILE.png", help="predictions against references (.png, .pdf or .svg)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    add_engine(parser)


def run(options):
    """Evaluate, print the table, write what is asked for."""
    from dpmd.datasets import read
    from dpmd.evaluation import compare, merge

    details = {} if options.detail_file is None else _detail_paths(options)
    if options.plot is not None:
        check_output(options.plot, options.overwrite)
    sets = [data for path in data_paths(options) for data in read(path)]
    potential = load_potential(options.model, options)
    found = []
    for data in sets:
        frames = data[: options.numb_test] if options.numb_test else data
        comparisons = compare(potential, frames)
        found.append(comparisons)
        for name, path in details.items():
            if name in comparisons:
                _write_detail(path, data.name, comparisons[name], name)
        if len(sets) > 1:
            _print_table(f"{data.name}: {len(frames)} frames", comparisons)
    names = [name for name in _LABELS if any(name in c for c in found)]
    merged = {name: merge([c[name] for c in found if name in c]) for name in names}
    n_frames = sum(min(len(data), options.numb_test or len(data)) for data in sets)
    _print_table(f"{n_frames} frames of {len(sets)} data set{'s' if len(sets) > 1 else ''}", merged)
    if options.plot is not None:
        from dpmd.plots import parity

        parity(merged, options.plot, title=f"{options.model.name} on {n_frames} frames")
        print(f"plot: {options.plot}")
    return 0


def _print_table(title, comparisons):
    print(f"# {title}")
    print(f"  {'':12s} {'MAE':>14s} {'RMSE':>14s}")
    for name, comparison in comparisons.items():
        mean, root = comparison.mean_absolute_error, comparison.root_mean_square_error
        print(f"  {_LABELS[name]:12s} {mean:14.6e} {root:14.6e} {_UNITS[name]}")


def _detail_paths(options):
    paths = {name: Path(f"{options.detail_file}.{suffix}.out") for name, (suffix, _, _) in _DETAILS.items()}
    for path in paths.values():
        check_output(path, options.overwrite)
        path.unlink(missing_ok=True)
    return paths


def _write_detail(path, title, comparison, name):
    """Append reference and prediction, side by side, as 'dp test -d' does."""
    import numpy as np

    _, width, header = _DETAILS[name]
    columns = [values.reshape(-1, width) for values in (comparison.reference, comparison.predicted)]
    with open(path, "a", encoding="utf-8") as file:
        np.savetxt(file, np.concatenate(columns, axis=1), header=f"{title}: {header}")
