"""Which draw of the source a flow brings to which network (thesis, section 3.2.3, and orbits)."""

from collections.abc import Callable, Mapping

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from coset.alignment import align_stack
from coset.errors import InputError
from coset.flow._space import Space
from coset.symmetry import Symmetry

_HELD = 2**23
"""Numbers that are held at once where all pairs are compared."""


def squared_distances(space: Space, x: Tensor, y: Tensor) -> Tensor:
    """d(xᵢ, yⱼ)² of all pairs, (N, M) in float64: geodesic on spheres."""
    if not space.curved:
        wide, other = x.double(), y.double()
        centre = other.mean(0)
        return torch.cdist(wide - centre, other - centre).square()
    rows = max(1, _HELD // y.numel())
    parts = [space.distance(part[:, None], y[None]) for part in torch.split(x, rows)]
    return torch.cat(parts).double().square()


def independent(space: Space, sym: Symmetry | None, x0: Tensor, x1: Tensor) -> Tensor:
    """q(x₀)p(x₁): pairs as they were drawn."""
    return x1


def optimal_transport(space: Space, sym: Symmetry | None, x0: Tensor, x1: Tensor) -> Tensor:
    """The pairing of a batch with the least Σ d(x₀, x₁)²: an assignment, so that every network is used once (3.13)."""
    with torch.no_grad():
        _, columns = linear_sum_assignment(squared_distances(space, x0, x1).cpu().numpy())
    return x1[torch.as_tensor(columns, device=x1.device)]


def orbit(space: Space, sym: Symmetry | None, x0: Tensor, x1: Tensor) -> Tensor:
    """x₁ moved along its orbit to x₀, pair by pair, by permutations and signs."""
    if sym is None:
        raise InputError(
            "coupling is 'orbit', and the flow has no symmetry; expected 'independent' or 'optimal-transport'"
        )
    with torch.no_grad():
        moved = align_stack(sym, space.points(x0), space.points(x1), relax=False, continuous=False, show=False).aligned
    return space.rows(moved).to(x1)


COUPLINGS: Mapping[str, Callable[[Space, Symmetry | None, Tensor, Tensor], Tensor]] = {
    "independent": independent,
    "optimal-transport": optimal_transport,
    "orbit": orbit,
}
"""Name → the networks of a batch in the order, and at the places of their orbits, in which they are paired with x₀."""
