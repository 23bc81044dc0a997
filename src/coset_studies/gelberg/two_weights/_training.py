"""Many two-weight posteriors trained at once: settings × seeds, stochastically as in the paper, or to convergence.

Gelberg et al. 2024, section 5 and eq. for L^K. The group has two elements, so that of the K − 1 = 1 drawn elements of
K = 2 half are the identity, whose term is 0: in expectation K = 2 adds half of the information, K → ∞ all of it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coset_studies.gelberg.two_weights._network import Moments, Variances, elbo, information, log_ratio, squared_error

METHODS = {"MFVI": 0.0, "SGM (K = 2)": 0.5, "SGM (exact)": 1.0}
"""Each method by the share of I(g; w) that its objective L_VI + share·I has, in expectation."""


@dataclass(frozen=True)
class Protocol:
    """Adam with a constant ``learning_rate`` on mini-batches; one draw of the weights a step."""

    epochs: int
    batch_size: int = 10
    learning_rate: float = 5e-3


@dataclass(frozen=True)
class Chance:
    """All randomness of ``seeds`` runs: every setting and method sees the same, so that they differ by themselves only.

    ``start`` (seeds, 2): standard normal; ``batches``: moments (epochs·batches, seeds) of the mini-batches' inputs;
    ``noise`` (steps, seeds, 2): standard normal; ``exchanged`` (steps, seeds): whether the drawn g is the exchange.
    """

    start: Tensor
    batches: Moments
    noise: Tensor
    exchanged: Tensor


def chance(x: Tensor, seeds: int, protocol: Protocol, generator: torch.Generator) -> Chance:
    """Draws for ``seeds`` runs on inputs x (N,), each epoch of each run in an order of its own."""
    count, size = len(x), protocol.batch_size
    batches = count // size
    start = torch.randn(seeds, 2, generator=generator, dtype=x.dtype)
    orders = torch.rand(protocol.epochs, seeds, count, generator=generator, dtype=x.dtype).argsort(-1)
    parts = x[orders][..., : batches * size].reshape(protocol.epochs, seeds, batches, size).transpose(1, 2)
    moments = Moments.of(parts.flatten(0, 1))
    steps = protocol.epochs * batches
    noise = torch.randn(steps, seeds, 2, generator=generator, dtype=x.dtype)
    exchanged = torch.rand(steps, seeds, generator=generator, dtype=x.dtype) < 0.5
    return Chance(start, moments, noise, exchanged)


def train(
    mean: Tensor, std: Tensor, share: Tensor, alpha: Tensor, variances: Variances, count: int, run: Chance, rate: float
) -> tuple[Tensor, Tensor]:
    """Means and deviations (…, seeds, 2) after all steps of ``run`` from the given ones; the rest broadcast to (…, 1).

    Gradients of (N/M) Σ_batch log p(y|w) − KL + the term of the drawn g, w = m + s·ε, with respect to m and log s.
    ``share`` 0.5: the drawn g counts, ``share`` 0 and 1: none and the exchange count at every step.
    """
    values = torch.stack([mean, std.log()]).requires_grad_()
    optimizer = torch.optim.Adam([values], lr=rate)
    for step in range(len(run.noise)):
        spread = values[1].exp()
        weights = values[0] + spread * run.noise[step]
        batch = Moments(run.batches.positive[step], run.batches.negative[step], run.batches.count)
        fit = -squared_error(weights, alpha, batch) * (count / batch.count) / (2 * variances.noise)
        ratio = spread.square() / variances.prior[..., None]
        divergence = 0.5 * (ratio + values[0].square() / variances.prior[..., None] - ratio.log()).sum(-1)
        term = -torch.nn.functional.softplus(log_ratio(weights, values[0], spread))
        counted = torch.where(share == 0.5, run.exchanged[step].to(term), share)
        # Per data point, as inference does: Adam's ε is then as large beside the gradient.
        values.grad = torch.autograd.grad(-(fit - divergence + counted * term).sum() / count, values)[0]
        optimizer.step()
    return values[0].detach(), values[1].detach().exp()


def converge(
    mean: Tensor,
    std: Tensor,
    share: Tensor,
    alpha: Tensor,
    data: Moments,
    variances: Variances,
    *,
    steps: int,
    rate: float = 0.05,
) -> tuple[Tensor, Tensor]:
    """A local optimum (…, 2) of L_VI + share·I itself, closed form and quadrature, from the given start.

    Adam without noise, its rate lowered to zero along a cosine.
    """
    values = torch.stack([mean, std.log()]).requires_grad_()
    optimizer = torch.optim.Adam([values], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        spread = values[1].exp()
        objective = elbo(values[0], spread, alpha, data, variances)
        objective = objective + share * information(values[0], spread, step=0.4, reach=5.0)
        values.grad = torch.autograd.grad(-objective.sum(), values)[0]
        optimizer.step()
        schedule.step()
    return values[0].detach(), values[1].detach().exp()
