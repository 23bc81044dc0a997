"""Weights drawn from q beside q itself: how well units fit each other, made once for all permutations."""

from collections.abc import Mapping

from torch import Tensor

from coset.posterior.symmetrized.orbit import Moves, Orbit, picked
from coset.posterior.symmetrized.pairs import normal_log_prob, unit_log_probs


class Drawn:
    """Weights ``x`` (…, D) and q = N(``mean``, diag ``std``²), both (D,), as ``orbit`` orders them; in float64.

    ``matrices``: what ``units`` gives, where it is there already; of the rest only the means may then be asked for.
    """

    def __init__(
        self, orbit: Orbit, x: Tensor, mean: Tensor, std: Tensor, matrices: Mapping[str, Tensor] | None = None
    ) -> None:
        self.orbit = orbit
        self.x, self.mean, self.std = x, mean, std
        self._matrices = dict(matrices or {})

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading axes of x."""
        return tuple(self.x.shape[:-1])

    def with_densities_held(self) -> "Drawn":
        """The same weights beside the same q, through which no gradient flows."""
        return Drawn(self.orbit, self.x, self.mean.detach(), self.std.detach())

    def units(self, name: str) -> Tensor:
        """A_ij (…, n, n): unit i of x under unit j of q, by the weights that no other class moves."""
        if name not in self._matrices:
            self._matrices[name] = self._compare(name)
        return self._matrices[name]

    def log_ratios(self, moves: Moves) -> Tensor:
        """log q(g⁻¹·ω) − log q(ω), (…, K), for permutations (…, K, *shape) with leading axes as those of x, or 1."""
        parts = [picked(self.units(name), moves[name]) for name in self.orbit.alone]
        if len(self.orbit.shared) or not parts:
            parts.append(self._shared_ratios(moves))
        return sum(parts[1:], parts[0])

    def _shared_ratios(self, moves: Moves) -> Tensor:
        shared = self.orbit.shared.to(self.x.device)
        places = self.orbit.places(moves).to(self.x.device)
        # q(g⁻¹·ω) is the density of N(g·mean, diag (g·std)²) at ω.
        moved = normal_log_prob(self.x[..., None, shared], self.mean[places], self.std[places])
        return moved - normal_log_prob(self.x[..., shared], self.mean[shared], self.std[shared])[..., None]

    def _compare(self, name: str) -> Tensor:
        return unit_log_probs(self.orbit.alone[name].to(self.x.device), self.x, self.mean, self.std)
