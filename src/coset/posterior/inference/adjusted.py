"""Microcanonical trajectories with a Metropolis test: exact, whatever the step size (Robnik, Cohn-Gordon, Seljak 2025).

A trajectory begins with velocities that are uniform on the sphere, has a number of steps without noise, and its end is
accepted with probability min(1, exp(−ΔE)): the steps are reversible under u → −u, and exp(−ΔE) is p at the end over p
at the beginning times the Jacobian. Step size, mass and length are adapted as those of Hamiltonian trajectories are.
"""

import torch
from torch import Tensor

from coset.errors import InputError
from coset.posterior.inference.acceleration import Accelerator
from coset.posterior.inference.chains import LogDensity, Plan, as_target
from coset.posterior.inference.hamiltonian import Hamiltonian, Phase, Trajectories
from coset.posterior.inference.microcanonical import directions, drift_of


class AdjustedMicrocanonical(Hamiltonian):
    """Chains that propose the ends of microcanonical trajectories; their lengths are distances, for |u| = 1."""

    purpose = "adjusted mclmc"

    def __init__(
        self,
        density: LogDensity,
        start: Tensor,
        plan: Plan,
        trajectories: Trajectories,
        accelerator: Accelerator | None = None,
        integrator: str = "leapfrog",
    ) -> None:
        super().__init__(density, start, plan, trajectories, accelerator)
        if start.shape[1] < 2:
            raise InputError("there is one weight; microcanonical dynamics expects two or more: fit_hmc takes one")
        self.target = as_target(density)
        self.drift = drift_of(self.target.function, integrator)

    def _propose(self, step: float, steps: int, generator: torch.Generator) -> tuple[Phase, Tensor, Tensor]:
        state = self.state
        position, value, gradient = state["position"], state["value"], state["gradient"]
        velocity = directions(position, generator)
        scale = state["inverse_mass"].sqrt().to(position.dtype)
        size = torch.tensor(step, dtype=position.dtype, device=position.device)
        inputs = (position, velocity, value, gradient, scale, size, *self.target.data)
        drift = self.accelerator.ready("drift", self.drift, inputs)
        total = torch.zeros_like(value, dtype=torch.float64)
        for _ in range(steps):
            position, velocity, value, gradient, error = drift(
                position, velocity, value, gradient, scale, size, *self.target.data
            )
            total += error
        return Phase(position, velocity, value, gradient), -total, velocity
