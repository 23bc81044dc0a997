"""Renormalisation without data: what averaging does to the units is seen on noise."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coset._batches import BATCH_SIZE, input_batches
from coset._checks import check_count
from coset._show.progress import progress
from coset.alignment.merging.measured import result
from coset.alignment.merging.passes import Known, Params, Task, first_pass, target
from coset.alignment.merging.renormalized import Renormalized
from coset.errors import InputError
from coset.symmetry import Symmetry
from coset.train.metrics import evaluation_mode


def data_free(
    sym: Symmetry,
    merged: Params,
    ends: Sequence[Params],
    weights: Sequence[float],
    *,
    model: nn.Module,
    example: Tensor | None = None,
    count: int = 1000,
    seed: int = 0,
    hidden_only: bool = True,
    show: bool | None = None,
) -> Renormalized:
    """Measure the ends and the merged network on ``count`` inputs of standard normal noise, and correct the difference.

    A layer that no batch norm reads gets REPAIR's correction (see ``repair``) with the statistics on noise. A batch
    norm's statistics on real data are known of the ends, and the change that averaging makes is taken from noise (where
    all batch norms use the statistics of the batch), in units of the deviation: with bars for the weighted means over
    the ends and n for noise, σ = σ̄·σⁿ/σ̄ⁿ and μ = μ̄ + (μⁿ − μ̄ⁿ)·σ̄/σ̄ⁿ. Norms of weights in place of noise would be the
    simpler rule; they miss the change of the means, which is most of the effect.

    ``example``: a batch of inputs, of which only the shape counts; by default the shape is the model's ``input_shape``.
    Inputs are taken to be normalised, with mean 0 and deviation 1.
    """
    check_count("count", count, 2)
    noise = _noise(merged, _shape(model, example), count, seed)
    task = Task("repair", sym, model, merged, ends, weights, hidden_only, batch_ends=True)
    # Batches of equal size, so that none is left with one input.
    size = -(-count // -(-count // BATCH_SIZE))
    with evaluation_mode(model), progress("renormalising", -(-count // size), show=show) as bar:
        known = first_pass(task, input_batches(noise, size), bar)
    return result(task, known, _transported(task, known))


def _shape(model: nn.Module, example: Tensor | None) -> tuple[int, ...]:
    """The shape of one input."""
    if example is not None:
        if not isinstance(example, Tensor) or not example.is_floating_point() or example.ndim == 0:
            found = f"{tuple(example.shape)} {example.dtype}" if isinstance(example, Tensor) else type(example).__name__
            raise InputError(
                f"example is {found}; renormalize='data-free' feeds noise to the model and expects a batch of real "
                f"numbers"
            )
        return tuple(example.shape[1:])
    shape = getattr(model, "input_shape", None)
    if shape is None:
        raise InputError(
            f"{type(model).__name__} has no attribute input_shape, and example is None; renormalize='data-free' needs "
            f"the shape of an input"
        )
    return tuple(shape)


def _noise(params: Params, shape: tuple[int, ...], count: int, seed: int) -> Tensor:
    dtype = next((tensor.dtype for tensor in params.values() if tensor.is_floating_point()), torch.get_default_dtype())
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *shape, generator=generator, dtype=torch.float64).to(dtype)


def _transported(task: Task, known: Known) -> dict[str, Tensor]:
    """The merged network with running statistics moved as noise tells."""
    params = dict(task.merged)
    for norm in known.anatomy.norms:
        noise_mean, noise_deviation = target(known.ends, task.weights, norm.variance)
        own = known.found[norm.variance]
        means = [share * end[norm.mean].double().cpu() for share, end in zip(task.weights, task.ends, strict=True)]
        deviations = [
            share * end[norm.variance].double().cpu().clamp(min=0).sqrt()
            for share, end in zip(task.weights, task.ends, strict=True)
        ]
        mean, deviation = torch.stack(means).sum(0), torch.stack(deviations).sum(0)
        # What is constant under noise tells nothing.
        rounding = 16 * torch.finfo(params[norm.variance].dtype).eps
        alive = (noise_deviation > rounding * noise_mean.abs()) & (own.deviation > rounding * own.mean.abs())
        unit = torch.where(alive, noise_deviation, torch.ones_like(mean))
        shift = torch.where(alive, (own.mean - noise_mean) * deviation / unit, torch.zeros_like(mean))
        ratio = torch.where(alive, own.deviation / unit, torch.ones_like(mean))
        params[norm.mean] = (mean + shift).to(params[norm.mean])
        params[norm.variance] = ((deviation * ratio) ** 2).to(params[norm.variance])
    return params
