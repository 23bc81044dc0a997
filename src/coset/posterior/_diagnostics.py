"""Have chains of weights mixed? R̂ and effective sample sizes on weights, on functions, and modulo symmetry.

R̂ is rank-normalised and split, and ESS that of the bulk and of the tails, after Vehtari et al. (2021), by arviz-stats.
"""

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coset._show.progress import progress
from coset._show.tables import text_table
from coset._values import freeze
from coset.alignment import SamplesAlignment, align_samples
from coset.distribution.contract import require
from coset.distribution.samples import Samples
from coset.errors import InputError
from coset.posterior.fit import Fit
from coset.posterior.likelihoods import Classification, Likelihood, Regression, as_likelihood
from coset.posterior.prediction.chunks import runner
from coset.posterior.prediction.draws import Draws
from coset.symmetry import Symmetry

LEAST_DRAWS = 4
"""Of each chain: half of it must still have a variance."""

LEAST_DRAWS_ALONE = 8
"""Of a single chain, whose halves stand for two."""

TAIL = (0.05, 0.95)
"""The quantiles whose effective sample size is that of the tails; of both the smaller counts."""

CHUNK = 256
"""Scalars whose draws are held in float64 at a time."""


@dataclass(frozen=True, eq=False)
class Mixing:
    """R̂ and effective sample sizes of K scalars: ``rhat``, ``bulk_ess``, ``tail_ess`` (K,), float64.

    R̂ is ∞ where chains stand still at different values, and ESS the number of stretches in which they do: of chains
    that never move, that of the chains. Scalars that are the same in all draws have neither; they are
    left out and counted in ``constants``. ``shapes`` are those of the tensors the scalars come from, ``places`` (K,)
    their numbers in these, flattened, one after the other.
    """

    shapes: Mapping[str, tuple[int, ...]]
    places: Tensor
    rhat: Tensor
    bulk_ess: Tensor
    tail_ess: Tensor
    constants: int

    def __post_init__(self) -> None:
        freeze(self, "shapes")

    def __len__(self) -> int:
        return len(self.rhat)

    @property
    def max_rhat(self) -> float:
        """R̂ of the scalar that has mixed worst."""
        return float(self.rhat.max())

    @property
    def median_rhat(self) -> float:
        """The median of R̂, of an even number the lower one."""
        return float(self.rhat.median())

    def share_above(self, level: float) -> float:
        """The share of scalars with R̂ > ``level``; 1.01 is the limit of Vehtari et al., 1.1 that of earlier work."""
        return float((self.rhat > level).double().mean())

    @property
    def min_bulk_ess(self) -> float:
        """The least effective sample size of the bulk."""
        return float(self.bulk_ess.min())

    @property
    def min_tail_ess(self) -> float:
        """The least effective sample size of the tails."""
        return float(self.tail_ess.min())

    def name(self, number: int) -> str:
        """What scalar ``number`` is: tensor and index, as in ``layers.0.weight[2, 0]``."""
        place = int(self.places[number])
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            if place < size:
                return f"{name}[{', '.join(str(int(at)) for at in np.unravel_index(place, shape))}]" if shape else name
            place -= size
        raise AssertionError("places lie in the tensors")

    def worst(self, count: int = 5) -> tuple[tuple[str, float], ...]:
        """Names and R̂ of the ``count`` scalars that have mixed worst, worst first."""
        order = self.rhat.argsort(descending=True, stable=True)[:count].tolist()
        return tuple((self.name(number), float(self.rhat[number])) for number in order)


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """How ``chains`` chains of ``draws`` draws have mixed: as given, as functions, and modulo symmetry.

    ``functions`` are there if a model and inputs were given, ``aligned`` and the ``alignment`` if a symmetry was.
    """

    chains: int
    draws: int
    weights: Mixing
    functions: Mixing | None = None
    aligned: Mixing | None = None
    alignment: SamplesAlignment | None = None

    @cached_property
    def sides(self) -> Mapping[str, Mixing]:
        """What there is, by name."""
        found = {"weights": self.weights, "functions": self.functions, "aligned weights": self.aligned}
        return {name: mixing for name, mixing in found.items() if mixing is not None}

    def __repr__(self) -> str:
        # The combining hat would count as a letter, and columns would not stand under one another.
        columns = ("", "scalars", "constant", "R-hat max", "median", "> 1.01", "> 1.1", "bulk ESS", "tail ESS", "worst")
        rows = [(name, *_cells(mixing)) for name, mixing in self.sides.items()]
        lines = [
            f"{_count(self.chains)} of {self.draws} draws; ESS: the least of all scalars",
            text_table(columns, rows, right=range(1, 9)),
        ]
        if self.alignment is not None and not self.alignment.settled:
            lines.append("The alignment has not settled: more rounds may lower R̂ of the aligned weights.")
        return "\n".join(lines)


def diagnose(
    samples: Samples | Fit[Samples],
    *,
    model: nn.Module | None = None,
    x: Tensor | None = None,
    likelihood: Likelihood | str | None = None,
    sym: Symmetry | None = None,
    gauge: Literal["given", "normalized"] = "given",
    relax: bool = True,
    rounds: int = 20,
    seed: int = 0,
    batch_size: int = 1000,
    show: bool | None = None,
) -> Diagnostics:
    """R̂ and ESS of every scalar weight; of the function at ``x``; and of the weights modulo ``sym``.

    ``model`` and ``x`` (N, …): the outputs of all draws at these points, or with ``likelihood`` the probabilities of
    classes or the means of real targets. All are held at once, (chains·draws, N·outputs).

    ``sym``: draws are brought to a common gauge by ``align_samples`` (with ``relax``, ``rounds``, ``seed``) before R̂
    is taken. What differs by an element of the group is one network, so that chains in different copies of one mode
    agree, and chains in modes of other functions do not. ``gauge``: "given" leaves scales as they are, also where the
    group has them (ReLU): a Gaussian prior is invariant under permutations and signs only, and a posterior does not
    repeat itself along scales. "normalized" removes them, for the question whether chains agree on functions; it hides
    differences between chains that the prior sees.

    A single chain is compared with itself: its halves stand for two chains.
    """
    draws = _checked(samples)
    if (model is None) != (x is None):
        given, missing = ("x", "model") if model is None else ("model", "x")
        raise InputError(f"{given} is given and {missing} is not; the function's values need both")
    if likelihood is not None and model is None:
        raise InputError("likelihood is given and model is not; it says how the model's outputs are read")
    if sym is not None and not isinstance(sym, Symmetry):
        raise InputError(f"sym is a {type(sym).__name__}; expected a Symmetry, as discover(model, x) gives")
    package = _package()
    weights = _mixing(package, _weights(draws), "weights", show)
    functions = aligned = alignment = None
    if model is not None and x is not None:
        values = _function_values(model, draws, x, likelihood, batch_size, show)
        functions = _mixing(package, {"f": values}, "functions", show)
    if sym is not None:
        alignment = align_samples(sym, draws, gauge=gauge, relax=relax, rounds=rounds, seed=seed, show=show)
        aligned = _mixing(package, _weights(alignment.aligned), "aligned weights", show)
    return Diagnostics(draws.chains, draws.draws, weights, functions, aligned, alignment)


def _checked(samples: Samples | Fit[Samples]) -> Samples:
    """The draws themselves, if there are enough of them."""
    found = samples.posterior if isinstance(samples, Fit) else samples
    require(found, Samples, "samples", "Samples, or a Fit that has found them")
    least = LEAST_DRAWS if found.chains > 1 else LEAST_DRAWS_ALONE
    if found.draws < least:
        raise InputError(f"samples is {_count(found.chains)} of {found.draws} draws; R̂ expects {least} draws or more")
    return found


def _weights(samples: Samples) -> dict[str, Tensor]:
    """All that may vary, tied weights once."""
    return {name: samples.params[name].detach() for name in samples.random_names}


@torch.no_grad()
def _function_values(
    model: nn.Module,
    samples: Samples,
    x: Tensor,
    likelihood: Likelihood | str | None,
    batch_size: int,
    show: bool | None,
) -> Tensor:
    """What every draw says about every point, (chains, draws, N, …), float64."""
    # In the order of the chains, which a predictive has no need to keep.
    draws = Draws(len(samples), False, lambda number: samples.draw(*divmod(number, samples.draws)))
    run = runner(model, draws, x, batch_size)
    chosen = None if likelihood is None else as_likelihood(likelihood)
    example = _read(chosen, run.outputs)
    values = torch.empty(len(samples), len(run.x), *example.shape[1:], dtype=torch.float64)

    def take(number: int, rows: slice, outputs: Tensor) -> None:
        values[number : number + len(outputs), rows] = _read(chosen, outputs).cpu()

    with progress("function values", len(samples), show=show) as bar:
        run.run(draws, 0, len(samples), take, bar)
    return values.reshape(samples.chains, samples.draws, *values.shape[1:])


def _read(likelihood: Likelihood | None, outputs: Tensor) -> Tensor:
    """Outputs (…, n, O) as they are, as probabilities of classes, or as means of real targets."""
    outputs = outputs.double()
    if isinstance(likelihood, Classification):
        return likelihood.log_probabilities(outputs).exp()
    if isinstance(likelihood, Regression):
        return likelihood.moments(outputs)[0]
    if likelihood is not None:
        raise InputError(
            f"likelihood is a {type(likelihood).__name__}; expected one that has log_probabilities for classification, "
            f"or moments for regression"
        )
    return outputs


def _mixing(package: Any, parts: Mapping[str, Tensor], what: str, show: bool | None) -> Mixing:
    """R̂ and ESS of every scalar of tensors (chains, draws, …)."""
    for name, tensor in parts.items():
        if not bool(tensor.isfinite().all()):
            chain, draw, *_ = (~tensor.isfinite()).nonzero()[0].tolist()
            raise InputError(f"{what}: '{name}' is NaN or infinite in draw {draw} of chain {chain}; expected numbers")
    total = sum(tensor[0, 0].numel() for tensor in parts.values())
    found: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
    seen = 0
    with progress(f"R-hat of {total} {what}", total, show=show) as bar:
        for tensor in parts.values():
            for chunk in torch.split(tensor.reshape(*tensor.shape[:2], -1), CHUNK, 2):
                varying, numbers = _measured(package, chunk.double().cpu().numpy().transpose(2, 0, 1))
                found.append((varying + seen, numbers))
                seen += chunk.shape[2]
                bar.advance(chunk.shape[2])
    places = torch.from_numpy(np.concatenate([varying for varying, _ in found]))
    if not len(places):
        raise InputError(f"{what}: all {total} scalars are the same in every draw; R̂ expects some that vary")
    rhat, bulk, tail = torch.from_numpy(np.concatenate([numbers for _, numbers in found], axis=1))
    shapes = {name: tuple(tensor.shape[2:]) for name, tensor in parts.items()}
    return Mixing(shapes, places, rhat, bulk, tail, total - len(places))


def _measured(package: Any, values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Which of values (K, chains, draws) vary, and of these R̂, bulk and tail ESS, (3, varying)."""
    compared = values if values.shape[1] > 1 else _halves(values)
    seen = _halves(compared)
    varying = np.flatnonzero((seen != seen[:, :1, :1]).any((1, 2)))
    if not len(varying):
        return varying, np.empty((3, 0))
    # No variance within the chains is R̂ = ∞; where only the folded scalar is a constant, the other R̂ counts.
    with np.errstate(divide="ignore", invalid="ignore"):
        rhat = package.rhat(compared[varying], method="rank")
    sizes = np.stack(
        [package.ess(values[varying], method="bulk"), package.ess(values[varying], method="tail", prob=TAIL)]
    )
    # Without variance within the chains there are no autocorrelations: each stretch of equal draws is worth one.
    halves = seen[varying]
    still = (halves == halves[:, :, :1]).all((1, 2))
    stretches = values.shape[1] + (np.diff(values[varying]) != 0).sum((1, 2))
    return varying, np.stack([rhat, *np.where(still, stretches, sizes)])


def _halves(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Chains (K, C, n) as their halves (K, 2C, ⌊n/2⌋), those of odd length without the draw in the middle."""
    half = values.shape[2] // 2
    return np.concatenate([values[:, :, :half], values[:, :, -half:]], axis=1)


def _count(chains: int) -> str:
    return "1 chain" if chains == 1 else f"{chains} chains"


def _cells(mixing: Mixing) -> tuple[str, ...]:
    return (
        str(len(mixing)),
        str(mixing.constants),
        f"{mixing.max_rhat:.3f}",
        f"{mixing.median_rhat:.3f}",
        f"{100 * mixing.share_above(1.01):.0f} %",
        f"{100 * mixing.share_above(1.1):.0f} %",
        f"{mixing.min_bulk_ess:.0f}",
        f"{mixing.min_tail_ess:.0f}",
        mixing.worst(1)[0][0],
    )


def _package() -> Any:
    try:
        return importlib.import_module("arviz_stats.base").array_stats
    except ImportError as error:
        raise InputError(
            f"for R̂ and ESS the package arviz-stats is needed and cannot be imported ({error}); expected: "
            f"pip install coset[diagnostics]"
        ) from error
