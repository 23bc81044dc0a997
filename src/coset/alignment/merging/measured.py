"""Renormalisation by statistics measured on data, or on noise: batch-norm refresh, REPAIR, RESCALE, data-free."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from coset._batches import BATCH_SIZE, Inputs, count_batches, input_batches
from coset._checks import check_count
from coset._show.progress import progress
from coset.alignment._result import Params
from coset.alignment.merging.passes import Known, Task, corrections, first_pass, next_pass, target, weighted
from coset.alignment.merging.renormalized import Renormalized, folded, refreshed
from coset.errors import InputError
from coset.train.metrics import evaluation_mode

BEFORE_NORM = "a batch norm reads its outputs and is refreshed instead"
NOT_HIDDEN = "its outputs carry no class that permutes"


def refresh(
    task: Task, *, data: Inputs, batch_size: int = BATCH_SIZE, passes: int = 1, show: bool | None = None
) -> Renormalized:
    """Give every batch norm the mean and the variance (over n − 1) of all values it reads, as of one large batch.

    While they are measured every batch norm uses the statistics of its batch, as in training. In further ``passes`` it
    uses those of the pass before, so that after n passes the first n norms in a row are exact.
    """
    return measured(task, data=data, batch_size=batch_size, passes=passes, show=show)


def measured(
    task: Task,
    *,
    data: Inputs,
    batch_size: int = BATCH_SIZE,
    passes: int = 1,
    hidden_only: bool = True,
    show: bool | None = None,
) -> Renormalized:
    """REPAIR (Jordan et al. 2023): units get the weighted means of the ends' means μ and standard deviations σ.

    The outputs y of every linear map and convolution become σ/σ_m·(y − μ_m) + μ, folded into weight and bias; layers
    without a bias get the deviation only. RESCALE (Qu and Horváth 2024) does not shift: y → σ/σ_m·y, weight and bias
    alike. Convolutions are measured over all positions. Batch norms are refreshed (see ``refresh``); a layer whose
    outputs only a batch norm reads stays as it is: the norm gives them mean β and deviation |γ| whatever it reads, so
    that a correction before it would be void, and one behind it a second one. Where something else reads them, too, as
    a skip connection does, they are corrected.

    In the first pass every batch is corrected by its own statistics; what is kept are those of all batches together. In
    further ``passes`` the corrections of the pass before are used, so that after n passes the first n layers in a row
    are exact. ``hidden_only``: leave alone the layers whose outputs carry no class that permutes: the network's own.
    Units that are constant on these data stay as they are.
    """
    task = replace(task, hidden_only=hidden_only)
    check_count("passes", passes)
    if passes > 1 and isinstance(data, Iterator):
        raise InputError(
            f"data is a {type(data).__name__}, which can be gone through once, and passes is {passes}; expected a "
            f"tensor or a loader, or passes=1"
        )
    with (
        evaluation_mode(task.model),
        progress("renormalising", passes * (count_batches(data, batch_size) or 0), show=show) as bar,
    ):
        known = first_pass(task, input_batches(data, batch_size), bar)
        for _ in range(passes - 1):
            known = next_pass(task, known, input_batches(data, batch_size), bar)
    return result(task, known, refreshed(task.merged, known.found, known.anatomy.norms))


def data_free(
    task: Task,
    *,
    example: Tensor | None = None,
    count: int = 1000,
    seed: int = 0,
    hidden_only: bool = True,
    show: bool | None = None,
) -> Renormalized:
    """Measure the ends and the merged network on ``count`` inputs of standard normal noise, and correct the difference.

    A layer that no batch norm reads gets REPAIR's correction (see ``measured``) with the statistics on noise. A batch
    norm's statistics on real data are known of the ends, and the change that averaging makes is taken from noise (where
    all batch norms use the statistics of the batch), in units of the deviation: with bars for the weighted means over
    the ends and n for noise, σ = σ̄·σⁿ/σ̄ⁿ and μ = μ̄ + (μⁿ − μ̄ⁿ)·σ̄/σ̄ⁿ. Norms of weights in place of noise would be the
    simpler rule; they miss the change of the means, which is most of the effect.

    ``example``: a batch of inputs, of which only the shape counts; by default the shape is the model's ``input_shape``.
    Inputs are taken to be normalised, with mean 0 and deviation 1.
    """
    check_count("count", count, 2)
    task = replace(task, kind="repair", hidden_only=hidden_only, batch_ends=True)
    noise = _noise(task.merged, _shape(task.model, example), count, seed)
    # Batches of equal size, so that none is left with one input.
    size = -(-count // -(-count // BATCH_SIZE))
    with evaluation_mode(task.model), progress("renormalising", -(-count // size), show=show) as bar:
        known = first_pass(task, input_batches(noise, size), bar)
    return result(task, known, _transported(task, known))


def result(task: Task, known: Known, params: Params) -> Renormalized:
    """The corrections folded into ``params``, whose running statistics are new already, and what was skipped."""
    changes = corrections(task, known)
    final, factors = folded(params, [(layer, changes[layer.weight]) for layer in known.layers])
    shifted = [name for name, change in changes.items() if change.shift is not None]
    return Renormalized(
        final,
        corrected=tuple(shifted),
        rescaled=tuple(name for name in changes if name not in shifted),
        refreshed=tuple(name for norm in known.anatomy.norms for name in (norm.mean, norm.variance)),
        skipped=_skipped(task, known),
        factors=factors,
    )


def _skipped(task: Task, known: Known) -> dict[str, str]:
    """Weight → why its outputs were not corrected; running variance → why it is old."""
    skipped = {}
    if task.kind != "refresh":
        for layer in known.anatomy.layers:
            if layer.norm:
                skipped[layer.weight] = BEFORE_NORM
            elif layer not in known.layers:
                skipped[layer.weight] = NOT_HIDDEN
    done = {norm.variance for norm in known.anatomy.norms}
    for name, parameter in task.sym.parameters.items():
        matrix = parameter.moves and not parameter.buffer and len(parameter.shape) > 1
        if matrix and name in known.anatomy.unusable and task.kind != "refresh":
            skipped[name] = known.anatomy.unusable[name]
        if parameter.shift and name in task.merged and name not in done:
            skipped[name] = "no call of batch_norm reads it"
    return skipped


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
        mean = weighted(task.weights, [end[norm.mean].double().cpu() for end in task.ends])
        spreads = [end[norm.variance].double().cpu().clamp(min=0).sqrt() for end in task.ends]
        deviation = weighted(task.weights, spreads)
        # What is constant under noise tells nothing.
        rounding = 16 * torch.finfo(params[norm.variance].dtype).eps
        alive = (noise_deviation > rounding * noise_mean.abs()) & (own.deviation > rounding * own.mean.abs())
        unit = torch.where(alive, noise_deviation, torch.ones_like(mean))
        shift = torch.where(alive, (own.mean - noise_mean) * deviation / unit, torch.zeros_like(mean))
        ratio = torch.where(alive, own.deviation / unit, torch.ones_like(mean))
        params[norm.mean] = (mean + shift).to(params[norm.mean])
        params[norm.variance] = ((deviation * ratio) ** 2).to(params[norm.variance])
    return params
