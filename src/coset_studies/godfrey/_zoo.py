"""Zoos of Godfrey et al. 2022 (D.1): networks of one architecture from different seeds, with their images, in pairs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from coset.data import Dataset, Split, subset
from coset.errors import InputError
from coset.models import build
from coset.represent.stitching import sample_pairs
from coset.represent.stitching.penalties import correct
from coset.study import Context
from coset.study.images import Images, load_images
from coset.study.networks import trained_network
from coset.study.posteriors import Weights
from coset.train import Recipe
from coset_studies._shared.published import PIXELS, published_weights

SCHEMA = 1
"""Version of what is stored here."""

Pairs = int | tuple[tuple[int, int], ...]
"""Pairs of networks by their numbers, (below, above) where they are stitched, or how many are drawn from the zoo."""


@dataclass(frozen=True)
class Zoo:
    """``networks`` of a model on images: trained here, or, without a recipe, published ones.

    Published ones are read, and see pixels, as in ``coset_studies._shared.published``.
    """

    model: str
    images: Images
    networks: int
    recipe: Recipe | None
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, eq=False)
class Networks:
    """Networks of a zoo by number, in evaluation mode, and their images, all on the device of the study.

    ``names``: a checksum of the weights of each. ``fingerprint``: of the images.
    """

    modules: Mapping[int, nn.Module]
    names: Mapping[int, str]
    train: Split
    test: Split
    classes: int
    fingerprint: str


def chosen_pairs(context: Context, zoo: Zoo, pairs: Pairs) -> tuple[tuple[int, int], ...]:
    """The pairs themselves: as they are given, or so many drawn with replacement, of two different networks (D.1)."""
    if isinstance(pairs, int):
        return tuple(sample_pairs(zoo.networks, pairs, seed=context.seed))
    numbers = [number for pair in pairs for number in pair]
    if not pairs or any(below == above for below, above in pairs) or not set(numbers) <= set(range(zoo.networks)):
        raise InputError(f"pairs are {pairs}; expected pairs of different numbers below {zoo.networks}")
    return pairs


def load_networks(context: Context, zoo: Zoo, numbers: Iterable[int]) -> Networks:
    """The networks with these ``numbers``, and no others; those that are trained here begin with their own seed."""
    published = zoo.recipe is None
    data = load_images(context, replace(zoo.images, raw=True) if published else zoo.images)
    train, test = (Split(PIXELS.apply(part.x), part.y) if published else part for part in (data.train, data.test))
    modules: dict[int, nn.Module] = {}
    wanted = sorted(set(numbers))
    with context.progress("networks", len(wanted)) as bar:
        for number in wanted:
            modules[number] = _network(context, zoo, data, number).eval().to(context.device)
            bar.advance(note=f"{zoo.model} {number}")
    return Networks(
        modules,
        {number: repr(Weights(module.state_dict())) for number, module in modules.items()},
        _on(train, context.device),
        _on(test, context.device),
        len(data.classes),
        data.fingerprint,
    )


def drawn(part: Split, count: int | None) -> Split:
    """``count`` examples of a part, every class in its share, always the same; None is all."""
    return part if count is None or count >= len(part) else subset(part, count, seed=0, stratify=True)


def answers(context: Context, networks: Networks, held_out: int | None) -> dict[int, Tensor]:
    """For each network and each held-out example 1 where its label is found, else 0: (N,) in float64; stored."""
    part = drawn(networks.test, held_out)
    address = {"kind": "answers", "schema": SCHEMA, "held out": held_out}
    found = of_each(context, networks, address, lambda module: {"correct": correct(module, (part.x, part.y))})
    return {number: one["correct"] for number, one in found.items()}


def of_each(
    context: Context,
    networks: Networks,
    address: Mapping[str, object],
    make: Callable[[nn.Module], Mapping[str, Tensor]],
) -> dict[int, Mapping[str, Tensor]]:
    """What ``make`` makes of each network, stored; ``address`` says all but the network and the images."""
    return {
        number: context.store.get_or_make(
            {**address, "network": networks.names[number], "fingerprint": networks.fingerprint}, partial(make, module)
        ).params
        for number, module in networks.modules.items()
    }


def accuracy_of(context: Context, networks: Networks) -> float:
    """The mean test accuracy of the networks in percent."""
    found = answers(context, networks, None)
    return 100 * sum(float(one.mean()) for one in found.values()) / len(found)


def _network(context: Context, zoo: Zoo, data: Dataset, number: int) -> nn.Module:
    options = dict(zoo.options)
    network = build(zoo.model, seed=number, **options)
    if zoo.recipe is None:
        network.load_state_dict(published_weights(zoo.model, number, network))
        return network
    entry = trained_network(
        context.store,
        data,
        model=zoo.model,
        options=options,
        recipe=zoo.recipe,
        seed=number,
        device=context.device,
        show=context.show,
    )
    network.load_state_dict(entry.params)
    return network


def _on(part: Split, device: torch.device) -> Split:
    return Split(part.x.to(device), part.y.to(device))
