"""``renormalize``: give the units of an averaged network back the statistics they had in the networks it is made of.

The average of two units that are not equal varies less than they do, and layer by layer the signal dies out (Jordan et
al. 2023, "REPAIR: REnormalizing Permuted Activations for Interpolation Repair"). All methods return a plain state dict
of the same architecture: corrections are folded into weights, biases and running statistics.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from coset._checks import check_choice, keyword_options
from coset.alignment._result import Weights, points
from coset.alignment.averages import normalized_weights
from coset.alignment.inputs import check_networks
from coset.alignment.merging.measured import data_free, measured, refresh
from coset.alignment.merging.passes import Task
from coset.alignment.merging.renormalized import Renormalized
from coset.errors import InputError
from coset.running import whole_weights
from coset.symmetry import Symmetry
from coset.symmetry.preserving import check_model_of
from coset.train.randomness import own_global_state, seed_global_state


def none(task: Task) -> Renormalized:
    """Nothing: the network as it is."""
    return Renormalized(task.merged)


RENORMALIZATIONS: dict[str, Callable[..., Renormalized]] = {
    "none": none,
    "refresh": refresh,
    "repair": measured,
    "rescale": measured,
    "data-free": data_free,
}


def renormalize(
    sym: Symmetry,
    model: nn.Module | None,
    merged: Weights,
    ends: Sequence[Weights],
    *,
    method: str = "repair",
    weights: Sequence[float] | None = None,
    **options: Any,
) -> Renormalized:
    """Correct the units of ``merged``, an average of ``ends`` with ``weights`` (by default equal).

    ``ends`` must be aligned, as they were averaged. ``method``: a name in ``RENORMALIZATIONS``; ``options`` are those
    of the method: ``data`` (inputs, or a loader of batches) for all that measure, and see there. Of posteriors the
    means are corrected; ``Renormalized.factors`` tells what that does to deviations. The model is run in evaluation
    mode, whatever mode it is in.
    """
    chosen = checked_method(method, model, options)
    if not ends:
        raise InputError("ends is empty; expected the networks that were averaged")
    labels = ["the merged network", *(f"end {number}" for number in range(len(ends)))]
    check_networks(sym, [merged, *ends], labels)
    shares = normalized_weights(weights, len(ends))
    first, *others = (points(network) for network in (merged, *ends))
    # Only "none" is given no model, and runs none.
    task = Task(sym, cast(nn.Module, model), first, others, shares, method)
    if method == "none":
        return chosen(task)
    check_model_of(sym, task.model)
    for network in (first, *others):
        whole_weights(task.model, network)  # which raises where names of one tensor differ
    # A loader that shuffles draws from the global state: the same call must give the same result.
    with own_global_state(torch.device("cpu")):
        seed_global_state(0, torch.device("cpu"))
        return chosen(task, **options)


def checked_method(method: str, model: nn.Module | None, options: Mapping[str, Any]) -> Callable[..., Renormalized]:
    """The method of a name in ``RENORMALIZATIONS``, if it has what it needs and knows the options."""
    check_choice("renormalize", method, RENORMALIZATIONS)
    known = options_of(method)
    if unknown := sorted(set(options) - set(known)):
        raise InputError(f"renormalize={method!r} has no option '{unknown[0]}'; it has {', '.join(known) or 'none'}")
    if method != "none" and model is None:
        raise InputError(f"model is None; renormalize={method!r} runs the model")
    if "data" in known and options.get("data") is None:
        raise InputError(f"data is None; renormalize={method!r} measures the units of the model on data")
    return RENORMALIZATIONS[method]


def options_of(method: str) -> list[str]:
    """The names of a method's own options; none of a method that is not there."""
    return list(keyword_options(RENORMALIZATIONS[method])) if method in RENORMALIZATIONS else []
