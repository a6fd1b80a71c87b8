"""LAMMPS scripts with ``pair_style deepmd``, run unmodified and without LAMMPS.

``language`` reads scripts (words, variables, formulas, control flow); ``commands`` is the table of
commands, from which parsing, documentation and the list of what is unsupported come; ``session``
holds what a script has set up and runs it with the same classes that the TOML input uses.
"""
