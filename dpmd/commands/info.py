"""Show what a model file holds: types, descriptor, networks, where it comes from, and warnings."""

from .common import add_model, load_model


def add_arguments(parser):
    """The command line of ``dpmd info``."""
    add_model(parser)


def run(options):
    """Print the description of a model."""
    from dpmd.models.describe import describe

    print(describe(load_model(options.model)))
    return 0
