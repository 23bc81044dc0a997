"""The divergence of a velocity on products of spheres and Euclidean spaces, exact or estimated."""

from collections.abc import Callable

import torch
from torch import Tensor

from coset._checks import check_choice, check_count
from coset.errors import InputError
from coset.flow._solvers import Velocity, checked_rows, checked_velocity
from coset.flow._space import Space

TRACES = ("exact", "hutchinson")

_ROWS = 64
"""A backward pass takes as many directions at once as make up so many rows: memory is that of so many, or of N."""

NOISES: dict[str, Callable[..., Tensor]] = {
    "rademacher": lambda shape, **kind: 2 * torch.randint(0, 2, shape, **kind) - 1,
    "gaussian": torch.randn,
}
"""By name: how the probes of Hutchinson's estimate are drawn, of mean 0 and covariance I."""


def divergence(
    space: Space,
    velocity: Velocity,
    t: float | Tensor,
    x: Tensor,
    *,
    trace: str = "exact",
    probes: int = 1,
    noise: str = "rademacher",
    generator: torch.Generator | None = None,
    differentiable: bool = False,
) -> Tensor:
    """div v(t, x) = Tr(ΠJΠ) at rows x (N, D) of the space, (N,) in float64; J the Jacobian of the tangent part of v.

    Exact by D products with J, or unbiased by ``probes`` of them: the mean of εᵀΠJΠε (thesis (3.23)). Rows must not
    depend on each other in the velocity (no batch norm in training).
    """
    rows = checked_rows(space, x)
    drawn = draw_probes(rows, trace, probes, noise, generator)
    with torch.set_grad_enabled(differentiable and torch.is_grad_enabled()):
        time = torch.as_tensor(t, dtype=x.dtype, device=x.device)
        return velocity_and_divergence(space, velocity, time, rows, drawn)[1]


def draw_probes(rows: Tensor, trace: str, probes: int, noise: str, generator: torch.Generator | None) -> Tensor | None:
    """ε (probes, N, D), or None where the trace is exact."""
    check_choice("trace", trace, TRACES)
    check_count("probes", probes)
    check_choice("noise", noise, NOISES)
    if trace == "exact":
        return None
    if not isinstance(generator, torch.Generator):
        raise InputError(f"generator is {generator!r} with the trace 'hutchinson'; expected a torch.Generator")
    shape = (probes, *rows.shape)
    return NOISES[noise](shape, generator=generator, dtype=rows.dtype, device=generator.device).to(rows.device)


def velocity_and_divergence(
    space: Space, velocity: Velocity, t: Tensor, rows: Tensor, probes: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Πv and its divergence, at rows that are on the space; for ``probes`` as drawn, None for the exact trace.

    The sum over e of ⟨Πe, Jᵀ(Πe)⟩, e the basis or the probes: rows do not depend on each other, so one backward pass
    gives a product for every row. Where gradients are enabled the results can be differentiated; otherwise the graph is
    gone when the function ends.
    """
    further = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.enable_grad():
        # v reads x as one leaf, Π as another: so a v that autograd cannot follow is told from one that is constant.
        read, at = (rows.view_as(rows) if further and rows.requires_grad else _leaf(rows) for _ in range(2))
        v = checked_velocity(velocity(t, read), read)
        if not v.requires_grad:
            raise _not_followed()
        tangent = space.tangent(at, v)
        foot = at if further else at.detach()
        count = rows.shape[1] if probes is None else len(probes)
        together = max(1, _ROWS // max(1, len(rows)))
        total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        for first in range(0, count, together):
            last = min(first + together, count)
            some = _basis(rows, first, last) if probes is None else probes[first:last]
            directions = space.tangent(foot, some)
            products = _products(tangent, read, at, directions, further)
            total = total + (products * directions).sum(-1).double().sum(0)
    if probes is not None:
        total = total / len(probes)
    return (tangent, total) if further else (tangent.detach(), total.detach())


def _basis(rows: Tensor, first: int, last: int) -> Tensor:
    """Some vectors of the standard basis, the same for every row, (last − first, N, D)."""
    found = rows.new_zeros(last - first, *rows.shape)
    found[torch.arange(last - first), :, torch.arange(first, last)] = 1
    return found


def _products(tangent: Tensor, read: Tensor, at: Tensor, directions: Tensor, further: bool) -> Tensor:
    """Jᵀe of every row for directions e (K, N, D), in one backward pass where its operations can be batched."""

    def product(e: Tensor, batched: bool) -> Tensor:
        by_v, by_projection = torch.autograd.grad(
            tangent,
            (read, at),
            e,
            retain_graph=True,
            create_graph=further,
            allow_unused=True,
            is_grads_batched=batched,
        )
        if by_v is None:
            raise _not_followed()
        return by_v if by_projection is None else by_v + by_projection

    if len(directions) > 1:
        try:
            return product(directions, True)
        except RuntimeError:
            # Not every operation has a batched form; one direction after the other gives the same numbers, or the
            # error that is no matter of batches.
            pass
    return torch.stack([product(e, False) for e in directions])


def _leaf(rows: Tensor) -> Tensor:
    # A clone: tensors of torch.inference_mode cannot be differentiated, copies of them can.
    return rows.detach().clone().requires_grad_()


def _not_followed() -> InputError:
    return InputError(
        "velocity gives numbers that autograd does not trace back to x; expected a function of x without torch.no_grad "
        "and detach inside (of a constant field x * 0 is a part)"
    )
