"""Disagreement of a committee of models over data sets or trajectories.

Writes the file that 'dp model-devi' of DeePMD-kit writes: per frame the largest, smallest and average
deviation of virial and forces, and that of the energy.  Definitions: dpmd/committee.py.
"""

from pathlib import Path

from .common import add_data, add_engine, add_output, check_output, data_paths, load_potential


def add_arguments(parser):
    """The command line of ``dpmd model-devi``."""
    parser.add_argument(
        "-m", "--models", type=Path, nargs="+", required=True, metavar="MODEL", help="the committee, two or more"
    )
    add_data(parser)
    add_output(parser, "FILE", "file to write", "model_devi.out")
    parser.add_argument(
        "--frequency", type=int, default=1, metavar="N", help="steps between frames: step = frame x N; default 1"
    )
    parser.add_argument("--real_error", action="store_true", help="deviation from the data's labels, not from the mean")
    parser.add_argument("--atomic", action="store_true", help="write the deviation of the force of every atom, too")
    parser.add_argument("--relative", type=float, metavar="EV_PER_A", help="divide forces by |mean| + this (eV/Å)")
    parser.add_argument("--relative_v", type=float, metavar="EV", help="divide virials by |mean| + this (eV per atom)")
    add_engine(parser)


def run(options):
    """Evaluate all models on all frames and write the file."""
    import numpy as np

    from dpmd import committee
    from dpmd.datasets import read
    from dpmd.errors import InputError
    from dpmd.evaluation import evaluate_dataset
    from dpmd.models.files import write_text

    if len(options.models) < 2 and not options.real_error:
        raise InputError("a deviation needs two or more models: -m MODEL MODEL ...")
    check_output(options.output, options.overwrite)
    sets = [data for path in data_paths(options) for data in read(path)]
    potentials = [load_potential(path, options) for path in options.models]
    maps = {p.type_map for p in potentials}
    if len({tuple(sorted(m)) for m in maps}) > 1:
        raise InputError(f"the models have different types: {'; '.join(' '.join(m) for m in sorted(maps))}")
    lines = []
    for data in sets:
        energies, forces, virials = (
            np.stack(v) for v in zip(*(evaluate_dataset(p, data) for p in potentials), strict=True)
        )
        references = _references(data, options.real_error)
        real = data.types >= 0
        force = committee.force_deviation(forces, options.relative, references["forces"])
        virial = committee.virial_deviation(
            virials, data.n_atoms, options.relative_v, references["virials"], componentwise=False
        )
        energy = committee.energy_deviation(energies, data.n_atoms, references["energies"])
        lines += [f"# {data.name}", committee.header(options.atomic)]
        for k in range(len(data)):
            columns = committee.summary(virial[k], force[k][real[k]], energy[k])
            per_atom = force[k][real[k]] if options.atomic else []
            lines.append(committee.line(k * options.frequency, [*columns, *per_atom]))
    write_text(options.output, "\n".join(lines) + "\n")
    print(f"{options.output}: {sum(map(len, sets))} frames, {len(potentials)} models")
    return 0


def _references(data, wanted):
    """Labels to compare with, None where the mean over models serves."""
    import numpy as np

    from dpmd.errors import InputError

    if not wanted:
        return dict.fromkeys(("energies", "forces", "virials"))
    if data.energies is None or data.forces is None:
        raise InputError(f"{data.name}: --real_error needs energies and forces in the data set")
    virials = data.virials
    if virials is None:
        print(f"NOTE: {data.name} has no virials; like DeePMD-kit, the virial columns compare with zero")
        virials = np.zeros((len(data), 3, 3))
    return {"energies": data.energies, "forces": data.forces, "virials": virials}
