"""What an alignment may be given: two networks of one architecture, finite, whole, and known to the symmetry."""

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from coset._batches import input_batches
from coset.alignment._result import Weights, deviations, points
from coset.distribution import Normal
from coset.distribution.contract import centre_of
from coset.errors import InputError
from coset.symmetry import Element, Symmetry, check_preserves
from coset.symmetry.preserving import is_proven


def is_network(value: object) -> bool:
    """Whether ``value`` can be aligned: a dict of weights, or a distribution whose mean is a network."""
    return centre_of(value) is not None


def is_posterior(network: Weights) -> bool:
    """Whether a network is more than a point."""
    return isinstance(network, Normal) or bool(deviations(network))


def is_correlated(network: Weights) -> bool:
    """Whether a posterior is more than its means and deviations: an average of such ones has no closed form."""
    return is_posterior(network) and not (isinstance(network, Normal) and network.independent)


def check_network(sym: Symmetry, network: Weights, what: str) -> None:
    """Raise unless ``network`` has every parameter of ``sym``, each of its shape and finite."""
    if not is_network(network):
        raise InputError(
            f"{what} is a {type(network).__name__}; expected a dict of parameters, a Delta, a MeanField, a "
            f"Gaussian or a LowRank"
        )
    weights = points(network)
    for name in weights:
        if name not in sym.parameters:
            raise InputError(
                f"{what} has '{name}', which this symmetry does not know: it is the symmetry of another model "
                f"(it has {_some(sym.parameters)})"
            )
    for name, parameter in sym.parameters.items():
        if name not in weights:
            # What does not move may be left out: buffers that count batches, frozen parts.
            if parameter.moves:
                raise InputError(f"{what} lacks '{name}', which moves under this symmetry (it has {_some(weights)})")
            continue
        tensor = weights[name]
        if not isinstance(tensor, Tensor):
            raise InputError(f"{what} has a {type(tensor).__name__} under '{name}'; expected a tensor")
        if tuple(tensor.shape) != parameter.shape:
            raise InputError(
                f"'{name}' of {what} has shape {tuple(tensor.shape)}; this symmetry expects {parameter.shape}"
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            raise InputError(f"'{name}' of {what} has {count} entries that are NaN or infinite")


def check_on(sym: Symmetry, model: nn.Module, data: Any) -> None:
    """Check a symmetry from elsewhere on a few of the data before it is used with the model; raises if it is none.

    Of data other than tensors, lists and ordinary loaders nothing is read, for that might change what comes next.
    """
    if not isinstance(model, nn.Module) or is_proven(sym, model):
        return
    if isinstance(data, DataLoader) and isinstance(data.dataset, Sized) and data.collate_fn is not None:
        # Not by its iterator: a loader that shuffles would do so differently afterwards.
        data = [data.collate_fn([data.dataset[number] for number in range(min(2, len(data.dataset)))])]
    if not isinstance(data, Tensor | Sequence):
        return
    batch = next(input_batches(data), None)
    if batch is None:
        return
    device = next((tensor.device for tensor in model.parameters()), batch.device)
    try:
        check_preserves(sym, model, batch[:2].to(device))
    except InputError as error:
        raise InputError(f"the symmetry does not fit the model: {error}") from error


def check_pair(sym: Symmetry, reference: Weights, other: Weights) -> None:
    """Raise unless both are networks of ``sym`` with the same names, and both points or both posteriors."""
    check_networks(sym, [reference, other], ["the reference", "the other network"], correlated=True)


def check_networks(
    sym: Symmetry, networks: Sequence[Weights], names: Sequence[str] | None = None, *, correlated: bool = False
) -> None:
    """Raise unless all are networks of ``sym`` with the same names and the same deviations.

    ``correlated``: such posteriors may be among them; what averages networks has no closed form for them.
    """
    labels = names or [f"network {number}" for number in range(len(networks))]
    for network, label in zip(networks, labels, strict=True):
        check_network(sym, network, label)
        if is_correlated(network) and not correlated:
            raise InputError(
                f"{label} is a {type(network).__name__}, which is not averaged here; expected a MeanField: "
                f"its marginals"
            )
    first = networks[0]
    for network, label in zip(networks[1:], labels[1:], strict=True):
        if is_posterior(network) != is_posterior(first):
            kinds = ["posterior" if is_posterior(one) else "point" for one in (first, network)]
            raise InputError(
                f"{labels[0]} is a {kinds[0]} and {label} a {kinds[1]}; expected both points or both posteriors"
            )
        check_same_names(first, network, labels[0], label)


def check_start(sym: Symmetry, start: object) -> None:
    """Raise unless ``start`` is an element of ``sym``."""
    if not isinstance(start, Element):
        raise InputError(f"start is a {type(start).__name__}; expected an Element of the symmetry")
    sym.check(start)


def check_same_names(a: Weights, b: Weights, first: str, second: str) -> None:
    """Raise unless two networks, called ``first`` and ``second``, have the same names and the same deviations."""
    for mine, theirs, what in ((points(a), points(b), ""), (deviations(a), deviations(b), " a deviation of")):
        if odd := sorted(mine.keys() ^ theirs.keys()):
            has, lacks = (first, second) if odd[0] in mine else (second, first)
            raise InputError(f"{has} has{what} '{odd[0]}' and {lacks} has not")


def _some(names: Mapping[str, object]) -> str:
    shown = ", ".join(list(names)[:4])
    return f"{shown}, … ({len(names)} in all)" if len(names) > 4 else shown or "none"
