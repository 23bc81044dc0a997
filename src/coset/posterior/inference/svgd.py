"""Stein variational gradient descent: particles that climb the density and keep apart (Liu and Wang 2016)."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from coset._checks import check_count, check_positive
from coset._magnitudes import exponent, scaled
from coset.distribution.samples import Samples
from coset.posterior.fit import Callback, Control, Fit
from coset.posterior.inference.chains import require_batching, samples_of
from coset.posterior.inference.ensemble import initial_members
from coset.posterior.inference.flat_optimizer import FlatOptimizer, numbered_batches, optimization, run_descent
from coset.posterior.inference.starting import points_of
from coset.posterior.likelihoods import Likelihood
from coset.posterior.problem import Data, PriorLike, pose


def median_bandwidth(squares: Tensor) -> Tensor:
    """h = med²/log(n + 1), the median over pairs of different particles, from squared distances (n, n).

    Then Σ_j k(θ_j, θ_i) is about 1 without the particle itself: what others say weighs as much as its own gradient.
    """
    count = len(squares)
    if count < 2:
        return squares.new_ones(())
    pairs = torch.triu_indices(count, count, offset=1, device=squares.device)
    # Where most particles coincide the kernel between them is 1, whatever the bandwidth.
    return (squares[pairs[0], pairs[1]].median() / math.log(count + 1)).clamp_min(torch.finfo(squares.dtype).tiny)


def stein_direction(particles: Tensor, scores: Tensor, bandwidth: float | None = None) -> tuple[Tensor, Tensor]:
    """φ(θ_i) = (1/n) Σ_j [k(θ_j, θ_i) s_j + ∇_{θ_j} k(θ_j, θ_i)], k = exp(−‖θ_j − θ_i‖²/h); and h.

    ``particles`` θ and ``scores`` s = ∇log p at them are (n, D), as is φ. ``bandwidth`` h: by default
    ``median_bandwidth``. The kernel compares weights as they stand: units in another order are far apart for it.
    """
    # Of θ·2⁻ᵉ, whose squares are numbers: h is 4ᵉ times theirs, and the repulsion 2⁻ᵉ.
    by = exponent(particles)
    near = scaled(particles, by)
    squares = torch.cdist(near, near, compute_mode="donot_use_mm_for_euclid_dist").square()
    h = median_bandwidth(squares) if bandwidth is None else scaled(squares.new_tensor(bandwidth), 2 * by)
    kernel = torch.exp(-squares / h)
    repulsion = scaled((near * kernel.sum(1, keepdim=True) - kernel @ near) * (2 / h), by)
    return (kernel @ scores + repulsion) / len(particles), scaled(h, -2 * by)


def fit_svgd(
    model: nn.Module,
    data: Data,
    *,
    particles: int,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    likelihood: Likelihood | str = "categorical",
    prior: PriorLike = 1.0,
    temperature: float = 1.0,
    optimizer: str = "adam",
    momentum: float = 0.0,
    schedule: str = "constant",
    warmup_epochs: int = 0,
    bandwidth: float | None = None,
    starts: Iterable[Mapping[str, Tensor]] | None = None,
    seed: int = 0,
    checkpoint: Path | str | None = None,
    checkpoint_seconds: float = 5.0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Fit[Samples]:
    """``particles`` networks moved together along the Stein direction of p_T, as chains of one draw each.

    A step goes along (T/N)·φ, φ the direction of ``stein_direction`` with scores ∇log_joint/T: one particle is
    ``fit_map`` at the same rate, and T weighs what keeps particles apart. They begin at fresh initialisations or at
    ``starts``, as in ``fit_ensemble``, and see the same batches. The trace has the mean log_joint per data point as the
    epoch saw it, and the bandwidth h at its end.
    """
    check_count("particles", particles)
    if bandwidth is not None:
        check_positive("bandwidth", bandwidth)
    starts = None if starts is None else list(starts)
    problem = pose(model, data, likelihood, prior, temperature, points_of(*(starts or ())))
    require_batching(problem)
    recipe = optimization(epochs, batch_size, learning_rate, optimizer, momentum, schedule, warmup_epochs)
    values = initial_members(problem, particles, seed, starts, "particles")
    flat = FlatOptimizer(values, recipe, -(-problem.count // batch_size))
    theta, h = flat.state["values"], values.new_zeros(())

    def steps(epoch: int) -> Iterator[Tensor]:
        nonlocal h
        for number, (x, y) in numbered_batches(problem, flat, seed, epoch):
            joints, gradients = problem.log_joints(theta, x, y)
            with torch.no_grad():
                direction, h = stein_direction(theta, gradients / problem.temperature, bandwidth)
                torch.mul(direction, -problem.temperature / problem.count, out=flat.gradient)
            flat.step(number)
            yield -joints.mean() / problem.count

    def report(epoch: int, loss: Tensor) -> dict[str, float]:
        return {"log_joint": -float(loss), "bandwidth": float(h)}

    control = Control(seed, checkpoint, checkpoint_seconds, callback, show)
    trace, seconds = run_descent(
        "SVGD", problem, flat, control, steps, report, loss_of=lambda record: -record["log_joint"],
        settings={"particles": particles, "bandwidth": bandwidth},
    )  # fmt: skip
    return Fit(samples_of(problem, theta.unsqueeze(1)), trace, "SVGD", seconds)
