"""What several commands share: options, models, files that must not be overwritten."""

from pathlib import Path

from dpmd.errors import InputError


def add_model(parser, help="model file: .pb, .pth, .dp, .yaml or .dptab"):
    """The positional argument MODEL."""
    parser.add_argument("model", type=Path, metavar="MODEL", help=help)


def add_output(parser, metavar, help, default=None):
    """``-o FILE`` and ``--overwrite``."""
    note = f"; default {default}" if default else ""
    parser.add_argument(
        "-o", "--output", type=Path, required=default is None, default=default and Path(default), metavar=metavar,
        help=help + note,
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def add_engine(parser, precision="double"):
    """``--device``, ``--precision`` and ``--threads``."""
    parser.add_argument("--device", default="auto", metavar="auto|cpu|cuda[:i]", help="where to compute; default auto")
    parser.add_argument(
        "--precision",
        default=precision,
        choices=("double", "mixed", "half"),
        help=f"of tables and networks; default {precision}",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="default all cores that the process may use")


def add_data(parser):
    """``-s`` and ``-f``, the data sets, with the meaning that DeePMD-kit gives them."""
    parser.add_argument(
        "-s", "--system", type=Path, action="append", default=[], metavar="PATH",
        help="a DeePMD data set, a folder with some below it, or a file that ASE reads (extended XYZ, ...); repeatable",
    )  # fmt: skip
    parser.add_argument(
        "-f", "--datafile", type=Path, metavar="FILE", help="a text file that names one such path per line"
    )


def data_paths(options):
    """The paths that :func:`add_data`'s options name.  Raises InputError if there are none."""
    paths = list(options.system)
    if options.datafile is not None:
        try:
            lines = options.datafile.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{options.datafile}: cannot be read as a list of data sets: {error}") from error
        paths += [Path(text.strip()) for text in lines if text.strip() and not text.lstrip().startswith("#")]
    if not paths:
        raise InputError("no data set given; name one with -s PATH, or a list of them with -f FILE")
    return paths


def check_output(path, overwrite):
    """Refuse to overwrite a file, and folders that do not exist."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist; create it first")
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists; choose another name or give --overwrite")


def load_model(path):
    """A model as its file has it.  Raises InputError if that cannot be read."""
    from dpmd.models import ModelError, load

    try:
        return load(path)
    except ModelError as error:
        raise InputError(str(error)) from error


def load_potential(path, options):
    """A :class:`dpmd.Potential` as :func:`add_engine`'s options ask.  Raises InputError."""
    from dpmd.models import ModelError
    from dpmd.potential import Potential

    try:
        return Potential(path, options.device, options.precision, options.threads)
    except ModelError as error:
        raise InputError(str(error)) from error
