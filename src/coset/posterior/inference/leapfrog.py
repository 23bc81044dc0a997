"""The leapfrog integrator of Hamiltonian dynamics (Neal 2011), for many chains at once."""

from dataclasses import dataclass

from torch import Tensor

from coset.posterior.inference.chains import LogDensity


@dataclass(frozen=True, eq=False)
class Phase:
    """Positions and momenta (C, D), with the log-density (C,) and its gradient (C, D) at the positions."""

    position: Tensor
    momentum: Tensor
    value: Tensor
    gradient: Tensor


def energy(phase: Phase, inverse_mass: Tensor) -> Tensor:
    """H = −log p(θ) + ½ rᵀM⁻¹r of every chain (C,), in float64; M⁻¹ is a diagonal (D,)."""
    kinetic = (phase.momentum.double().square() * inverse_mass).sum(-1) / 2
    return kinetic - phase.value.double()


def leapfrog(density: LogDensity, phase: Phase, inverse_mass: Tensor, step_size: float, steps: int) -> Phase:
    """``steps`` of r ← r + ½ε∇log p(θ), θ ← θ + εM⁻¹r, r ← r + ½ε∇log p(θ): reversible, of unit Jacobian."""
    position, value, gradient = phase.position, phase.value, phase.gradient
    momentum = phase.momentum + step_size / 2 * gradient
    drift = step_size * inverse_mass.to(position.dtype)
    for number in range(steps):
        position = position + drift * momentum
        value, gradient = density(position)
        # Two half kicks in a row are one.
        momentum = momentum + (step_size if number < steps - 1 else step_size / 2) * gradient
    return Phase(position, momentum, value, gradient)
