"""The sub-commands of ``dpmd``, one module each.

To add one, add a line to :data:`COMMANDS` and a module of that name (dashes become underscores) with
``add_arguments(parser)`` and ``run(options)``, which returns the exit code.  The module's docstring is
what ``dpmd NAME --help`` prints.  Only the module of the chosen command is imported.
"""

import argparse
import inspect
from dataclasses import dataclass
from importlib import import_module

from dpmd import __version__


@dataclass(frozen=True)
class Command:
    """A sub-command: its name and one line about it."""

    name: str
    help: str

    @property
    def module(self):
        return import_module(f"{__name__}.{self.name.replace('-', '_')}")


COMMANDS = (
    Command("info", "what a model file holds"),
    Command("compress", "tabulate a model's embedding networks, and measure what that changes"),
    Command("convert", "write a model in another format: .dp, .yaml or .dptab"),
    Command("test", "errors of a model on labelled structures, as 'dp test' prints them, and a plot"),
    Command("model-devi", "disagreement of a committee of models, as 'dp model-devi' writes it"),
    Command("neighbor-stat", "shortest distances and numbers of neighbours in a data set"),
    Command("doctor", "whether this machine can compute, on what, and what is missing"),
    Command("report", "a page about a finished run: energies, structure, times"),
)


def parser(chosen=None):
    """The command line; the arguments of the command named ``chosen`` are filled in."""
    top = argparse.ArgumentParser(
        prog="dpmd",
        description="Look at, prepare, test and compare Deep Potential models.",
        epilog="Exit codes: 0 done, 1 failed on the way, 2 wrong input. 'dpmd COMMAND --help' explains a command.",
    )
    top.add_argument("--version", action="version", version=f"dpmd {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        if command.name != chosen:
            commands.add_parser(command.name, help=command.help)
            continue
        sub = commands.add_parser(
            command.name,
            help=command.help,
            description=inspect.cleandoc(command.module.__doc__),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.module.add_arguments(sub)
        sub.set_defaults(run=command.module.run)
    return top


def main(arguments):
    """Run the command that ``arguments`` (list of str) ask for; returns the exit code."""
    words = [a for a in arguments if not a.startswith("-")]
    options = parser(words[0] if words else None).parse_args(arguments)
    return options.run(options)
