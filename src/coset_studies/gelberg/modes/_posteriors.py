"""Mean-field posteriors and their likeliest exchange of two units: how far it is, and what it is to be halfway."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from coset.data import Dataset, Split
from coset.distribution import MeanField, kl
from coset.distribution.density import vector
from coset.models import build
from coset.posterior import Fit
from coset.posterior.symmetrized import mutual_information, nearest_mode, pair_matrix
from coset.study import Context
from coset.study.posteriors import inferred
from coset.symmetry import Element, Symmetry
from coset.train import evaluate
from coset_studies.gelberg.modes._found import PRIOR, Measured, Run, thresholds

EXACT_UNITS = 20
"""The most whose permutations are summed exactly."""


@dataclass(frozen=True)
class Sampling:
    """Expected losses are of ``draws`` on the first ``images`` training images."""

    draws: int
    images: int


def measure(run: Run, how: Sampling, context: Context, data: Dataset, sym: Symmetry, seed: int) -> Measured:
    """The nearest mode of the mean, the likeliest exchange, and what it is to be halfway there."""
    options = options_of(data, (sym.classes[sym.permuting[0]].size,))
    fit: Fit[MeanField] = inferred(
        context, method="mean-field", model="mlp", data=data, seed=seed, settings=run.settings, options=options
    )
    q = fit.posterior
    g, ratios = likeliest_exchange(sym, q)
    nearest = nearest_mode(sym, q)
    sigmas, along = separations(sym, q, g)
    found = {
        "relative": nearest.distance / nearest.norm,
        "sigmas": sigmas,
        "along": along,
        "log_ratio": float(ratios.max()),
        "within": 100 * float((ratios > -0.5 * thresholds()[0] ** 2).double().mean()),
        "late": late_rise(fit.trace["elbo"]),
        **_halfway(build("mlp", seed=seed, **options), data, q, interpolated(sym, q, g), how, context),
    }
    if options["widths"][0] <= EXACT_UNITS:
        information = mutual_information(sym, q, samples=how.draws, seed=context.seed).value
        found["information"] = information / sym.log_permutations
    return found


def likeliest_exchange(sym: Symmetry, q: MeanField) -> tuple[Element, Tensor]:
    """The exchange of two units with the largest Δ = log q(g·μ) − log q(μ), and Δ of all n(n − 1)/2 exchanges.

    By ``pair_matrix`` A at the mean Δ is A_ij + A_ji − A_ii − A_jj: −½ the squared distance in deviations of q.
    """
    matrix = pair_matrix(sym, q, q.mean)
    own = matrix.diagonal()
    i, j = torch.triu_indices(len(matrix), len(matrix), offset=1)
    ratios = matrix[i, j] + matrix[j, i] - own[i] - own[j]
    best = ratios.argmax()
    order = torch.arange(len(matrix))
    order[i[best]], order[j[best]] = j[best], i[best]
    return sym.element({sym.permuting[0]: order}), ratios


def separations(sym: Symmetry, q: MeanField, g: Element) -> tuple[float, float]:
    """How far g·μ is from μ in deviations: √Σ (v/s)², and ‖v‖/√(uᵀΣu) along the line, v = g·μ − μ and u = v/‖v‖.

    The first is what a mean field sees, whatever the units of the weights; the second is never larger. Where all
    deviations agree, as in the paper's figures, both are ‖v‖/s.
    """
    parts = (q.mean, sym.act(g, q.mean), q.std)
    mean, moved, std = (vector(part, q.random_names, q.mean).double() for part in parts)
    squares = (moved - mean).square()
    spread = math.sqrt((squares * std.square()).sum())
    return math.sqrt((squares / std.square()).sum()), float(squares.sum()) / spread if spread else 0.0


def interpolated(sym: Symmetry, q: MeanField, g: Element) -> MeanField:
    """The mean field with the moments of ½(q + g·q): halfway, and as wide as both modes together."""
    other = sym.act(g, q)
    mean = {name: (tensor + other.mean[name]) / 2 for name, tensor in q.mean.items()}
    squares = {name: (s.square() + other.std[name].square()) / 2 for name, s in q.std.items()}
    std = {name: (square + (q.mean[name] - mean[name]).square()).sqrt() for name, square in squares.items()}
    return MeanField(mean, std)


def late_rise(elbo: Sequence[float]) -> float:
    """How much the ELBO rose in the last quarter of the epochs (rounded up to whole ones)."""
    return elbo[-1] - elbo[max(3 * len(elbo) // 4 - 1, 0)]


def _halfway(
    model: nn.Module, data: Dataset, q: MeanField, other: MeanField, how: Sampling, context: Context
) -> Measured:
    """``elbo`` L(q) per point, ``gain`` L(other) − L(q) in nats and its ``variance``, ``rise`` of the loss per point.

    Both are drawn with the same noise.
    """
    part = Split(data.train.x[: how.images], data.train.y[: how.images])
    zero, wide = ({name: torch.full_like(q.mean[name], value) for name in q.mean} for value in (0.0, PRIOR))
    own, cost = (float(kl(posterior, MeanField(zero, wide))) for posterior in (q, other))
    losses, rises = [], []
    for draw in range(how.draws):
        drawn = (posterior.sample(1, context.generator(f"draw {draw}")) for posterior in (q, other))
        here, there = (loss(model, part, {name: tensor[0] for name, tensor in one.items()}, context) for one in drawn)
        losses.append(here)
        rises.append(there - here)
    rise, count = statistics.fmean(rises), len(data.train)
    return {
        "elbo": -statistics.fmean(losses) - own / count,
        "gain": -count * rise - (cost - own),
        "variance": count**2 * statistics.variance(rises) / len(rises),
        "rise": rise,
    }


def loss(model: nn.Module, part: Split, params: Mapping[str, Tensor], context: Context) -> float:
    """The mean loss of a network with these parameters."""
    placed = {name: tensor.to(context.device) for name, tensor in params.items()}
    return evaluate(model.to(context.device), part.x, part.y, params=placed).loss


def few(context: Context, name: str, points: int | None) -> Dataset:
    """The data in [0, 1] as they come; of the training part ``points`` chosen at random (None: all)."""
    data = context.data(name, flatten=True, normalize=False)
    if points is None:
        return data
    chosen = torch.randperm(len(data.train), generator=context.generator("points"))[:points].sort().values
    mark = f"{points} points, seed {context.seed}"
    return replace(data, train=data.train.take(chosen), fingerprint=f"{data.fingerprint}, {mark}")


def options_of(data: Dataset, widths: tuple[int, ...]) -> dict[str, Any]:
    """Those of the MLP with hidden layers of these widths."""
    return {"in_features": data.train.x.shape[1], "widths": list(widths), "out_features": data.outputs}
