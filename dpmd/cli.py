"""The commands ``md-run`` and ``dpmd``."""

import argparse
import os
import sys
import time
import traceback
from functools import partial
from pathlib import Path

from . import __version__
from .errors import InputError, RunError

#: variables by which launchers tell a process its rank and their number
_launchers = (
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
)


def _world():
    """MPI's communicator of all ranks, or None for a process on its own.

    Raises InputError where a launcher has started several ranks that cannot find one another:
    each would run the whole job and overwrite the others' files.
    """
    launched = [rank for rank, size in _launchers if rank in os.environ and int(os.environ.get(size, "2")) > 1]
    if not launched:
        return None
    started = f"started by an MPI launcher ({launched[0]} is set) with several ranks, but"
    remedy = "Or start md-run without the launcher: it uses all cores by threads (--threads N)"
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"{started} mpi4py cannot be loaded ({error}). Install it with: pip install '.[mpi]' in a checkout of dpmd "
            f"(brings an MPI and its mpiexec; with a system MPI: pip install mpi4py). {remedy}"
        ) from error
    if MPI.COMM_WORLD.size == 1:
        library = MPI.Get_library_version().splitlines()[0].strip("\0 ")
        raise InputError(
            f"{started} mpi4py uses another MPI ({library}), so that every rank is alone. Use the mpiexec of that MPI, "
            f"or install mpi4py for the launcher's. {remedy}"
        )
    import ase.parallel

    # ASE would notice mpi4py and read and write files by all ranks together; here root does that alone
    ase.parallel.world.comm = ase.parallel.DummyMPI()
    return MPI.COMM_WORLD


def _guarded(function):
    """Run a command; known errors become one clear message and an exit code.

    With several ranks an error that only one of them has ends them all.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show Å must not end a run
    try:
        return function()
    except BaseException as error:
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is None or mpi.COMM_WORLD.size == 1 or isinstance(error, SystemExit):
            return _explain(error)
        if any(getattr(each, "everywhere", False) for each in (error, error.__cause__)):
            return _explain(error) if mpi.COMM_WORLD.rank == 0 else getattr(error, "exit_code", 1)
        print(f"rank {mpi.COMM_WORLD.rank} failed and ends the job:", file=sys.stderr)
        code = _explain(error)
        sys.stderr.flush()
        time.sleep(1)  # the launcher passes the message on before it ends everybody
        mpi.COMM_WORLD.Abort(code)


def _explain(problem):
    """Print what an exception means; returns the exit code."""
    try:
        raise problem
    except (InputError, RunError) as error:
        label = "ERROR" if isinstance(error, InputError) else "STOPPED"
        for line in str(error).splitlines():
            print(f"{label}: {line}" if isinstance(error, InputError) else line, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads: no complaint at exit
        return 1
    except OSError as error:
        print(f"STOPPED: {error}; the last checkpoint, if there was one, is intact", file=sys.stderr)
        return 1
    except MemoryError as error:
        print(f'ERROR: out of memory ({error}); use fewer atoms or --precision mixed', file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        print("ERROR: this is a defect of dpmd; please report it with the lines above", file=sys.stderr)
        return 1


# --------------------------------------------------------------------- md-run


def _md_run_parser():
    from .options import FLAGS

    parser = argparse.ArgumentParser(
        prog="md-run",
        allow_abbrev=False,  # --rank is no short form of --ranks-per-node
        description="Run molecular dynamics with a Deep Potential, as an input file describes.",
        epilog="Exit codes: 0 done, 1 failed on the way, 2 wrong input, 128+n stopped by signal n. "
        "'md-run --help-input' explains the TOML input file, 'md-run --help-lammps [COMMAND]' LAMMPS scripts.",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="input file: TOML, or a LAMMPS script")
    parser.add_argument("--help-input", action="store_true", help="list every section and key of the input file")
    parser.add_argument(
        "--help-lammps",
        nargs="?",
        const="",
        metavar="COMMAND",
        help="list the commands of LAMMPS scripts, or explain one",
    )
    parser.add_argument("--version", action="version", version=f"dpmd {__version__}")
    lammps = parser.add_argument_group("for LAMMPS scripts, as in LAMMPS")
    lammps.add_argument("-in", "-i", dest="script", metavar="FILE", help="the script")
    lammps.add_argument(
        "-var", "-v", dest="variables", action="append", nargs="+", default=[], metavar="NAME VALUE",
        help="set an index variable",
    )  # fmt: skip
    lammps.add_argument("-log", "-l", dest="log", default="log.lammps", metavar="FILE", help="log file, or none")
    lammps.add_argument(
        "-screen", "-sc", dest="screen", metavar="FILE", help="file for what goes to the screen, or none"
    )
    lammps.add_argument("-echo", "-e", dest="echo", choices=("none", "screen", "log", "both"), help="repeat commands")
    lammps.add_argument(
        "--no-rehearsal", action="store_true",
        help="run at once, without looking for mistakes first: they are found where they are reached",
    )  # fmt: skip
    for option in FLAGS:
        unit = f" ({option.unit})" if option.unit else ""
        arguments = {"help": f"{option.help}{unit}", "default": None, "dest": option.name}
        if option.kind is bool:
            parser.add_argument(option.flag, action="store_true", **arguments)
        else:
            metavar = "|".join(option.choices) if option.choices else option.name.upper()
            parser.add_argument(option.flag, type=option.kind, metavar=metavar, **arguments)
    return parser


def _is_lammps(path):
    """Whether a file is a LAMMPS script, by its content."""
    from .lammps.interpreter import is_script

    try:
        return is_script(Path(path).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return False


def _given(options):
    """What the command line sets, checked: {name: value}."""
    from .options import FLAGS

    given = {}
    for option in FLAGS:
        value = getattr(options, option.name, None)
        if value is not None and value is not False:
            given[option.name] = option.check(value, option.flag)
    return given


def _run_lammps(options, world):
    """Run a LAMMPS script with the options of the command line, on the ranks of ``world`` if it is not None."""
    from types import SimpleNamespace

    from dpmd.parallel import Processes

    from .lammps.interpreter import run_script
    from .options import FLAGS, defaults

    if options.no_rehearsal and options.check:
        raise InputError("--check looks for mistakes and --no-rehearsal does not: leave one of them out")
    given = _given(options)
    refused = [o for o in FLAGS if o.name in given and o.script is not True]
    if refused:
        raise InputError(*(f"{options.file}: {o.flag}: {o.script.format(value=given[o.name])}" for o in refused))
    given = defaults(script=True) | given
    for words in options.variables:
        if len(words) < 2:
            raise InputError(f"-var {words[0]}: a name and at least one value are needed")
    variables = [(words[0], words[1:]) for words in options.variables]
    processes = None
    if world:
        processes = Processes(world, 1 if given["decomposition"] == "rank" else given["ranks_per_node"])
    screen = sys.stdout
    if options.screen is not None and (world is None or world.rank == 0):
        screen = None if options.screen == "none" else open(options.screen, "w", encoding="utf-8")  # noqa: SIM115
    return run_script(
        options.file,
        SimpleNamespace(**given),
        variables,
        None if options.log == "none" else options.log,
        screen,
        options.echo,
        processes,
        rehearse=not options.no_rehearsal,
    )


def _md_run(arguments):
    parser = _md_run_parser()
    options = parser.parse_args(arguments)
    if options.help_input:
        from .options import help_text

        print(help_text())
        return 0
    if options.help_lammps is not None:
        from .lammps.commands import help_text as lammps_help

        print(lammps_help(options.help_lammps or None))
        return 0
    options.file = options.script or options.file
    if options.file is None:
        parser.print_usage(sys.stderr)
        raise InputError("no input file given; 'md-run --help' and 'md-run --help-input' explain")
    world = _world()
    if options.script or _is_lammps(options.file):
        return _run_lammps(options, world)
    _refuse_lammps_options(options)

    from dpmd.parallel import OneProcess, Processes

    from .job import Job

    processes = Processes(world) if world else OneProcess()
    settings = processes.root_first(lambda: _settings(options))
    if world:
        processes = Processes(world, 1 if settings.run.decomposition == "rank" else settings.run.ranks_per_node)
    return Job(settings, processes=processes).run()


def _refuse_lammps_options(options):
    """Raises InputError for options of LAMMPS scripts, which an input file in TOML would not use."""
    given = {
        "-var": bool(options.variables), "-log": options.log != "log.lammps", "-screen": options.screen is not None,
        "-echo": options.echo is not None, "--no-rehearsal": options.no_rehearsal,
    }  # fmt: skip
    for flag in (flag for flag, there in given.items() if there):
        raise InputError(
            f"{flag} is for LAMMPS scripts, and {options.file} is an input file in TOML; leave it out "
            "(files are named by name in [run])"
        )


def _where(in_file, given, key=None):
    """Where ``key`` was set: on the command line, or where the file says."""
    return f"--{key.replace('_', '-')}" if key in given else in_file(key)


def _settings(options):
    """The input file's settings, with the command line's in their place."""
    from . import inputfile
    from .options import SECTIONS

    settings, given = inputfile.read(options.file), _given(options)
    for section in SECTIONS:
        if section.repeated:
            continue
        values = getattr(settings, section.name)
        in_file, mine = values.where, {o.name: given[o.name] for o in section.options if o.name in given}
        vars(values).update(mine)
        values.where = partial(_where, in_file, mine)
    return settings


def md_run(arguments=None):
    """Entry point of ``md-run``."""
    sys.exit(_guarded(lambda: _md_run(arguments)))


# --------------------------------------------------------------------- dpmd


def _dpmd(arguments):
    from .commands import main

    return main(sys.argv[1:] if arguments is None else arguments)


def dpmd(arguments=None):
    """Entry point of ``dpmd``."""
    sys.exit(_guarded(lambda: _dpmd(arguments)))
