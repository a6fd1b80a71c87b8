"""Errors of the model layer."""


class ModelError(ValueError):
    """A model file that is missing, damaged, of an unsupported kind, or used wrongly.

    The message says which file, what is wrong and what to do; commands print it as it is
    and exit with 2.
    """
