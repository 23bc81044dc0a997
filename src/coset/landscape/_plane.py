"""Planes through three networks: log-likelihood, log-prior and log-posterior on a grid (Rossi et al. 2023, fig. 2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset._batches import BATCH_SIZE
from coset._checks import check_count, is_number
from coset._magnitudes import equivariant, exponent, scaled
from coset._show.progress import progress
from coset._show.tables import csv_table
from coset.distribution import Samples
from coset.errors import InputError
from coset.landscape._path import Point, params_of
from coset.posterior.inference.starting import draws_in
from coset.posterior.likelihoods import Likelihood
from coset.posterior.prediction.chunks import runner
from coset.posterior.prediction.draws import Draws
from coset.posterior.problem import Data, PriorLike, Problem, VectorLayout, pose


@dataclass(frozen=True, eq=False)
class Plane:
    """The plane θ(s, t) = origin + s·basis[0] + t·basis[1] in the space of D trained parameters, and values on a grid.

    ``origin`` (D,), ``basis`` (2, D) orthonormal, float64, laid out as ``layout`` says; ``dtype``: the model's type, in
    which networks are run. ``coordinates`` (3, 2): those of the three networks; the first is the origin, the second
    lies on the first axis. ``samples`` (S, 2), ``distances`` (S,): where further networks fall when they are projected
    to the plane, and how far from it they are.
    ``s`` (n,), ``t`` (m,): the axes of the grid. ``log_likelihood``, ``log_prior`` (m, n): the sum over the data set of
    ``count`` points, and the log-density of the prior, both divided by ``count``: nats per data point.
    """

    layout: VectorLayout
    dtype: torch.dtype
    origin: Tensor
    basis: Tensor
    coordinates: Tensor
    samples: Tensor
    distances: Tensor
    s: Tensor
    t: Tensor
    log_likelihood: Tensor
    log_prior: Tensor
    count: int

    @property
    def log_posterior(self) -> Tensor:
        """log p(Y | θ) + log p(θ), per data point and up to the constant log p(Y), (m, n)."""
        return self.log_likelihood + self.log_prior

    def params(self, s: float, t: float) -> dict[str, Tensor]:
        """The network at (s, t), in the model's type; what is not trained is what all three networks have."""
        return self.layout.whole((self.origin + s * self.basis[0] + t * self.basis[1]).to(self.dtype))

    def to_dict(self) -> dict[str, object]:
        """All numbers but the weights, ready for JSON; rows of the three arrays belong to t, columns to s."""
        names = ("coordinates", "samples", "distances", "s", "t", "log_likelihood", "log_prior", "log_posterior")
        return {"count": self.count, **{name: getattr(self, name).tolist() for name in names}}

    def to_csv(self) -> str:
        """A line for each point of the grid; numbers as exact as they are."""
        t, s = torch.meshgrid(self.t, self.s, indexing="ij")
        arrays = (s, t, self.log_likelihood, self.log_prior, self.log_posterior)
        rows = zip(*(array.flatten().tolist() for array in arrays), strict=True)
        return csv_table(["s", "t", "log-likelihood", "log-prior", "log-posterior"], rows)


def plane(
    model: nn.Module,
    networks: Sequence[Point],
    data: Data,
    *,
    likelihood: Likelihood | str = "categorical",
    prior: PriorLike = 1.0,
    samples: Samples | Sequence[Point] = (),
    points: tuple[int, int] = (41, 41),
    margin: float = 0.25,
    batch_size: int = BATCH_SIZE,
    show: bool | None = None,
) -> Plane:
    """The plane through three ``networks``, spanned by Gram-Schmidt from the first: u ∝ θ₁−θ₀, v ∝ θ₂−θ₀−⟨θ₂−θ₀, u⟩u.

    The grid has ``points`` along s and t and reaches beyond the networks, and ``samples``, by ``margin`` of their
    extent on every side. Everything is per data point, see ``Plane``; the posterior is not tempered. Only trained
    parameters move: buffers and frozen parameters must agree in the three networks. Small networks are run many at a
    time, the data in batches of ``batch_size``.
    """
    _check_grid(points, margin)
    ends = [params_of(network, f"network {number}") for number, network in enumerate(networks)]
    if len(ends) != 3:
        raise InputError(f"networks has {len(ends)}; expected three, for a plane")
    problem = pose(model, data, likelihood, prior, points=ends)
    flats = _vectors(problem, ends, "network")
    basis = _basis(flats, torch.finfo(problem.start.dtype).eps)
    others = _vectors(problem, samples, "sample")
    offsets = others - flats[0]
    placed = offsets @ basis.mT
    # Of what Gram-Schmidt leaves beside the plane, not ‖θ‖² − ‖projection‖², which cancels.
    distances = equivariant(lambda rest: rest.norm(dim=1), offsets - placed @ basis)
    coordinates = (flats - flats[0]) @ basis.mT
    # By construction, and so to the last bit.
    coordinates[0], coordinates[1, 1] = 0.0, 0.0
    every = torch.cat([coordinates, placed])
    s, t = (_axis(every[:, at], points[at], margin) for at in (0, 1))
    log_likelihood, log_prior = _evaluate(problem, flats[0], basis, s, t, batch_size, show)
    return Plane(
        layout=problem.layout,
        dtype=problem.start.dtype,
        origin=flats[0],
        basis=basis,
        coordinates=coordinates.cpu(),
        samples=placed.cpu(),
        distances=distances.cpu(),
        s=s,
        t=t,
        log_likelihood=log_likelihood,
        log_prior=log_prior,
        count=problem.count,
    )


def _check_grid(points: tuple[int, int], margin: float) -> None:
    if not isinstance(points, tuple) or len(points) != 2:
        raise InputError(f"points is {points!r}; expected two whole numbers, as (41, 41)")
    for number in points:
        check_count("points", number, least=2)
    if not is_number(margin) or margin < 0:
        raise InputError(f"margin is {margin!r}; expected a number of at least 0")


def _vectors(problem: Problem, networks: Samples | Sequence[Point], what: str) -> Tensor:
    """The trained parameters of networks as vectors (S, D), in float64 and on the model's device."""
    layout = problem.layout
    if (many := draws_in(networks)) is not None:
        rows = layout.flatten(many.flat)
    else:
        points = [params_of(network, f"{what} {number}") for number, network in enumerate(networks)]
        rows = torch.stack([layout.flatten(point) for point in points]) if points else torch.zeros(0, layout.size)
    if rows.shape[1:] != (layout.size,):
        raise InputError(f"a {what} has leading axes; expected single networks, or draws as Samples")
    if not bool(rows.isfinite().all()):
        number = int(rows.isfinite().all(1).logical_not().nonzero()[0])
        raise InputError(f"{what} {number} has weights that are NaN or infinite; expected none")
    return rows.to(problem.start.device, torch.float64)


def _basis(flats: Tensor, eps: float) -> Tensor:
    """The orthonormal basis (2, D) of the plane through three vectors (3, D)."""
    # Their scale plays no part: of any size they have norms.
    flats = scaled(flats, exponent(flats))
    # So far may rounding the weights to their type move a network off a line.
    rounding = 64 * eps * float(flats.norm(dim=1).max())
    first, second = flats[1] - flats[0], flats[2] - flats[0]
    if float(first.norm()) <= rounding:
        raise InputError("networks 0 and 1 are the same; a plane expects three that differ")
    u = first / first.norm()
    v = second
    # Twice: what rounding leaves of u after the first time goes with the second.
    for _ in range(2):
        v = v - (v @ u) * u
    if float(v.norm()) <= rounding:
        raise InputError(
            "networks 0, 1 and 2 lie on one line; a plane expects three that do not (samples of a geodesic's points "
            "with common noise do: draw them with independent noise)"
        )
    return torch.stack([u, v / v.norm()])


def _axis(values: Tensor, count: int, margin: float) -> Tensor:
    low, high = float(values.min()), float(values.max())
    return torch.linspace(low - margin * (high - low), high + margin * (high - low), count, dtype=torch.float64)


def _evaluate(
    problem: Problem, origin: Tensor, basis: Tensor, s: Tensor, t: Tensor, batch_size: int, show: bool | None
) -> tuple[Tensor, Tensor]:
    """Log-likelihood and log-prior per data point on the grid, two of (len(t), len(s)) in float64."""
    total = len(s) * len(t)

    def flat(number: int) -> Tensor:
        row, column = divmod(number, len(s))
        return (origin + s[column].item() * basis[0] + t[row].item() * basis[1]).to(problem.start.dtype)

    def draw(number: int) -> dict[str, Tensor]:
        return {**problem.layout.fixed, **problem.layout.views(flat(number))}

    log_likelihood = torch.zeros(total, dtype=torch.float64)

    def take(first: int, rows: slice, outputs: Tensor) -> None:
        sums = problem.likelihood.log_prob(outputs.double(), problem.y[rows]).sum(-1)
        log_likelihood[first : first + len(sums)] += sums.cpu()

    draws = Draws(total, False, draw)
    with torch.no_grad(), progress("on the plane", total, show=show) as bar:
        runner(problem.model, draws, problem.x, batch_size).run(draws, 0, total, take, bar)
        priors = [float(problem.log_prior(flat(number))) for number in range(total)]
    log_prior = torch.tensor(priors, dtype=torch.float64)
    for name, values in (("log-likelihood", log_likelihood), ("log-prior", log_prior)):
        if not bool(values.isfinite().all()):
            row, column = divmod(int(values.isfinite().logical_not().nonzero()[0]), len(s))
            raise InputError(
                f"the {name} at s = {s[column]:.4g}, t = {t[row]:.4g} is {values[row * len(s) + column]}; expected "
                f"finite numbers: a smaller margin keeps the grid near the networks"
            )
    return (
        log_likelihood.reshape(len(t), len(s)) / problem.count,
        log_prior.reshape(len(t), len(s)) / problem.count,
    )
