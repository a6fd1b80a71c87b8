"""Write a model in another format.

The suffix of FILE tells which: .dp (HDF5) or .yaml, DeePMD-kit's backend-independent formats, or
.dptab, dpmd's own.  What the new format cannot express is refused, naming it; differences of rounding
are reported.  Numbers are not changed.
"""

from .common import add_model, add_output, check_output, load_model


def add_arguments(parser):
    """The command line of ``dpmd convert``."""
    add_model(parser)
    add_output(parser, "FILE", "file to write: .dp, .yaml or .dptab")


def run(options):
    """Read, write, read again."""
    from dpmd.errors import InputError
    from dpmd.models import ModelError
    from dpmd.models.writers import write

    model = load_model(options.model)
    check_output(options.output, options.overwrite)
    try:
        notes = write(model, options.output)
    except ModelError as error:
        raise InputError(str(error)) from error
    print(f"{options.output}: {options.output.stat().st_size / 2**20:.2f} MiB, from {model.source.format}")
    for note in notes:
        print(f"NOTE: {note}")
    return 0
