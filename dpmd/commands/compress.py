"""Tabulate a model's embedding networks, and measure what that changes.

FILE.dptab is dpmd's own table file; FILE.dp and FILE.yaml are DeePMD-kit's backend-independent
formats, with the tables inside as 'dp compress' puts them there.  dpmd tabulates models by itself on
loading: a table file saves that time and can be given to others.
"""

from pathlib import Path

from .common import add_model, add_output


def add_arguments(parser):
    """The command line of ``dpmd compress``."""
    add_model(parser)
    add_output(parser, "FILE", "file to write; its suffix tells the format: .dptab, .dp or .yaml")
    parser.add_argument(
        "--structure", type=Path,
        help="structure on which to measure the error, and for whose neighbours the tables are to be fast; default: "
        "one made for the purpose",
    )  # fmt: skip
    parser.add_argument(
        "--rank", type=int, metavar="N", help="functions per embedding network in a .dptab; default: as many as needed"
    )


def run(options):
    """Write the tabulated model and print its errors."""
    from dpmd.compress import compress

    compress(options.model, options.output, options.structure, options.overwrite, options.rank)
    return 0
