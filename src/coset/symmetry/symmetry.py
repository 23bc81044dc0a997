"""``Symmetry``: what is known of an architecture's symmetry group, as an immutable value."""

import hashlib
import json
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn

from coset._checks import check_count
from coset._files.atomic import write_text
from coset._values import Frozen
from coset.errors import InputError
from coset.symmetry import _declare as declare
from coset.symmetry import _table as table
from coset.symmetry import action, group, hadamard, storage, translations
from coset.symmetry._grammar import is_name
from coset.symmetry._rank import scale_rank
from coset.symmetry.action import Transformable
from coset.symmetry.axes import Node, size_of, turns_of, units_of
from coset.symmetry.element import Element
from coset.symmetry.graph import Graph
from coset.symmetry.incidence import appearances
from coset.symmetry.intertwiners._intertwiner import Diagonal, Intertwiner
from coset.symmetry.mixing import Mixing
from coset.symmetry.pairs import couples, paired_structure
from coset.symmetry.parameters import Family, Parameter
from coset.symmetry.structure import Structure, UnitClass, build_structure, shape_of
from coset.symmetry.translations import Translation
from coset.symmetry.turning import Turn, validate_turn

_T = TypeVar("_T", bound=Transformable)


@dataclass(frozen=True, eq=False, repr=False)
class Symmetry:
    """The symmetry group of an architecture and its action on weights: f(g·θ, x) = f(θ, x) for all x.

    ``classes``: name → UnitClass, outer classes before the ones nested in them. ``families``: key → Family.
    ``parameters``: name → Parameter, for every parameter and buffer of the model, fixed ones included. ``notes``: what
    is known beyond the group; ``pinned``: operations through which nothing was assumed to pass; ``unverified``:
    classes, or blocks of them, whose moves no output noticed, so that verification says nothing of them. ``unsaved``:
    buffers that are no part of a state dict and pass through an action unchanged. ``graph``: the network as discovery
    saw it; empty where a symmetry was declared. ``continuous``: class → Mixing, for classes that matrices may mix.
    ``turns``: key → Turn, half-turns and reflections of units.
    ``translations``: directions in which weights may move apart from the group, in the order in which they are removed.
    """

    classes: Mapping[str, UnitClass]
    families: Mapping[str, Family]
    parameters: Mapping[str, Parameter]
    notes: tuple[str, ...] = field(default=())
    pinned: tuple[str, ...] = field(default=())
    unverified: tuple[str, ...] = field(default=())
    unsaved: tuple[str, ...] = field(default=())
    graph: Graph = field(default_factory=Graph)
    continuous: Mapping[str, Mixing] = field(default_factory=dict)
    turns: Mapping[str, Turn] = field(default_factory=dict)
    translations: tuple[Translation, ...] = field(default=())

    def __post_init__(self) -> None:
        for part in ("classes", "families", "parameters", "continuous", "turns"):
            object.__setattr__(self, part, Frozen(getattr(self, part)))
        _validate(self)

    @classmethod
    def from_axes(
        cls,
        axes: Mapping[str, "str | declare.Variance"],
        like: nn.Module | Mapping[str, Tensor],
        *,
        scales: Diagonal | Intertwiner | Mapping[str, Diagonal | Intertwiner] = "one",
        sizes: Mapping[str, int] | None = None,
        inside: Mapping[str, str] | None = None,
        ordered: Collection[str] = (),
        follows: Mapping[str, str] | None = None,
    ) -> "Symmetry":
        """Declare a symmetry by hand: for each parameter, its axes in the language of ``_grammar``.

        ``like``: a model or its state dict, for names, shapes and tied weights; parameters not in ``axes`` are fixed.
        ``scales``: which diagonal each family has ("one", "sign", "positive", "nonzero" or an ``Intertwiner``), one for
        all classes or by name ("h1", "c1:pre"). ``sizes``: of classes that no axis determines, such as the number of
        heads. ``inside``: nested class → class around it, where no brackets say so. ``ordered``: classes that do not
        permute. ``follows``: nested class → class that is not, as whose units it moves in every block.
        """
        parts = declare.parts_from_axes(
            axes, like, scales=scales, sizes=sizes or {}, inside=inside or {}, ordered=ordered, follows=follows or {}
        )
        return cls(*parts)

    # The group ------------------------------------------------------------------------------------------------------

    def identity(self) -> Element:
        """The neutral element."""
        return group.element(self)

    def element(
        self,
        permutations: Mapping[str, Tensor] | None = None,
        scales: Mapping[str, Tensor] | None = None,
        signs: Mapping[str, Tensor] | None = None,
        matrices: Mapping[str, Tensor] | None = None,
        turns: Mapping[str, Tensor] | None = None,
    ) -> Element:
        """An element from its parts, checked; what is left out is neutral."""
        return group.element(self, permutations, scales, signs, matrices, turns)

    def random(self, generator: torch.Generator, *, spread: float = 0.5, turns: int = 2) -> Element:
        """Uniform permutations and signs, log-normal scales exp(spread·N(0, 1)), matrices of Haar's measure on O(n) and
        U(1), O·diag(exp(spread·N(0, 1)))·O on GL(n), numbers of half-turns uniform in −turns…turns, reflections of half
        of the units; restrict first to leave parts out.
        """
        check_count("turns", turns, 0)
        return group.random(self, generator, spread, turns)

    def hadamard(self, generator: torch.Generator) -> Element:
        """Randomised Hadamard rotations of every class that turns (O(n), O(n − 1)): they spread outliers of weights and
        activations over all units, in the frame in which gains are folded. An InputError where no class turns.
        """
        return hadamard.hadamard(self, generator)

    def compose(self, g: Element, h: Element) -> Element:
        """The product gh: act(compose(g, h), θ) = act(g, act(h, θ))."""
        return group.compose(self, g, h)

    def inverse(self, g: Element) -> Element:
        """The element that undoes g."""
        return group.inverse(self, g)

    def check(self, g: Element) -> None:
        """Raise an InputError that names the part of ``g`` by which it is not a member of this group."""
        group.check(self, g)

    @overload
    def act(self, g: Element, params: Mapping[str, Tensor], *, partial: bool = False) -> dict[str, Tensor]: ...
    @overload
    def act(self, g: Element, params: _T, *, partial: bool = False) -> _T: ...
    def act(self, g: Element, params: Any, *, partial: bool = False) -> Any:
        """g·θ: new parameters of the same function. Pure, differentiable in θ and in the scales of ``g``.

        ``params``: a dict as of ``state_dict()``, its tensors possibly with leading sample axes; or a distribution.
        Every parameter that moves must be there unless ``partial``; unknown names are an error.
        """
        return action.act(self, g, params, partial=partial)

    def restrict(
        self,
        names: Collection[str] | None = None,
        *,
        permutations: bool = True,
        scales: bool = True,
        signs: bool = True,
        continuous: bool = True,
    ) -> "Symmetry":
        """The subgroup that moves only the classes in ``names`` (default: all), and of these only the parts wanted.

        Matrices permute, scale and flip, and turns carry what is flipped: where one of these is left out, they are;
        ``continuous=False`` leaves out both.
        """
        return group.restrict(self, names, permutations=permutations, scales=scales, signs=signs, continuous=continuous)

    @cached_property
    def monomial(self) -> "Symmetry":
        """Permutations, scales and signs alone."""
        return self.restrict(continuous=False) if self.continuous or self.turns else self

    # Its size -------------------------------------------------------------------------------------------------------

    def carriers(self, name: str) -> tuple[str, ...]:
        """The parameters that carry a class."""
        return tuple(
            key
            for key, parameter in self.parameters.items()
            if any(
                name in (unit.name, self.classes[unit.name].follows)
                for node in parameter.axes
                for unit in units_of(node)
            )
        )

    @cached_property
    def permuting(self) -> tuple[str, ...]:
        """Classes whose units permute."""
        return tuple(name for name, item in self.classes.items() if item.permutes)

    @cached_property
    def scaling(self) -> tuple[str, ...]:
        """Families with free positive scales."""
        return tuple(key for key, family in self.families.items() if family.scales)

    @cached_property
    def flipping(self) -> tuple[str, ...]:
        """Families with free signs."""
        return tuple(key for key, family in self.families.items() if family.signs)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a class's permutation and scales: (sizes of the classes around it; its size)."""
        return self._shapes[name]

    @cached_property
    def _shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: shape_of(name, self.classes) for name in self.classes}

    @property
    def log_permutations(self) -> float:
        """Logarithm of the number of permutations: Σ blocks·log(size!)."""
        shapes = [self.shape(name) for name in self.permuting]
        return sum(math.prod(shape[:-1]) * math.lgamma(shape[-1] + 1) for shape in shapes)

    @property
    def log_order(self) -> float:
        """Logarithm of the order of the finite part: permutations and signs. Turns are not counted."""
        flips = sum(math.prod(self.shape(self.families[key].owner)) for key in self.flipping)
        return self.log_permutations + flips * math.log(2)

    @cached_property
    def scale_dimension(self) -> int:
        """The dimension of the continuous part: the independent directions of the free positive scales."""
        return scale_rank(self)

    @property
    def continuous_dimension(self) -> int:
        """The dimension of the connected group: of scales, and of matrices beyond those that scale single units."""
        own = 0
        for name, mixing in self.continuous.items():
            *outer, n = self.shape(name)
            own += math.prod(outer) * (mixing.dimension(n) - (n if mixing.kind == "general" else 0))
        return self.scale_dimension + own

    # Translations ---------------------------------------------------------------------------------------------------

    @property
    def translation_dimension(self) -> int:
        """The number of independent directions of all translations, which are no part of the group."""
        return translations.total_dimension(self.translations)

    def translate(self, values: Mapping[str, Tensor], params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """θ + δ(θ, z): new parameters of the same function; ``values``: the free numbers z of translations, by name."""
        return translations.translated(self.translations, params, values)

    def random_translation(self, params: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Normal free numbers for all translations, as large as the parameters that they are added to."""
        return translations.random_values(self.translations, params, generator)

    def without_translations(
        self, params: Mapping[str, Tensor], *, like: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """The one network of the same function among all its translates whose free biases and constants are 0.

        Biases of keys and values, offsets of norms and constants that nothing sees are 0 then, or, with ``like``, what
        they are in another network. Offsets that a reader without a bias needs become the gain of their norm.
        """
        return translations.normalized(self.translations, params, like)

    def annotated(self, **remarks: Any) -> "Symmetry":
        """The same symmetry with other ``notes``, ``pinned``, ``unverified``, ``unsaved`` or ``graph``.

        Nothing about the group is computed again.
        """
        assert remarks.keys() <= {"notes", "pinned", "unverified", "unsaved", "graph"}, remarks
        copy = object.__new__(Symmetry)
        copy.__dict__.update(self.__dict__ | remarks)
        return copy

    def subgroup(
        self,
        classes: Mapping[str, UnitClass],
        families: Mapping[str, Family],
        continuous: Mapping[str, Mixing],
        turns: Mapping[str, Turn],
        translations: tuple[Translation, ...],
    ) -> "Symmetry":
        """The same with parts left out, for ``restrict``: parameters are taken apart alike; nothing is checked again.

        ``classes``: the same, of which some no longer permute.
        """
        copy = object.__new__(Symmetry)
        copy.__dict__.update({part.name: getattr(self, part.name) for part in fields(self)})
        # These do not depend on what is free.
        copy.__dict__.update({part: getattr(self, part) for part in ("structures", "ties", "_shapes")})
        own = {"classes": classes, "families": families, "continuous": continuous, "turns": turns}
        copy.__dict__.update({part: Frozen(value) for part, value in own.items()}, translations=translations)
        return copy

    # As a value -----------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The symmetry as readable JSON; ``from_json`` gives it back exactly."""
        return storage.to_json(self)

    @staticmethod
    def from_json(text: str, where: str = "symmetry") -> "Symmetry":
        """Read what ``to_json`` wrote."""
        return Symmetry(**storage.parts_from_json(text, where))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the symmetry to a JSON file, atomically."""
        write_text(path, self.to_json())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Symmetry":
        """Read a symmetry written by ``save``."""
        return storage.load(path, Symmetry.from_json)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON without notes and translations: equal groups and actions have equal ones."""
        content = {**json.loads(self.to_json()), "notes": [], "pinned": []}
        for part in ("unverified", "unsaved", "graph", "translations"):
            content.pop(part, None)
        for row in content["parameters"].values():
            for part in ("why", "buffer", "tied"):
                row.pop(part, None)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symmetry) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def explain(self, name: str) -> str:
        """Say in words what stands on each axis of a parameter, and why."""
        return table.explain(self, name)

    def __str__(self) -> str:
        return table.render(self)

    def __repr__(self) -> str:
        return (
            f"Symmetry({len(self.classes)} classes, {len(self.parameters)} parameters, "
            f"log|G| = {self.log_order:.1f}, {self.scale_dimension} scales)"
        )

    # What the action needs ------------------------------------------------------------------------------------------

    @cached_property
    def structures(self) -> Mapping[str, Structure]:
        """How each moving parameter is taken apart for the action; computed once."""
        known: dict[tuple[Node, ...], Structure] = {}
        structures = {}
        for name, parameter in self.parameters.items():
            if parameter.moves:
                if parameter.axes not in known:
                    known[parameter.axes] = build_structure(parameter.axes, self.classes, name)
                structures[name] = known[parameter.axes]
        return structures

    @cached_property
    def ties(self) -> tuple[tuple[str, ...], ...]:
        """The names of every tensor that has several, the first one first."""
        groups: dict[str, list[str]] = {}
        for name, parameter in self.parameters.items():
            if parameter.tied is not None:
                groups.setdefault(parameter.tied, [parameter.tied]).append(name)
        return tuple(map(tuple, groups.values()))

    @cached_property
    def paired(self) -> Mapping[tuple[str, str], Structure]:
        """The same for every class of pairs that turn, with both coordinates of these: by class and parameter."""
        return {
            (name, key): paired_structure(self.parameters[key].axes, name, self.classes, key)
            for name, mixing in self.continuous.items()
            if mixing.kind == "rotary"
            for key in mixing.places
        }


def _validate(sym: Symmetry) -> None:
    """Refuse contradictions, naming the class or parameter."""
    earlier: set[str] = set()
    for name, item in sym.classes.items():
        if item.name != name or item.size < 1:
            raise InputError(f"class '{name}' is called '{item.name}' and has size {item.size}; expected a size ≥ 1")
        if not is_name(name):
            raise InputError(
                f"'{name}' cannot name a class; names are letters, digits, '_' and '.', not led by a digit"
            )
        if item.parent is not None and item.parent not in earlier:
            raise InputError(f"class '{name}' is nested in '{item.parent}', which does not stand before it")
        if item.follows is not None:
            _validate_follower(sym, item)
        earlier.add(name)
    for key, family in sym.families.items():
        if family.owner not in sym.classes or key != family.key or (family.name and not is_name(family.name)):
            raise InputError(
                f"family '{key}' has no known class (owner '{family.owner}') or an odd name '{family.name}'"
            )
    sizes = {name: item.size for name, item in sym.classes.items()}
    for name, parameter in sym.parameters.items():
        # A single number has one axis of size 1 if it carries a scale, which is the network's.
        sizes_wanted = parameter.shape or (1,) * len(parameter.axes[:1])
        if len(parameter.axes) != len(sizes_wanted):
            raise InputError(f"{name}: {len(parameter.axes)} axes described for shape {parameter.shape}")
        for axis, node in enumerate(parameter.axes):
            for unit in units_of(node):
                if unit.name not in sym.classes:
                    raise InputError(f"{name}: axis {axis} carries the unknown class '{unit.name}'")
                if unit.charges and sym.classes[unit.name].follows is not None:
                    raise InputError(
                        f"{name}: axis {axis} carries scales of '{unit.name}', which follows another class"
                    )
                families = [charge.family for charge in unit.charges]
                if families != sorted(set(families)) or any(charge.sign not in (0, 1) for charge in unit.charges):
                    raise InputError(f"{name}: axis {axis} has charges that are not sorted, single and of sign 0 or 1")
            if odd := [part for part in turns_of(node) if len({size_of(s, sizes) for s in part.segments}) > 1]:
                found = ", ".join(str(size_of(segment, sizes)) for segment in odd[0].segments)
                raise InputError(f"{name}: axis {axis} has segments of {found} positions in turns; expected one size")
            if size_of(node, sizes) != sizes_wanted[axis]:
                raise InputError(
                    f"{name}: axis {axis} has {sizes_wanted[axis]} positions, its description {size_of(node, sizes)}"
                )
        if parameter.tied is not None and parameter.tied not in sym.parameters:
            raise InputError(f"{name}: it is tied to '{parameter.tied}', which is no parameter")
        if parameter.gain is not None and _classes_along(sym, parameter.gain) != _classes_along(sym, name):
            raise InputError(f"{name}: its gain '{parameter.gain}' does not carry the same classes")
    _ = sym.structures
    for name, mixing in sym.continuous.items():
        if name not in sym.classes:
            raise InputError(f"'{name}' mixes, but is no class; the classes are: {', '.join(sym.classes)}")
        if unknown := [key for key in (*mixing.places, *mixing.gains) if key not in sym.parameters]:
            raise InputError(f"what mixes '{name}' names '{unknown[0]}', which is no parameter")
    for name, mixing in sym.continuous.items():
        _validate_places(sym, name, mixing)
    for key, turn in sym.turns.items():
        validate_turn(sym, key, turn)
    for translation in sym.translations:
        if missing := [key for key in translation.needed if key not in sym.parameters]:
            raise InputError(f"the translation '{translation.name}' names '{missing[0]}', which is no parameter")


def _validate_places(sym: Symmetry, name: str, mixing: Mixing) -> None:
    for parameter, places in mixing.places.items():
        carried = sum(1 for _ in appearances(sym, parameter, name))
        if mixing.kind == "rotary":
            carried = len(couples(sym.paired[name, parameter], name) or ())
        if carried != len(places):
            raise InputError(f"'{parameter}' carries '{name}' {carried} times; it is mixed in {len(places)} places")


def _validate_follower(sym: Symmetry, item: UnitClass) -> None:
    other = sym.classes.get(item.follows or "")
    if other is None or other.parent is not None or other.size != item.size or other.follows is not None:
        found = "which is unknown" if other is None else f"of size {other.size}, nested in '{other.parent}'"
        raise InputError(
            f"class '{item.name}' follows '{item.follows}', {found}; expected a class of size {item.size} that is not "
            f"nested and follows no other"
        )
    if item.parent is None or item.permutes:
        raise InputError(f"class '{item.name}' follows '{item.follows}'; expected it to be nested, and not to permute")
    if any(family.owner == item.name for family in sym.families.values()):
        raise InputError(f"class '{item.name}' follows '{item.follows}' and has scales or signs of its own")


def _classes_along(sym: Symmetry, name: str) -> list[list[str]] | None:
    parameter = sym.parameters.get(name)
    return None if parameter is None else [[unit.name for unit in units_of(node)] for node in parameter.axes]
