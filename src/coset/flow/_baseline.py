"""The flow between the Gaussians that have the moments of source and data: what fields of networks add to."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

from coset.distribution.density import pieces, vector
from coset.errors import InputError
from coset.flow._space import Space
from coset.symmetry import Symmetry

FLOOR = 1e-6
"""Variances in units of the source's are at least so large: a coordinate that never varies is one that hardly does."""

_MOVES = 8
"""Random elements by which the entries of an orbit are joined; twice as many must not join more."""


class Baseline(nn.Module):
    """The velocity of the straight flow from N(m₀, diag s₀²) to a Gaussian with the moments of the data.

    In y = (x − m₀)/s₀, with an orthonormal basis V (D, k) of directions and z = Vᵀ(y − tμ): a field is

        v = s₀·(μ + V[c(t)z + √((λ + ν(1 + λ))/a(t))·n(z/√a(t), t)] + c₀(t)(y − tμ − Vz)),
        a(t) = (1−t)² + t²λ + ν,  c(t) = (tλ − (1−t))/a(t),

    where λ (k) are the variances of the data along V, λ₀ that of all other directions, and ν that of noise along paths.
    With n = 0 it is the exact flow matching field between independent Gaussians; the root is the deviation of x₁ − x₀
    given x_t there, so that n has inputs and targets of size one at all times. Without directions V is the identity.
    """

    m0: Tensor
    s0: Tensor
    mu: Tensor
    variances: Tensor
    rest: Tensor
    basis: Tensor
    nu: Tensor

    def __init__(
        self,
        m0: Tensor,
        s0: Tensor,
        mu: Tensor,
        variances: Tensor,
        rest: Tensor,
        basis: Tensor | None,
        nu: Tensor | None = None,
    ) -> None:
        super().__init__()
        held = {"m0": m0, "s0": s0, "mu": mu, "variances": variances.clamp_min(FLOOR), "rest": rest.clamp_min(FLOOR)}
        held["nu"] = m0.new_zeros(()) if nu is None else nu
        for name, tensor in held.items():
            self.register_buffer(name, tensor.detach().clone())
        self.register_buffer(
            "basis",
            m0.new_zeros(len(m0), 0) if basis is None else basis.detach().clone(memory_format=torch.contiguous_format),
        )

    @property
    def width(self) -> int:
        """k, the numbers that a network reads and gives."""
        return self.basis.shape[1] or len(self.m0)

    def of_the_source(self) -> "Baseline":
        """The same coordinates with the moments of the source, μ = 0 and λ = 1, in place of those of the data."""
        ones = (torch.ones_like(self.variances), torch.ones_like(self.rest))
        return Baseline(self.m0, self.s0, torch.zeros_like(self.mu), *ones, self.basis, self.nu)

    def reads(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What a network reads, z/√a (N, k), and what ``velocity`` needs: z, and the rest of y."""
        y = (x - self.m0) / self.s0 - t[:, None] * self.mu
        if not self.basis.shape[1]:
            return y / (variance_at(t[:, None], self.variances) + self.nu).sqrt(), y, y[:, :0]
        z = y @ self.basis
        return z / (variance_at(t[:, None], self.variances) + self.nu).sqrt(), z, y - z @ self.basis.T

    def balanced(self, rows: Tensor, power: float) -> Tensor:
        """Differences of velocities (N, D), divided by the deviations of the data along their directions to a power."""
        if not power:
            return rows
        if not self.basis.shape[1]:
            return rows * self.variances.pow(-power / 2)
        along = rows / self.s0 @ self.basis
        others = rows / self.s0 - along @ self.basis.T
        along = along * self.variances.pow(-power / 2)
        return self.s0 * (along @ self.basis.T + others * self.rest.pow(-power / 2))

    def velocity(self, said: Tensor, z: Tensor, rest: Tensor, t: Tensor) -> Tensor:
        """The velocity (N, D), given what the network said of it (N, k)."""
        a = variance_at(t[:, None], self.variances) + self.nu
        left = (self.variances + self.nu * (1 + self.variances)) / a
        along = slope_of(t[:, None], self.variances, a) * z + left.sqrt() * said
        if self.basis.shape[1]:
            others = variance_at(t[:, None], self.rest) + self.nu
            along = along @ self.basis.T + slope_of(t[:, None], self.rest, others) * rest
        return self.s0 * (self.mu + along)


def variance_at(t: Tensor, variances: Tensor, begin: Tensor | float = 1.0) -> Tensor:
    """a(t) = (1−t)²σ² + t²λ, at times in a shape that broadcasts with the variances; σ² those at the ``begin``."""
    return (1 - t).square() * begin + t.square() * variances


def slope_of(t: Tensor, variances: Tensor, a: Tensor, begin: Tensor | float = 1.0) -> Tensor:
    """c(t) = (tλ − (1−t)σ²)/a(t)."""
    return (t * variances - (1 - t) * begin) / a


PROJECTIONS = ("none", "pca", "random")
"""The coordinates that a network reads: all; the principal components of the data; random directions."""


def make_baseline(
    rows: Tensor,
    m0: Tensor,
    s0: Tensor,
    *,
    orbits: Tensor | None,
    projection: str,
    components: int | None,
    generator: torch.Generator,
    sigma: float = 0.0,
    flips: Tensor | None = None,
) -> Baseline:
    """The baseline of data rows (N, D); ``orbits`` (D,): moments are shared by entries that the group exchanges, and
    means are 0 where it ``flips`` entries (D,), too. ``sigma``: the noise of paths.
    """
    count, size = rows.shape
    nu = (sigma / s0).square()
    if components is not None and projection == "none":
        raise InputError(f"components is {components}, and projection is 'none', which takes all; expected None")
    y = (rows.double() - m0.double()) / s0.double()
    mu = y.mean(0)
    if projection == "none":
        variances = (y - mu).square().mean(0)
        if orbits is not None:
            # Of the orbit of the data: both moments are those of all its entries.
            second = _shared(y.square().mean(0), orbits)
            mu = _shared(mu, orbits)
            mu = mu if flips is None else torch.where(flips.to(mu.device), 0.0, mu)
            variances = (second - mu.square()).clamp_min(0)
        return Baseline(m0, s0, mu.to(rows), variances.to(rows), torch.ones_like(rows[0, 0]), None, nu)
    most = min(count - 1, size)
    k = most if components is None else components
    if not 1 <= k <= most:
        raise InputError(
            f"components is {components}; expected 1 to {most}, for {count} networks of {size} coordinates"
        )
    centred = y - mu
    if projection == "pca":
        basis = _principal(centred, k)
    else:
        drawn = torch.randn(size, k, generator=generator, dtype=torch.float64).to(centred)
        basis = torch.linalg.qr(drawn)[0]
    variances = (centred @ basis).square().mean(0)
    left = (centred.square().mean(0).sum() - variances.sum()).clamp_min(0) / max(1, size - k)
    return Baseline(m0, s0, mu.to(rows), variances.to(rows), left.to(rows), basis.to(rows), nu.mean())


def _principal(centred: Tensor, k: int) -> Tensor:
    """The first k principal directions of rows (N, D), orthonormal (D, k), by the smaller of both Gram matrices."""
    count, size = centred.shape
    vectors: Tensor
    if size <= count:
        vectors = torch.linalg.eigh(centred.T @ centred)[1].flip(1)[:, :k].contiguous()
    else:
        small = torch.linalg.eigh(centred @ centred.T)[1].flip(1)[:, :k]
        vectors = torch.linalg.qr(centred.T @ small)[0]
    return vectors


def _shared(values: Tensor, orbits: Tensor) -> Tensor:
    """The mean of values (D,) over each orbit, at all its entries."""
    orbits = orbits.to(values.device)
    sums = values.new_zeros(int(orbits.max()) + 1).index_add(0, orbits, values)
    return (sums / torch.bincount(orbits, minlength=len(sums)))[orbits]


def entry_orbits(space: Space, sym: Symmetry) -> Tensor:
    """Which coordinates permutations of the group exchange: the number of its orbit for each, (D,).

    Random elements move the numbers 0 … D − 1; entries that any of them exchanges are joined. A random permutation
    takes an entry anywhere in its orbit, so that a few join all of it; as many again are a check.
    """
    finite = sym.restrict(scales=False, signs=False)
    places = torch.arange(space.size, dtype=torch.float64)
    like = {name: torch.zeros(space.manifold.shapes[name], dtype=torch.float64) for name in space.names}
    numbers = pieces(places, space.names, like)
    generator = torch.Generator().manual_seed(0)
    labels: Sequence[int] | np.ndarray = np.arange(space.size)
    known, moves = 0, list[np.ndarray]()
    while known != (now := len(np.unique(labels))):
        known = now
        for _ in range(_MOVES):
            moved = finite.act(finite.random(generator), numbers, partial=True)
            moves.append(vector(moved, space.names, like).round().long().numpy())
        rows = np.concatenate([np.arange(space.size)] * len(moves))
        graph = coo_matrix((np.ones(len(rows), dtype=np.int8), (rows, np.concatenate(moves))), shape=(space.size,) * 2)
        _, labels = connected_components(graph, directed=False)
    return torch.as_tensor(np.asarray(labels), dtype=torch.long)


def entry_flips(space: Space, sym: Symmetry) -> Tensor:
    """Which coordinates signs of the group flip, (D,): those that some random element brings in with a minus."""
    finite = sym.restrict(scales=False)
    like = {name: torch.zeros(space.manifold.shapes[name], dtype=torch.float64) for name in space.names}
    ones = pieces(torch.ones(space.size, dtype=torch.float64), space.names, like)
    generator = torch.Generator().manual_seed(0)
    moved = [
        vector(finite.act(finite.random(generator), ones, partial=True), space.names, like) for _ in range(2 * _MOVES)
    ]
    return (torch.stack(moved) < 0).any(0)
