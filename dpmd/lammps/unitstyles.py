"""Unit styles of LAMMPS and the constants that go with them.

Inside, everything is in eV, Å, ps, u; a style says by what to multiply on the way out and which
values of the constants its scripts imply (LAMMPS's, so that its results are reproduced).
"""

from dataclasses import dataclass

from ..units import Constants

#: Boltzmann's constant in eV/K by which DeePMD-kit tells how large an energy unit is
_EV_BOLTZMANN = 8.617343e-5


@dataclass(frozen=True)
class UnitStyle:
    """energy : script units per eV; time : script units per ps; the rest are defaults of the style.

    pressure : name of the pressure unit; timestep, skin : in script units.
    """

    name: str
    energy: float
    time: float
    constants: Constants
    pressure: str
    timestep: float
    skin: float = 2.0

    @property
    def velocity(self):
        """Script units per Å/ps."""
        return 1 / self.time


def _real():
    boltzmann, mvv2e, nktv2p = 0.0019872067, 48.88821291 * 48.88821291, 68568.415
    energy = boltzmann / _EV_BOLTZMANN  # kcal/mol per eV, as DeePMD-kit takes it
    constants = Constants(_EV_BOLTZMANN, mvv2e * 1e-6 / energy, nktv2p * energy)
    return UnitStyle("real", energy, 1000.0, constants, "atm", 1.0)


UNITS = {
    "metal": UnitStyle("metal", 1.0, 1.0, Constants(_EV_BOLTZMANN, 1.0364269e-4, 1.6021765e6), "bar", 0.001),
    "real": _real(),
}
