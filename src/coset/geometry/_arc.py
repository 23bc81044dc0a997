"""A geodesic of the manifold of canonical weights, as a function of time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset._checks import is_number
from coset.errors import InputError
from coset.geometry import spheres

if TYPE_CHECKING:
    from coset.geometry._manifold import Manifold


@dataclass(frozen=True, eq=False)
class Arc:
    """A geodesic between two points. On spheres x(t) = [sin((1−t)φ)x₀ + sin(tφ)x₁]/sin φ for the directions of both
    ends, lengths (which are the radius up to rounding) on the line; where ends agree, they are given back exactly.

    ``shares``: for each of the manifold's spheres the norms of both ends, ‖x̂₀ − x̂₁‖ and φ.
    """

    manifold: "Manifold"
    start: Mapping[str, Tensor]
    end: Mapping[str, Tensor]
    shares: tuple[tuple[Tensor, Tensor, Tensor, Tensor], ...]
    dtype: torch.dtype | None = None

    def __call__(self, t: float | Tensor) -> dict[str, Tensor]:
        """The coordinates of the point at t."""

        def flat(a: Tensor, b: Tensor) -> Tensor:
            return torch.lerp(a, b, _ahead(number, max(a.ndim, b.ndim), a.dtype))

        def curved(a: Tensor, b: Tensor, radius: float, dims: tuple[int, ...]) -> Tensor:
            first, second, apart, angle = next(queue)
            at = _ahead(number, max(a.ndim, b.ndim), angle.dtype)
            length = torch.lerp(first, second, at)
            of_a, of_b = spheres.arc_shares(angle, at)
            of_a, of_b = torch.where(apart > 0, of_a, 1.0), torch.where(apart > 0, of_b, 0.0)
            wide_a, wide_b = a.to(self.dtype or a.dtype), b.to(self.dtype or b.dtype)
            return (of_a * length / first * wide_a + of_b * length / second * wide_b).to(a.dtype)

        number, queue = self._time(t), iter(self.shares)
        return self.manifold.mapped((dict(self.start), dict(self.end)), flat, curved)

    def velocity(self, t: float | Tensor) -> dict[str, Tensor]:
        """dx/dt at t, tangent there: φ[cos(tφ)x₁ − cos((1−t)φ)x₀]/sin φ on spheres, x₁ − x₀ on Euclidean parts."""

        def curved(a: Tensor, b: Tensor, radius: float, dims: tuple[int, ...]) -> Tensor:
            first, second, _, angle = next(queue)
            of_a, of_b = spheres.arc_speeds(angle, _ahead(number, max(a.ndim, b.ndim), angle.dtype))
            wide_a, wide_b = a.to(self.dtype or a.dtype), b.to(self.dtype or b.dtype)
            return (radius * (of_a / first * wide_a + of_b / second * wide_b)).to(a.dtype)

        number, queue = self._time(t), iter(self.shares)
        return self.manifold.mapped((dict(self.start), dict(self.end)), lambda a, b: b - a, curved)

    def _time(self, t: float | Tensor) -> float | Tensor:
        if not isinstance(t, Tensor) and not is_number(t):
            raise InputError(f"t is {t!r}; expected a number, or a tensor of them")
        return t if isinstance(t, Tensor) else float(t)


def _ahead(t: float | Tensor, ndim: int, dtype: torch.dtype) -> float | Tensor:
    """t with ones behind it, so that it stands on the leading axes."""
    if not isinstance(t, Tensor):
        return t
    real = torch.zeros((), dtype=dtype).abs().dtype
    return t.to(real).reshape(*t.shape, *[1] * (ndim - t.ndim)) if t.ndim else t.to(real)
