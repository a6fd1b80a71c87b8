"""A page about a finished run: energies, temperature, pressure, structure, drift, times and speed.

Reads what md-run left in a folder: NAME.summary.json, NAME.thermo.csv, NAME.log and the files of
[[analysis]] sections.  The page is one self-contained file.
"""

from pathlib import Path

from .common import check_output


def add_arguments(parser):
    """The command line of ``dpmd report``."""
    parser.add_argument("folder", type=Path, metavar="LOGDIR", help="folder in which md-run was called")
    parser.add_argument("--name", metavar="NAME", help="which run, if the folder has several")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="page to write: .html, .png, .pdf or .svg; default LOGDIR/NAME.report.html",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def run(options):
    """Find the run and draw the page."""
    from dpmd.report import find, write

    found = find(options.folder, options.name)
    output = options.output or options.folder / f"{found.name}.report.html"
    check_output(output, options.overwrite)
    write(found, output)
    print(output)
    return 0
