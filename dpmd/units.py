"""Units, constants and the sign conventions, written once.

Inside dpmd: eV, Å, ps, u (g/mol), K; hence velocities in Å/ps and virials in eV.  Pressure is
in bar at the edges.  CODATA 2018 values.

*Virial* ``W[a, b] = -dE/dstrain_ab`` (3 x 3, eV), as DeePMD-kit prints it.  Then

    pressure     P = (2 E_kin + tr W) / (3 V)
    ASE stress   sigma = -W / V, tension positive, Voigt order xx yy zz yz xz xy
"""

from dataclasses import dataclass

import numpy as np

#: Boltzmann constant, eV/K
BOLTZMANN = 8.617333262e-5
#: eV per u Å^2 / ps^2, so that E_kin = 1/2 MASS_VELOCITY m v^2
MASS_VELOCITY = 1.66053906660e-27 * 1e4 / 1.602176634e-19
#: bar per eV/Å^3
BAR = 1602176.634
#: g/cm^3 per u/Å^3
DENSITY = 1.66053906660


@dataclass(frozen=True)
class Constants:
    """The constants that enter the dynamics, so that another program's values can be followed.

    boltzmann : eV/K; mass_velocity : eV per u (Å/ps)^2; pressure : of 1 eV/Å^3 in the unit of
    pressure (bar, unless said otherwise).
    """

    boltzmann: float
    mass_velocity: float
    pressure: float


CODATA = Constants(BOLTZMANN, MASS_VELOCITY, BAR)

_VOIGT = ([0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1])


def stress_from_virial(virial, volume):
    """ASE stress (6,) in eV/Å^3 from a virial (3, 3) in eV and a volume in Å^3."""
    symmetric = (virial + np.swapaxes(virial, -1, -2)) / 2
    return symmetric[..., _VOIGT[0], _VOIGT[1]] / -volume


def pressure_tensor(kinetic, virial, volume, constants=CODATA):
    """Pressure (3, 3) in bar; its mean diagonal element is the pressure.

    kinetic : (3, 3) eV, the sum of m v v (twice the kinetic energy); virial : (3, 3) eV; volume : Å^3.
    """
    return (kinetic + virial) / volume * constants.pressure


def temperature(kinetic_energy, degrees_of_freedom, constants=CODATA):
    """Kinetic temperature in K; 0 without degrees of freedom."""
    if degrees_of_freedom <= 0:
        return 0.0
    return 2 * kinetic_energy / (degrees_of_freedom * constants.boltzmann)


#: ASE velocity units per Å/ps (ASE's time unit is Å sqrt(u/eV))
ASE_VELOCITY = MASS_VELOCITY**0.5
