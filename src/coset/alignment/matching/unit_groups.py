"""Matching of units beside rotations: classes that share no parameter are matched one after the other."""

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from coset.alignment.matching.ascent import ascend
from coset.alignment.matching.class_places import ClassLayout, layout_of
from coset.alignment.matching.products import build_terms, ordinary_pair
from coset.alignment.matching.relaxation import ascend_twice
from coset.alignment.matching.rotations import Params
from coset.alignment.matching.scores import Scoring
from coset.alignment.matching.whole_group import Units
from coset.symmetry import Element, Symmetry
from coset.symmetry.incidence import appearances


def unit_matcher(sym: Symmetry, relax: bool, seed: int) -> Units:
    """Matches units beside rotations: by ascent, the first time by the relaxation, too, if ``relax``.

    Of every group of classes that depend on each other (in a transformer, the hidden units of one layer) its own
    parameters alone are held.
    """

    layouts: dict[tuple[str, ...], ClassLayout] = {}

    def units(left: Params, right: Params, names: Collection[str], on: Collection[str], first: bool) -> Element:
        permutations: dict[str, Tensor] = {}
        signs: dict[str, Tensor] = {}
        search = ascend_twice if first and relax else ascend
        for group, parameters in independent(sym, names, on):
            layout = layouts.get(tuple(group)) or layout_of(sym.monomial.restrict(group, scales=False))
            layouts[tuple(group)], part = layout, layout.sym
            own = [{name: network[name] for name in parameters} for network in (left, right)]
            near, far, _ = ordinary_pair(own[0], own[1], "wasserstein")
            scoring = Scoring(layout, build_terms(part, near, far, only=parameters))
            found = search(scoring, part.identity(), torch.Generator().manual_seed(seed)).element
            permutations.update(found.permutations)
            signs.update(found.signs)
        return sym.monomial.element(permutations, signs=signs)

    return units


def independent(sym: Symmetry, names: Collection[str], on: Collection[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Groups of classes that share no parameter of ``on`` with another group, and the parameters of each."""
    home = {name: {name} for name in names}

    def join(members: Collection[str]) -> None:
        whole = set[str]().union(*(home[name] for name in members))
        home.update(dict.fromkeys(whole, whole))

    carried: dict[str, set[str]] = {}
    for parameter in on:
        carried[parameter] = {item.name for _, item in appearances(sym, parameter)} & home.keys()
        join(carried[parameter])
    for name in home:
        item = sym.classes[name]
        join([name, *(other for other in (item.parent, item.follows) if other in home)])
    for group in {id(group): group for group in home.values()}.values():
        yield (
            [name for name in names if name in group],
            [parameter for parameter in on if not carried[parameter].isdisjoint(group)],
        )
