"""Renormalisation with statistics measured on data: batch-norm refresh, REPAIR and RESCALE."""

from collections.abc import Iterator, Sequence

from torch import nn

from coset._batches import BATCH_SIZE, Inputs, count_batches, input_batches
from coset._checks import check_count
from coset._show.progress import progress
from coset.alignment.merging.passes import Known, Params, Task, corrections, first_pass, next_pass
from coset.alignment.merging.renormalized import Renormalized, folded, refreshed
from coset.errors import InputError
from coset.symmetry import Symmetry
from coset.train.metrics import evaluation_mode

BEFORE_NORM = "a batch norm reads its outputs and is refreshed instead"
NOT_HIDDEN = "its outputs carry no class that permutes"


def refresh(
    sym: Symmetry,
    merged: Params,
    ends: Sequence[Params],
    weights: Sequence[float],
    *,
    model: nn.Module,
    data: Inputs,
    batch_size: int = BATCH_SIZE,
    passes: int = 1,
    show: bool | None = None,
) -> Renormalized:
    """Give every batch norm the mean and the variance (over n − 1) of all values it reads, as of one large batch.

    While they are measured every batch norm uses the statistics of its batch, as in training. In further ``passes`` it
    uses those of the pass before, so that after n passes the first n norms in a row are exact.
    """
    task = Task("refresh", sym, model, merged, ends, weights, hidden_only=True)
    return _measured(task, data, batch_size, passes, show)


def repair(
    sym: Symmetry,
    merged: Params,
    ends: Sequence[Params],
    weights: Sequence[float],
    *,
    model: nn.Module,
    data: Inputs,
    batch_size: int = BATCH_SIZE,
    passes: int = 1,
    hidden_only: bool = True,
    show: bool | None = None,
) -> Renormalized:
    """REPAIR (Jordan et al. 2023): units get the weighted means of the ends' means μ and standard deviations σ.

    The outputs y of every linear map and convolution become σ/σ_m·(y − μ_m) + μ, folded into weight and bias; layers
    without a bias get the deviation only. Convolutions are measured over all positions. Batch norms are refreshed (see
    ``refresh``); a layer whose outputs only a batch norm reads stays as it is: the norm gives them mean β and deviation
    |γ| whatever it reads, so that a correction before it would be void, and one behind it a second one. Where something
    else reads them, too, as a skip connection does, they are corrected.

    In the first pass every batch is corrected by its own statistics; what is kept are those of all batches together. In
    further ``passes`` the corrections of the pass before are used, so that after n passes the first n layers in a row
    are exact. ``hidden_only``: leave alone the layers whose outputs carry no class that permutes: the network's own.
    Units that are constant on these data stay as they are.
    """
    task = Task("repair", sym, model, merged, ends, weights, hidden_only)
    return _measured(task, data, batch_size, passes, show)


def rescale(
    sym: Symmetry,
    merged: Params,
    ends: Sequence[Params],
    weights: Sequence[float],
    *,
    model: nn.Module,
    data: Inputs,
    batch_size: int = BATCH_SIZE,
    passes: int = 1,
    hidden_only: bool = True,
    show: bool | None = None,
) -> Renormalized:
    """RESCALE (Qu and Horváth 2024): as ``repair``, but without a shift: y → σ/σ_m·y, weight and bias alike."""
    task = Task("rescale", sym, model, merged, ends, weights, hidden_only)
    return _measured(task, data, batch_size, passes, show)


def _measured(task: Task, data: Inputs, batch_size: int, passes: int, show: bool | None) -> Renormalized:
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
