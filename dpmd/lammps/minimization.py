"""The commands minimize, min_style and min_modify."""

import time

from ..ensembles import Fix
from ..errors import RunError
from ..minimize import BoxRelaxation, Minimizer
from .language import ScriptError
from .log import ThermoTable, loop_report
from .session import FirstLook

MIN_STYLES = {
    "cg": ("", "conjugate gradients (Polak-Ribiere)"),
    "sd": ("", "steepest descent"),
    "fire": ("", "damped dynamics with growing steps"),
    "quickmin": ("", "damped dynamics"),
}


def min_style(session, words):
    """Command ``min_style``."""
    if words[0] not in MIN_STYLES:
        raise ScriptError(f"min_style {words[0]!r} is not supported; known: {', '.join(MIN_STYLES)}")
    session.minimizer["style"] = words[0]


def min_modify(session, words):
    """Command ``min_modify``."""
    rest = list(words)
    while rest:
        name, value, rest = rest[0], rest[1:2], rest[2:]
        if not value:
            raise ScriptError(f"min_modify {name} lacks its value")
        if name == "dmax":
            session.minimizer["dmax"] = session.number(value[0], "min_modify dmax")
        elif name == "norm":
            if value[0] not in ("two", "max"):
                raise ScriptError("min_modify norm takes two or max")
            session.minimizer["norm"] = value[0]
        elif name not in (
            "line", "alpha_damp", "discrete_factor", "integrator", "tmax", "tmin", "delaystep", "dtgrow", "dtshrink",
            "alpha0", "alphashrink", "vdfmax", "halfstepback", "initialdelay", "abcfire",
        ):  # fmt: skip
            raise ScriptError(f"min_modify {name!r} is not supported; known: dmax, line, norm and parameters of fire")


def limits(session, words):
    """Tolerances of energy and force, and the most iterations and evaluations, of ``minimize``."""
    energy_tolerance, force_tolerance = (session.number(w, "minimize") for w in words[:2])
    iterations, evaluations = (int(session.number(w, "minimize")) for w in words[2:4])
    if min(energy_tolerance, force_tolerance) < 0 or min(iterations, evaluations) < 0:
        raise ScriptError("minimize takes numbers of at least 0")
    if session.minimizer["style"] in ("fire", "quickmin") and any(
        isinstance(f, BoxRelaxation) for f in session.fixes.values()
    ):
        raise ScriptError(f"fix box/relax works with min_style cg and sd, not {session.minimizer['style']}")
    return energy_tolerance, force_tolerance, iterations, evaluations


def minimize(session, words):
    """Command ``minimize``."""
    energy_tolerance, force_tolerance, iterations, evaluations = limits(session, words)
    simulation = session.prepare()
    system, log = session.system, session.log
    session.first_step = session.begin_step = system.step
    session.last_step = system.step + iterations
    log("Setting up " + session.minimizer["style"] + " style minimization ...")
    table = ThermoTable(session, -1)
    simulation.hooks = [FirstLook(session), *session.dumps.values(), table]
    simulation.ensemble.span(system.step, session.last_step)
    simulation.compute_forces(minimizing=True)
    for fix in session.fixes.values():
        if isinstance(fix, Fix) and not fix.integrates:
            fix.start(system)
    for hook in simulation.hooks:
        hook.start(simulation)
    simulation.call_hooks(first=True)
    boxes = [f for f in session.fixes.values() if isinstance(f, BoxRelaxation)]
    minimizer = Minimizer(
        simulation, session.minimizer["style"], energy_tolerance, force_tolerance / session.units.energy, iterations,
        evaluations, session.minimizer["dmax"], session.timestep_ps, session.minimizer["norm"],
        boxes[0] if boxes else None, lambda s: s.call_hooks(),
    )  # fmt: skip
    result = minimizer.run()
    table.last = system.step
    if table.printed != system.step:
        table(simulation)
    seconds, unit = time.perf_counter() - session.loop_begin, session.units.energy
    loop_report(session, seconds, result.iterations, session.committee.first.operators.threads)
    log("\nMinimization stats:")
    log(f"  Stopping criterion = {result.reason}")
    log("  Energy initial, next-to-last, final =")
    log("  " + " ".join(f"{e * unit:18.15g}" for e in result.energies))
    log("  Force two-norm initial, final = " + " ".join(f"{f * unit:.6g}" for f in result.force_norms))
    log("  Force max component initial, final = " + " ".join(f"{f * unit:.6g}" for f in result.largest_forces))
    log("  Final line search alpha, max atom move = 1 0")
    log(f"  Iterations, force evaluations = {result.iterations} {result.evaluations}")
    if result.double_from is not None:
        log(f"  Networks computed in double precision from iteration {result.double_from} on")
    # with both tolerances 0, so many iterations are what was asked for
    if not result.converged and (energy_tolerance or force_tolerance):
        log.warning(result.shortfall)
        if session.options.on_unconverged == "error":
            raise RunError.everywhere_raised(f"{result.shortfall} (--on-unconverged error)")
