"""Coupling flows fitted: to a posterior by its evidence bound, to draws by maximum likelihood."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from coset._checks import check_choice, check_count, check_positive
from coset._files.sealed import checksum
from coset._values import ties
from coset.distribution import Samples
from coset.distribution.contract import require
from coset.distribution.density import pieces, vector
from coset.distribution.ties import map_tied
from coset.errors import InputError
from coset.flow._coupling_flow import CouplingFlow
from coset.flow._coupling_layers import Couplings, Packed, Parts, log_normal, pull, push, random_order
from coset.posterior.fit import Callback, Control, Fit, device_stream
from coset.posterior.inference.chains import require_batching
from coset.posterior.inference.flat_optimizer import FlatOptimizer, numbered_batches, optimization, run_descent
from coset.posterior.inference.mean_field import initial_values
from coset.posterior.inference.point import Maximization, given_or_flat
from coset.posterior.inference.starting import Start, points_of
from coset.posterior.likelihoods import Likelihood, Task
from coset.posterior.problem import Data, PriorLike, Problem, pose

GRADIENTS = ("sticking", "total")
"""How the gradient of the entropy is had."""

_ADVICE = "a lower learning_rate, a smaller bound or more samples may help"


def fit_coupling_flow(
    model: nn.Module,
    data: Data,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    layers: int = 4,
    hidden: tuple[int, ...] = (32,),
    bound: float = 2.0,
    likelihood: Likelihood | str = "categorical",
    prior: PriorLike = 1.0,
    temperature: float = 1.0,
    optimizer: str = "adam",
    momentum: float = 0.0,
    schedule: str = "constant",
    warmup_epochs: int = 0,
    samples: int = 8,
    std: float = 0.01,
    gradient: str = "sticking",
    start: Start | None = None,
    seed: int = 0,
    checkpoint: Path | str | None = None,
    checkpoint_seconds: float = 5.0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Fit[CouplingFlow]:
    """Maximise the ELBO E_q[log p(Y|θ) + log p(θ) − T log q(θ)] over flows of coupling layers.

    Begins with T the identity, at N(m, diag std²): m are the weights of ``start`` (by default the model's own), or at a
    given ``MeanField`` with its own deviations. ``samples`` weights are drawn for each step; with more than one the
    network must run with many weights at once. ``gradient``: "sticking", where log q counts along the path only and
    the noise vanishes at the posterior (Roeder et al. 2017), or "total"; both are unbiased. The trace has, per data
    point and as the epoch saw them while q moved, the elbo, the nll E_q[−log p(Y|θ)], and the kl from the prior
    (E_q[T log q − log p] if tempered); at T = 1 and where q is the posterior, the elbo is the log evidence, without
    noise if one batch holds all data.
    """
    problem = pose(model, data, likelihood, prior, temperature, points_of(start))
    recipe = optimization(epochs, batch_size, learning_rate, optimizer, momentum, schedule, warmup_epochs)
    check_count("samples", samples)
    check_positive("std", std)
    check_choice("gradient", gradient, GRADIENTS)
    couplings = Couplings(problem.layout.size, layers, hidden, bound)
    control = Control(seed, checkpoint, checkpoint_seconds, callback, show)
    if samples > 1:
        require_batching(problem)
    packed = Packed(couplings, random_order(couplings.size, seed, problem.start.device))
    location, log_scale = initial_values(problem, start, std)
    values = packed.initial(location, log_scale, seed)
    flat = FlatOptimizer(values, recipe, -(-problem.count // recipe.batch_size))

    def steps(epoch: int) -> Iterator[Tensor]:
        generator = device_stream("noise", seed, epoch, values)
        for number, (x, y) in numbered_batches(problem, flat, seed, epoch):
            noise = torch.empty((samples, couplings.size), dtype=values.dtype, device=values.device)
            noise.normal_(generator=generator)
            terms, slope = _ascent(problem, packed, flat.state["values"], noise, x, y, gradient == "sticking")
            flat.gradient.copy_(slope)
            flat.step(number)
            yield terms

    def report(epoch: int, mean: Tensor) -> dict[str, float]:
        nll, kl = mean.tolist()
        return {"elbo": -nll - kl, "nll": nll, "kl": kl}

    settings = {
        "samples": samples,
        "std": std,
        "gradient": gradient,
        "layers": layers,
        "hidden": list(couplings.hidden),
        "bound": bound,
    }
    trace, seconds = run_descent(
        "coupling flow", problem, flat, control, steps, report,
        loss_of=lambda record: -record["elbo"] / 2, settings=settings, advice=_ADVICE,
    )  # fmt: skip
    parts = packed.parts(flat.state["values"])
    return Fit(_flow(couplings, parts, problem.layout.whole(parts.location), problem), trace, "coupling flow", seconds)


def _flow(couplings: Couplings, parts: Parts, location: Mapping[str, Tensor], problem: Problem) -> CouplingFlow:
    conditioners = {name: tensor.clone() for name, tensor in parts.conditioners.items()}
    return CouplingFlow(location, parts.scale, parts.order, conditioners, tuple(problem.layout.shapes), couplings.bound)


def _ascent(
    problem: Problem, packed: Packed, values: Tensor, noise: Tensor, x: Tensor, y: Tensor, sticking: bool
) -> tuple[Tensor, Tensor]:
    """E[−log p(Y|θ)] and E[T log q − log p(θ)], (2,), and the gradient of their sum (P,); all per data point.

    With h = ∇_θ log p(Y, θ) at θ = θ(ε, values): the gradient of −(1/N) E[h·θ + T log|det ∂θ/∂ε|], or with
    ``sticking`` of −(1/N) E[(h − T ∇_θ log q)·θ], h and ∇_θ log q held fixed.
    """
    leaf, temperature = values.detach().requires_grad_(), problem.temperature
    with torch.enable_grad():
        theta, volume = push(packed.couplings, packed.parts(leaf), noise)
    joints, slopes = _log_joints(problem, theta, x, y)
    log_q = log_normal(noise) - volume.detach()
    if sticking:
        slopes = slopes - temperature * _score(packed, values, theta)
    with torch.enable_grad():
        ascended = (slopes * theta).sum(-1)
        if not sticking:
            ascended = ascended + temperature * volume
        (gradient,) = torch.autograd.grad(-ascended.mean() / problem.count, leaf)
    with torch.no_grad():
        priors = (
            torch.func.vmap(problem.log_prior)(theta.detach()) if len(theta) > 1 else problem.log_prior(theta[0])[None]
        )
        terms = torch.stack([(priors - joints).mean(), (temperature * log_q - priors).mean()]) / problem.count
    return terms, gradient


def _log_joints(problem: Problem, theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """log p(Y, θ) of each row (S,) and its gradients (S, D); a single one needs no batching of weights."""
    if len(theta) > 1:
        return problem.log_joints(theta, x, y)
    gradient, value = torch.func.grad_and_value(problem.log_joint)(theta[0].detach(), x, y)
    return value.detach()[None], gradient[None]


def _score(packed: Packed, values: Tensor, theta: Tensor) -> Tensor:
    """∇_θ log q(θ) of each row (S, D), with the flow as it is."""
    fixed, leaf = packed.parts(values.detach()), theta.detach().requires_grad_()
    with torch.enable_grad():
        noise, volume = pull(packed.couplings, fixed, leaf - fixed.location)
        (score,) = torch.autograd.grad((log_normal(noise) - volume).sum(), leaf)
    return score


class _LogDensity(nn.Module):
    """log q of rows (N, D) → (N,), all that is trained in one vector."""

    def __init__(self, packed: Packed, values: Tensor) -> None:
        super().__init__()
        self.packed = packed
        self.values = nn.Parameter(values)

    def forward(self, rows: Tensor) -> Tensor:
        parts = self.packed.parts(self.values)
        noise, volume = pull(self.packed.couplings, parts, rows - parts.location)
        return log_normal(noise) - volume

    def extra_repr(self) -> str:
        return f"{self.packed.couplings}"


@dataclass(frozen=True)
class _AsItIs:
    """The likelihood of a model whose outputs are log-densities already."""

    task: ClassVar[Task] = "regression"

    def fit_targets(self, targets: Tensor, outputs: Tensor, name: str = "y") -> Tensor:
        return targets

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs


def fit_coupling_flow_to_draws(
    draws: Samples,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    layers: int = 4,
    hidden: tuple[int, ...] = (32,),
    bound: float = 2.0,
    held_out: Samples | None = None,
    optimizer: str = "adam",
    momentum: float = 0.0,
    schedule: str = "constant",
    warmup_epochs: int = 0,
    seed: int = 0,
    checkpoint: Path | str | None = None,
    checkpoint_seconds: float = 5.0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Fit[CouplingFlow]:
    """Maximise Σ log q(θ_i) over flows of coupling layers: the density of draws of any sampler.

    Begins at the Gaussian of the draws' means and deviations. Tensors that are the same in all draws are points. The
    trace has the loss −log q of a draw in nats, as the epoch saw it while q moved, and with ``held_out`` draws theirs
    at its end: a flow has many parameters, and what it says of the draws it was fitted to is no measure.
    """
    draws = require(draws, Samples, "draws", "a Samples")
    names = varying_names(draws)
    rows, like = vector(draws.flat, names, _one(draws)), _one(draws)
    if not bool(rows.isfinite().all()):
        raise InputError("draws has values that are NaN or infinite")
    location, spread = rows.double().mean(0).to(rows), rows.double().std(0, correction=0).to(rows)
    _require_spread(names, like, spread)
    couplings = Couplings(rows.shape[1], layers, hidden, bound)
    others = None
    if held_out is not None:
        others = vector(require(held_out, Samples, "held_out", "a Samples").flat, names, like).to(rows)
    recipe = optimization(epochs, batch_size, learning_rate, optimizer, momentum, schedule, warmup_epochs)
    control = Control(seed, checkpoint, checkpoint_seconds, callback, show)
    packed = Packed(couplings, random_order(couplings.size, seed, rows.device))
    network = _LogDensity(packed, packed.initial(location, spread.log(), seed))
    problem = pose(network, (rows, rows.new_zeros(len(rows))), _AsItIs(), given_or_flat(None))
    maximum = Maximization(problem, recipe, None, seed)

    def report(epoch: int, loss: Tensor) -> dict[str, float]:
        record = {"loss": float(loss)}
        if others is not None:
            with torch.no_grad():
                record["held_out"] = -float(problem.outputs(maximum.flat.state["values"], others).double().mean())
        return record

    method = "coupling flow of draws"
    settings = {"held out": None if others is None else f"checksum {checksum(others):08x}"}
    trace, seconds = run_descent(
        method, problem, maximum.flat, control, maximum.steps, report,
        loss_of=lambda record: record["loss"], settings=settings, advice=_ADVICE,
    )  # fmt: skip
    parts = packed.parts(maximum.flat.state["values"])
    placed, first = pieces(parts.location.clone(), names, like), ties(draws.params)
    whole = map_tied(lambda name: placed[name] if name in placed else like[name].clone(), first)
    conditioners = {name: tensor.clone() for name, tensor in parts.conditioners.items()}
    flow = CouplingFlow(whole, parts.scale, parts.order, conditioners, names, bound)
    return Fit(flow, trace, method, seconds, _few(rows))


def _one(draws: Samples) -> dict[str, Tensor]:
    return draws.draw(0, 0)


def varying_names(draws: Samples) -> tuple[str, ...]:
    """The parameters of which not all draws are the same, each tied one once."""
    flat = draws.flat
    names = tuple(name for name in draws.random_names if not bool((flat[name] == flat[name][:1]).all()))
    if not names:
        raise InputError(f"draws has {len(draws)} draws that are all the same; expected draws of a distribution")
    return names


def _require_spread(names: tuple[str, ...], like: Mapping[str, Tensor], spread: Tensor) -> None:
    for name, part in pieces(spread, names, like).items():
        if not bool((part > 0).all()):
            raise InputError(
                f"'{name}' has {int((part <= 0).sum())} of {part.numel()} entries that are the same in all draws: "
                f"there is no density; expected all of them to vary, or none"
            )


def _few(rows: Tensor) -> tuple[str, ...]:
    count, size = rows.shape
    if count >= 10 * size:
        return ()
    return (f"{count} draws of {size} numbers: held-out draws tell whether the density is more than theirs",)
