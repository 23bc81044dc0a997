"""Where the units of every class can be seen in the activations of a network, for any model and any symmetry.

Features are what contractions read: the arguments of linear maps, convolutions and matrix products. No type of module
is known here. Which axis of a feature carries which class is decided by experiment: the network is moved by random
elements g of its group, in float64, and a feature carries a class if in g·θ it is the feature of θ, re-ordered.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from coset._values import Frozen
from coset.alignment.matching.feature_calls import Watch, fitted, run
from coset.alignment.matching.feature_layouts import fits, structure
from coset.alignment.matching.feature_search import Search, describe, enough_elements
from coset.alignment.matching.feature_signs import common_families, enough_signs, factors_of_units, shown_families
from coset.errors import InputError
from coset.symmetry import Element, Symmetry
from coset.symmetry.axes import Node
from coset.symmetry.discovery.general_position import general_position
from coset.symmetry.structure import Stretch, ancestors

Key = tuple[int, int]
"""The number of a call, in the order of execution, and of its argument."""

_ENTRIES = 4096
"""Experiments run on as many inputs as have so many entries, at least 2 and at most 8."""


_FURTHER = 2
"""So many more networks are tried where a class is not seen: of a few units all may be dead in one network."""


@dataclass(frozen=True)
class Site:
    """A tensor that a contraction reads: the argument ``argument`` of the ``call``-th contraction, an ``operation``.

    ``axes``: what stands on each; ``Fixed(0)`` are samples, as many as there are.
    """

    call: int
    argument: int
    operation: str
    axes: tuple[Node, ...]

    @property
    def key(self) -> Key:
        """Which argument of which call it is."""
        return self.call, self.argument


@dataclass(frozen=True)
class FeaturePlacement:
    """One appearance of the class ``owner`` at a site: dimensions ``stretch`` of its structure, and which of the
    classes there (``member``, −1 where there is one alone). ``flips``: the families of signs that it shows.
    """

    owner: str
    site: Site
    stretch: int
    member: int
    flips: frozenset[str] = frozenset()


def find_features(
    sym: Symmetry, model: nn.Module, params: Mapping[str, Tensor], inputs: Tensor, *, seed: int = 0
) -> Mapping[str, tuple[FeaturePlacement, ...]]:
    """For each class that permutes, where its units are seen; an empty tuple where they are seen nowhere.

    ``params``: any network of this architecture, of which a neighbour in general position is used; ``inputs``: some
    inputs of the model. A placement of a class counts only where all other entries are samples, alike in all networks
    of the orbit: no other class, but the ones around it, may move or scale them.
    """
    check_model(sym, model)
    generator = torch.Generator().manual_seed(seed)
    runs = _Runs(model, inputs[: min(8, max(2, _ENTRIES // max(1, inputs[0].numel())))], {})
    best = _found(sym, runs, params, generator)
    for _ in range(_FURTHER):
        if unseen(sym, best):
            best = min(best, _found(sym, runs, params, generator), key=lambda places: len(unseen(sym, places)))
    return best


def unseen(sym: Symmetry, places: Mapping[str, tuple[FeaturePlacement, ...]]) -> tuple[str, ...]:
    """The classes of which nothing is seen, not even what is nested in them."""
    visible = {outer for name, found in places.items() if found for outer in (name, *ancestors(name, sym.classes))}
    return tuple(name for name in sym.permuting if sym.classes[name].size > 1 and name not in visible)


def units_by_samples(sym: Symmetry, place: FeaturePlacement, feature: Tensor) -> Tensor:
    """The units of a class, seen at one place: (units over all blocks, samples); a copy."""
    classes = tuple(sym.classes.values())
    if not fits(place.site.axes, feature.shape, {item.name: item.size for item in classes}):
        raise InputError(
            f"call {place.site.call} ({place.site.operation}) reads a feature of shape {tuple(feature.shape)}, in "
            f"which the units of '{place.owner}' have no place: the model's shapes change with its inputs"
        )
    parts = structure(place.site.axes, tuple(feature.shape), classes)
    stretch = parts.stretches[place.stretch]
    apart = feature.reshape(parts.sizes).movedim(stretch.dims, tuple(range(len(stretch.dims))))
    rows = apart.reshape(stretch.size, -1)
    count = math.prod(sym.shape(place.owner))
    if place.member < 0:
        shared = rows.untyped_storage().data_ptr() == feature.untyped_storage().data_ptr()
        return rows.clone(memory_format=torch.contiguous_format) if shared else rows
    return rows[_positions(stretch, place.member).to(rows.device)].reshape(count, -1)


def check_model(sym: Symmetry, model: nn.Module) -> None:
    """Raise unless ``model`` has the parameters and buffers of ``sym``, of the same shapes."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; expected the torch.nn.Module whose weights are aligned")
    own = model.state_dict()
    for name, parameter in sym.parameters.items():
        if name not in own:
            raise InputError(f"the symmetry knows '{name}', which model ({type(model).__name__}) has not")
        if tuple(own[name].shape) != parameter.shape:
            raise InputError(
                f"'{name}' of model ({type(model).__name__}) has shape {tuple(own[name].shape)}; the symmetry expects "
                f"{parameter.shape}"
            )
    if unknown := [name for name in own if name not in sym.parameters]:
        raise InputError(f"model ({type(model).__name__}) has '{unknown[0]}', which the symmetry does not know")


def _found(
    sym: Symmetry, runs: "_Runs", params: Mapping[str, Tensor], generator: torch.Generator
) -> Mapping[str, tuple[FeaturePlacement, ...]]:
    """Where classes are seen in one network near ``params``."""
    kind = type(runs.model).__name__
    theta = general_position(fitted(runs.model, params), sym, generator)
    before = _distinct(runs.features(theta), runs.features(theta, backwards=True))
    for key, tensor in before.items():
        # Minus infinity is how masks are written.
        if bool((torch.isnan(tensor) | (tensor == torch.inf)).any()):
            raise InputError(
                f"call {key[0]} ({runs.names[key]}) of {kind} reads values that are NaN or infinite, near the weights "
                f"given"
            )
    sites = _sites(sym, runs, theta, before, generator)
    placed = [(place, before[site.key]) for site in sites for place in _placements(sym, site, before[site.key].shape)]
    experiment = _Experiment(sym, placed, lambda g: runs.features(sym.act(g, theta), wanted=before))
    places = [place for place, _ in _with_common_signs(_with_own_signs(experiment, generator))]
    return Frozen({name: tuple(place for place in places if place.owner == name) for name in sym.permuting})


@dataclass(frozen=True)
class _Runs:
    """Runs of a model on a few inputs, in float64. ``names``: the functions that read what was seen, kept by runs."""

    model: nn.Module
    inputs: Tensor
    names: dict[Key, str]

    def features(
        self, params: Mapping[str, Tensor], *, wanted: Mapping[Key, Tensor] | None = None, backwards: bool = False
    ) -> dict[Key, Tensor]:
        """What contractions read, all of it or what is ``wanted``: copies, since models write in place.

        ``backwards``: on other inputs, the same ones reversed along every axis, which any model takes.
        """
        own = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        still = {name: tensor.detach().double() for name, tensor in own.items() if tensor.is_floating_point()}
        found: dict[Key, Tensor] = {}

        def see(call: int, argument: int, name: str, tensor: Tensor) -> None:
            key = (call, argument)
            if wanted is None or key in wanted:
                found[key] = tensor.detach().to(device="cpu", dtype=torch.float64, copy=True)
                self.names.setdefault(key, name)

        x = self.inputs.to(next(iter(params.values())).device)
        x = x.flip(*range(x.ndim)) if backwards else x
        x = x.double() if x.is_floating_point() else x
        run(self.model, fitted(self.model, still | dict(params)), x, Watch(see, widen=True))
        if wanted is not None and any(key not in found or found[key].shape != wanted[key].shape for key in wanted):
            raise InputError(f"{type(self.model).__name__} calls other operations, or of other shapes, from run to run")
        return found


def _sites(
    sym: Symmetry, runs: _Runs, theta: Mapping[str, Tensor], before: Mapping[Key, Tensor], generator: torch.Generator
) -> list[Site]:
    """The features that permutations of the network's units re-order, with what stands on their axes."""
    part = sym.restrict(scales=False, signs=False)
    search = Search(sym, tuple(part.random(generator) for _ in range(enough_elements(sym))))
    after = [runs.features(part.act(g, theta), wanted=before) for g in search.elements]
    described = {key: describe(search, tensor, [found[key] for found in after]) for key, tensor in before.items()}
    return [Site(*key, runs.names[key], axes) for key, axes in described.items() if axes is not None]


def _distinct(features: Mapping[Key, Tensor], others: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """The features that depend on the input, which weights do not, and of equal ones the first."""
    kept: dict[Key, Tensor] = {}
    alike: dict[tuple[object, ...], list[Tensor]] = {}
    for key, tensor in features.items():
        if key not in others or others[key].shape != tensor.shape:
            raise InputError(f"call {key[0]} has no counterpart on other inputs: the model's control flow follows them")
        if tensor.ndim == 0 or torch.equal(tensor, others[key]):
            continue
        same = alike.setdefault((tensor.shape, float(tensor.sum())), [])
        if not any(torch.equal(tensor, other) for other in same):
            same.append(tensor)
            kept[key] = tensor
    return kept


def _placements(sym: Symmetry, site: Site, shape: tuple[int, ...]) -> Iterator[FeaturePlacement]:
    """The appearances of classes at a site where everything beside them is samples."""
    parts = structure(site.axes, shape, tuple(sym.classes.values()))
    for number, stretch in enumerate(parts.stretches):
        elsewhere = [name for at, other in enumerate(parts.stretches) if at != number for name in _names(other)]
        if any(_mixes(sym, name) for name in elsewhere):
            continue
        for index, member in enumerate(stretch.appearances):
            chain = {member.name, *ancestors(member.name, sym.classes)}
            here = member.unit >= 0
            beside = [m for m in stretch.appearances if m is not member and bool((m.unit[here] >= 0).any())]
            mixed = any(_mixes(sym, m.name) for m in beside if m.name not in chain)
            twice = any(m.name in chain for m in beside if sum(o.name == m.name for o in (member, *beside)) > 1)
            if sym.classes[member.name].permutes and not mixed and not twice:
                yield FeaturePlacement(member.name, site, number, index)


def _names(stretch: Stretch) -> list[str]:
    return [item.name for item in stretch.appearances]


def _mixes(sym: Symmetry, name: str) -> bool:
    return sym.classes[name].permutes and sym.classes[name].size > 1


def _positions(stretch: Stretch, member: int) -> Tensor:
    """The positions of a class along a stretch, unit by unit."""
    unit = stretch.appearances[member].unit
    order = unit.argsort(stable=True)
    return order[unit[order] >= 0]


@dataclass(frozen=True)
class _Experiment:
    """Placements with their features, and how features look after an element has moved the network."""

    sym: Symmetry
    placed: list[tuple[FeaturePlacement, Tensor]]
    after: Callable[[Element], dict[Key, Tensor]]

    def factors(self, g: Element) -> list[Tensor | None]:
        """By what ``g``, without permutations, multiplies the units of each placement."""
        found = self.after(g)
        return [
            factors_of_units(
                units_by_samples(self.sym, place, tensor), units_by_samples(self.sym, place, found[place.site.key])
            )
            for place, tensor in self.placed
        ]


def _with_own_signs(experiment: _Experiment, generator: torch.Generator) -> _Experiment:
    """The placements that all scales and signs multiply unit by unit, with the families of their own that they show."""
    sym = experiment.sym
    part = sym.restrict(permutations=False)
    if not part.families or not experiment.placed:
        return experiment
    elements = []
    for _ in range(enough_signs(sym)):
        g = part.random(generator)
        own = {key: sign for key, sign in g.signs.items() if key not in common_families(sym)}
        elements.append(sym.element(scales=g.scales, signs=own))
    columns = [experiment.factors(g) for g in elements]
    kept = []
    for number, (place, tensor) in enumerate(experiment.placed):
        factors = [column[number] for column in columns]
        known = [factor for factor in factors if factor is not None]
        shown = shown_families(sym, place.owner, known, elements) if len(known) == len(factors) else None
        if shown is not None:
            kept.append((replace(place, flips=shown), tensor))
    return replace(experiment, placed=kept)


def _with_common_signs(experiment: _Experiment) -> list[tuple[FeaturePlacement, Tensor]]:
    """The placements, with the single signs that multiply all of their units; one experiment for each such sign."""
    for key in common_families(experiment.sym) if experiment.placed else ():
        sign = -torch.ones(experiment.sym.shape(experiment.sym.families[key].owner), dtype=torch.int8)
        kept = []
        factors = experiment.factors(experiment.sym.element(signs={key: sign}))
        for (place, tensor), factor in zip(experiment.placed, factors, strict=True):
            if factor is not None and bool((factor >= 0).all()):
                kept.append((place, tensor))
            elif factor is not None and bool((factor <= 0).all()):
                kept.append((replace(place, flips=place.flips | {key}), tensor))
        experiment = replace(experiment, placed=kept)
    return experiment.placed
