"""Averages of networks of one architecture, as they are: linear and on the sphere."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from coset._checks import check_choice, is_number
from coset._magnitudes import exponent, scaled, unscaled
from coset.alignment._result import Params, T, Weights, deviations, points
from coset.alignment.inputs import check_same_names, is_correlated, is_posterior
from coset.alignment.task_vectors import KINDS, TaskVectors, combine
from coset.distribution import Delta, Distribution, MeanField, Normal
from coset.distribution.contract import rule_for
from coset.distribution.ties import ties as tied_names
from coset.errors import InputError
from coset.geometry.spheres import are_opposite_by_cosine, mean_coefficients


def mean(networks: Sequence[T], weights: Sequence[float] | None = None) -> T:
    """Σ wᵢ θᵢ / Σ wᵢ, of the type of the first network (see ``MADE``); by default all weights are equal.

    Of posteriors the means and the deviations are averaged: the Wasserstein barycentre of Gaussians with diagonal
    covariances. Tensors that are not of numbers with a point (counted batches) are the first network's. Sums are taken
    in float64; names, types, devices and ties are those of the first network.
    """
    return average(networks, weights)


def spherical(a: T, b: T, t: float = 0.5, *, buffers: Collection[str] = ()) -> T:
    """The point at ``t`` of the great circle from ``a`` (t = 0) to ``b`` (t = 1), its length interpolated linearly.

    θ(t) = ((1−t)‖a‖ + t‖b‖)·(sin((1−t)φ)·â + sin(tφ)·b̂)/sin φ, with φ the angle between the whole vectors of trained
    weights, tied ones counted once. ``buffers``, and the deviations of posteriors, are averaged linearly.
    """
    if not is_number(t):
        raise InputError(f"t is {t!r}; expected a finite number")
    return average([a, b], [1 - t, t], kind="spherical", buffers=buffers)


def average(
    networks: Sequence[T],
    weights: Sequence[float] | None = None,
    *,
    kind: str = "mean",
    buffers: Collection[str] = (),
    base: T | None = None,
    task: TaskVectors | None = None,
) -> T:
    """The average of the ``kind`` named in ``AVERAGES``; ``buffers`` are not trained and averaged linearly.

    Or of what networks learned beyond their ``base``, by a name in ``task_vectors.KINDS`` and as ``task`` says.
    """
    check_kind(kind, base is not None, task)
    _check(networks if base is None else [*networks, base])
    shares = normalized_weights(weights, len(networks))
    if base is not None:
        return _beyond(networks, base, shares, kind, buffers, task or TaskVectors())
    parts = [points(network) for network in networks]
    ties = tied_names(*parts)
    trained = [n for n, tensor in parts[0].items() if ties[n] == n and n not in buffers and _averaged(tensor)]
    mine = _combined(parts, shares, AVERAGES[kind](parts, trained, shares), ties, buffers)
    spreads = [deviations(network) for network in networks]
    return like(networks[0], mine, _combined(spreads, shares, shares, tied_names(*spreads), ()))


def check_kind(kind: str, based: bool, task: TaskVectors | None) -> None:
    """Raise unless there is an average of that name, and a base where it is one of task vectors."""
    check_choice("average", kind, [*AVERAGES, *KINDS])
    if (kind in KINDS) != based:
        what = "needs the network from which the others began: base is missing" if kind in KINDS else "has no base"
        raise InputError(f"average {kind!r} {what}")
    if task is not None and kind not in KINDS:
        raise InputError(f"average {kind!r} has no options; expected one of {', '.join(KINDS)} with them")


def _beyond(
    networks: Sequence[T], base: T, shares: Sequence[float], kind: str, buffers: Collection[str], task: TaskVectors
) -> T:
    """The base and what the networks learned beyond it; buffers are averaged linearly."""
    if is_posterior(base):
        raise InputError(f"average {kind!r} is of networks; found a {type(base).__name__}")
    parts, start = [points(network) for network in networks], points(base)
    ties = tied_names(start, *parts)
    named = [n for n, tensor in start.items() if ties[n] == n and n not in buffers and tensor.is_floating_point()]
    found = _combined(parts, shares, shares, ties, buffers)
    joined = combine(kind, {n: start[n] for n in named}, parts, shares, task)
    return like(base, {name: joined.get(ties[name], tensor) for name, tensor in found.items()}, {})


def like(network: T, mean: Params, std: Params) -> T:
    """A network of the same kind with other means and deviations, see ``MADE``."""
    if isinstance(network, Mapping):
        return cast(T, dict(mean))
    make = rule_for(MADE, network)
    if make is None:
        raise InputError(f"a {type(network).__name__} cannot be made of means and deviations; expected a kind in MADE")
    return cast(T, make(mean, std))


MADE: dict[type, Callable[[Params, Params], Distribution]] = {
    Delta: lambda mean, std: Delta(mean),
    Normal: MeanField,
}
"""Kind → a distribution of that kind with given means and deviations; one from outside may add its own."""


def normalized_weights(weights: Sequence[float] | None, count: int) -> list[float]:
    """One weight for each of ``count`` networks, with sum 1."""
    if weights is None:
        return [1 / count] * count
    try:
        given = [float(weight) for weight in weights]
    except (TypeError, ValueError) as error:
        raise InputError(f"weights is {weights!r}; expected one number for each of the {count} networks") from error
    if len(given) != count:
        raise InputError(f"weights has {len(given)} entries; expected one for each of the {count} networks")
    total = math.fsum(given)
    if not all(map(math.isfinite, given)) or not total > 0:
        raise InputError(f"weights are {given}; expected finite numbers with a positive sum")
    return [weight / total for weight in given]


def _check(networks: Sequence[Weights]) -> None:
    if not networks:
        raise InputError("networks is empty; expected at least one network")
    for number, network in enumerate(networks):
        if is_correlated(network):
            raise InputError(
                f"network {number} is a {type(network).__name__}: the average of correlated ones has no closed form; "
                f"expected its marginals"
            )
        if is_posterior(network) != is_posterior(networks[0]):
            raise InputError(f"networks 0 and {number} are a point and a posterior; expected one kind")
        check_same_names(networks[0], network, "network 0", f"network {number}")
        for name, tensor in points(networks[0]).items():
            if tensor.shape != (shape := points(network)[name].shape):
                raise InputError(
                    f"'{name}' has shape {tuple(tensor.shape)} in network 0 and {tuple(shape)} in network {number}; "
                    f"expected equal shapes"
                )


def _wide(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.detach().to(device, torch.complex128 if tensor.is_complex() else torch.float64)


def _averaged(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _combined(
    parts: Sequence[Params],
    shares: Sequence[float],
    coefficients: Sequence[float],
    ties: Mapping[str, str],
    buffers: Collection[str],
) -> dict[str, Tensor]:
    """Σ cᵢ θᵢ, name by name, with the shares in place of c for buffers."""
    result: dict[str, Tensor] = {}
    for name, tensor in parts[0].items():
        if ties[name] != name:
            result[name] = result[ties[name]]
        elif not _averaged(tensor):
            result[name] = tensor.detach().clone()
        else:
            factors = shares if name in buffers else coefficients
            total = torch.zeros_like(_wide(tensor, tensor.device))
            for factor, part in zip(factors, parts, strict=True):
                total.add_(_wide(part[name], tensor.device), alpha=factor)
            result[name] = total.to(tensor.dtype)
    return result


def _spherical(parts: Sequence[Params], names: Sequence[str], shares: Sequence[float]) -> Sequence[float]:
    """The coefficients of the Karcher mean of the directions, times the mean length."""
    by = [exponent(*(part[name] for name in names)) if names else 0 for part in parts]
    gram = _inner_products(parts, names, by)
    own = gram.diagonal().sqrt()
    if not bool((own > 0).all()):
        raise InputError(f"network {int(own.argmin())} has only weights that are 0; it has no direction to average")
    cosines = (gram / own[:, None] / own).clamp(-1, 1)
    lengths = torch.tensor([unscaled(float(length), e) for length, e in zip(own, by, strict=True)], dtype=torch.float64)
    if not bool(torch.isfinite(lengths).all()):
        raise InputError(f"network {int(lengths.argmax())} has a norm beyond float64; expected smaller weights")
    opposite = are_opposite_by_cosine(cosines).nonzero()
    if len(opposite):
        i, j = opposite[0].tolist()
        raise InputError(
            f"networks {i} and {j} are opposite to each other; between them there is no shortest great circle"
        )
    share = torch.tensor(shares, dtype=torch.float64)
    return (mean_coefficients(cosines, share) / lengths * (share @ lengths)).tolist()


def _inner_products(parts: Sequence[Params], names: Sequence[str], by: Sequence[int]) -> Tensor:
    """⟨θᵢ, θⱼ⟩·2^(−eᵢ−eⱼ) over the weights of these names, (N, N) in float64."""
    total = torch.zeros(len(parts), len(parts), dtype=torch.float64)
    for name in names:
        device = parts[0][name].device
        wide = (scaled(_wide(part[name], device), e) for part, e in zip(parts, by, strict=True))
        rows = torch.stack([tensor.reshape(-1) for tensor in wide])
        total += (rows @ rows.mH).real.cpu()
    return total


Coefficients = Callable[[Sequence[Params], Sequence[str], Sequence[float]], Sequence[float]]

AVERAGES: dict[str, Coefficients] = {"mean": lambda parts, names, shares: shares, "spherical": _spherical}
"""Name → the coefficients with which the networks' weights of the given names are summed; the shares have sum 1."""
