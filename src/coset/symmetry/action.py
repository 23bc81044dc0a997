"""The action of an element on parameters: a gather and a multiply per axis."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from coset._values import memory_of, transformed_by_functorch
from coset.errors import InputError
from coset.symmetry.axes import Charge
from coset.symmetry.element import Element
from coset.symmetry.gather import Pass, apply, is_plain
from coset.symmetry.group import check, full_map, in_order
from coset.symmetry.mixing import mix
from coset.symmetry.structure import Stretch
from coset.symmetry.turning import is_translation, turned

if TYPE_CHECKING:
    from coset.symmetry.symmetry import Symmetry


@runtime_checkable
class Transformable(Protocol):
    """A value other than a dict of parameters on which elements act, such as a distribution."""

    def transformed(self, action: "Action", *, partial: bool) -> Self:
        """The value carried along by ``action``; ``partial`` as in ``Symmetry.act``."""
        ...


@dataclass(frozen=True)
class Move:
    """What happens along a stretch: new[i] = factor[i]·old[index[i]]; None stands for nothing to do. All (n,).

    ``magnitude`` is |factor|: standard deviations know no signs.
    """

    index: Tensor | None
    factor: Tensor | None
    magnitude: Tensor | None


class Action:
    """An element, ready to act: index and factor of every stretch are computed once and shared by all parameters."""

    def __init__(self, sym: "Symmetry", g: Element, *, whole: bool = True) -> None:
        """``whole``: ``g`` must be a member of the group; otherwise the parts it lacks are neutral."""
        if whole:
            check(sym, g)
        self.sym = sym
        self.g = g
        self._maps: dict[str, Tensor | None] = {}
        self._moves: dict[int, Move] = {}
        # Where derivatives or transforms follow, values must not decide what is computed.
        self._idle = {key for key, d in g.scales.items() if is_plain(d) and bool((d == 1).all())}
        self._unflipped = {key for key, s in g.signs.items() if is_plain(s) and bool((s == 1).all())}

    def __call__(self, params: Mapping[str, Tensor], *, partial: bool = False) -> dict[str, Tensor]:
        """g·θ for a dict of parameters."""
        # A mapping may make its tensors anew each time; from here on they are kept.
        unsaved = {name: tensor for name, tensor in params.items() if name in self.sym.unsaved}
        params = filled(self.sym, {name: tensor for name, tensor in params.items() if name not in unsaved})
        check_names(self.sym, params, partial)
        moved: dict[str, Tensor] = {}
        seen: dict[tuple[object, ...], Tensor] = {}
        corrections: dict[str, Tensor] = {}
        for name, tensor in params.items():
            parameter = self.sym.parameters[name]
            check_tensor(name, tensor, parameter.shape)
            if parameter.shift:
                moved[name], correction = self._shifted(name, tensor, parameter.shift, parameter.gain in params)
                if parameter.gain is not None and parameter.gain in params:
                    corrections[parameter.gain] = correction
                continue
            # Tied weights come in as one piece of memory under two names and leave as one tensor.
            tie = (*memory_of(tensor), id(self.sym.structures.get(name)))
            if tie not in seen:
                seen[tie] = self._moved(name, tensor)
            moved[name] = seen[tie]
        for name, correction in corrections.items():
            moved[name] = moved[name] * correction.to(moved[name].dtype)
        seen.clear()
        mix(self.sym, self.g.matrices, moved)
        return (turned(self.sym, self.g.turns, moved) if self.g.turns else moved) | unsaved

    def leaves(self, name: str) -> bool:
        """Whether a parameter stays as it is, apart from matrices and turns."""
        structure = self.sym.structures.get(name)
        moves = [self.move(stretch) for stretch in structure.stretches] if structure else []
        return all(move.index is None and move.factor is None for move in moves)

    def spread(self, deviations: Mapping[str, Tensor], means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """|g|·s for standard deviations s around ``means``: signs and shifts do not touch a deviation."""
        self.check_monomial()
        check_names(self.sym, deviations, partial=True)
        spread = {}
        for name, tensor in deviations.items():
            check_tensor(name, tensor, self.sym.parameters[name].shape)
            spread[name] = self._moved(name, tensor, magnitude=True)
        for name, tensor in means.items():
            parameter = self.sym.parameters[name]
            if parameter.shift and parameter.gain is not None and parameter.gain in spread:
                _, correction = self._shifted(name, tensor, parameter.shift, parameter.gain in means)
                spread[parameter.gain] = spread[parameter.gain] * correction.to(spread[parameter.gain].dtype)
        return spread

    def check_monomial(self) -> None:
        """Raise if the element mixes units, or adds weights to biases: most families of distributions are not closed
        under that. Half-turns only shift and flip.
        """
        if self.g.matrices:
            raise InputError(
                f"the element mixes the units of '{next(iter(self.g.matrices))}', which takes independent weights to "
                f"dependent ones; act with an element of sym.monomial, or on points, samples or a Gaussian"
            )
        if not is_translation(self.sym, self.g):
            raise InputError(
                "the element reflects units, by which biases of readers take up weights: independent weights become "
                "dependent; act with an element of sym.monomial, or on points or samples"
            )

    def _moved(self, name: str, tensor: Tensor, *, magnitude: bool = False) -> Tensor:
        structure = self.sym.structures.get(name)
        moves = [(stretch, self.move(stretch)) for stretch in structure.stretches] if structure else []
        steps = [(stretch, move.index, move.magnitude if magnitude else move.factor) for stretch, move in moves]
        steps = [step for step in steps if step[1] is not None or step[2] is not None]
        if structure is None or not steps:
            return tensor.clone()
        if not (tensor.is_floating_point() or tensor.is_complex()) and any(step[2] is not None for step in steps):
            raise InputError(f"'{name}' is of type {tensor.dtype} and cannot be scaled")
        lead = tensor.shape[: tensor.ndim - len(self.sym.parameters[name].shape)]
        whole = tensor.reshape(*lead, *structure.sizes)
        passes = [
            Pass(tuple(len(lead) + dim for dim in stretch.dims), index, factor) for stretch, index, factor in steps
        ]
        return apply(whole, passes).reshape(tensor.shape)

    def _shifted(self, name: str, tensor: Tensor, shift: float, has_gain: bool) -> tuple[Tensor, Tensor]:
        """c²(var + ε) − ε, or c²·var where that is negative, and the factor by which the gain makes up for that.

        Without a gain to make up for it the negative value stays: var + ε is positive all the same.
        """
        bare = self._moved(name, tensor)
        offset = self._moved(name, torch.full_like(tensor, shift))
        exact = bare + (offset - shift)
        outside = (exact < 0) & (bare >= 0) if has_gain else torch.zeros_like(bare, dtype=torch.bool)
        correction = torch.where(outside, torch.sqrt((bare + shift) / (bare + offset)), torch.ones_like(bare))
        return torch.where(outside, bare, exact), correction

    def _map(self, name: str) -> Tensor | None:
        """Where each unit of a class comes from; None where all stay where they are."""
        if name not in self._maps:
            stay = in_order(self.sym, self.g, name)
            self._maps[name] = None if stay else full_map(self.sym, self.g, name)
        return self._maps[name]

    def move(self, stretch: Stretch) -> Move:
        """Index and factor along a stretch; computed once."""
        key = id(stretch)
        if key not in self._moves:
            self._moves[key] = self._plain(stretch) if stretch.plain else self._joint(stretch)
        return self._moves[key]

    def _plain(self, stretch: Stretch) -> Move:
        (one,) = stretch.appearances
        index = self._map(one.name)
        factor, magnitude = self._factor(one.name, one.charges, index)
        return Move(index, factor, magnitude)

    def _joint(self, stretch: Stretch) -> Move:
        moves = any(self._map(item.name) is not None for item in stretch.appearances)
        index = stretch.base
        factor: Tensor | None = None
        magnitude: Tensor | None = None
        for item in stretch.appearances:
            came, present = self._map(item.name), item.present
            source = item.known if came is None else torch.where(present, came.to(present.device)[item.unit], 0)
            if moves:
                index = index + item.stride * (source % self.sym.classes[item.name].size) * present
            parts = self._factor(item.name, item.charges, source)
            factor = _times(factor, parts[0], present)
            magnitude = _times(magnitude, parts[1], present)
        return Move(_unless_in_order(index) if moves else None, factor, magnitude)

    def _factor(
        self, name: str, charges: tuple[Charge, ...], source: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """∏ |d|^power·sign^parity at the old units ``source`` (None: all in order); with and without signs. None
        where it is 1.
        """
        signed: Tensor | None = None
        magnitude: Tensor | None = None
        for charge in charges:
            key = charge.key(name)
            if charge.scale and key in self.g.scales and key not in self._idle:
                part = _picked(self.g.scales[key], source) ** charge.scale
                magnitude = part if magnitude is None else magnitude * part
                signed = part if signed is None else signed * part
            if charge.sign and key in self.g.signs and key not in self._unflipped:
                flips = _picked(self.g.signs[key], source)
                signed = flips.to(torch.float64) if signed is None else signed * flips
        return signed, magnitude


def _picked(values: Tensor, source: Tensor | None) -> Tensor:
    flat = values.reshape(-1)
    return flat if source is None else flat[source.to(flat.device)]


def _times(total: Tensor | None, part: Tensor | None, present: Tensor) -> Tensor | None:
    if part is None:
        return total
    part = torch.where(present.to(part.device), part, torch.ones_like(part))
    return part if total is None else total * part


def _unless_in_order(index: Tensor) -> Tensor | None:
    if transformed_by_functorch(index):
        return index
    return None if torch.equal(index, torch.arange(len(index), device=index.device)) else index


def filled(sym: "Symmetry", params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters with further names of tied tensors that stand in for one that is given: ``named_parameters``
    names every tensor once.
    """
    whole = dict(params)
    for names in sym.ties:
        given = next((params[name] for name in names if name in params), None)
        if given is not None:
            whole |= {name: given for name in names if name not in params}
    return whole


def check_names(sym: "Symmetry", params: Mapping[str, Tensor], partial: bool) -> None:
    """Raise on names this symmetry does not know and, unless ``partial``, on parameters that move and are absent."""
    for name in params:
        if name not in sym.parameters:
            raise InputError(f"'{name}' is not a parameter of this symmetry, which knows {_some(sym.parameters)}")
    if not partial:
        for name in sym.structures:
            if name not in params:
                raise InputError(
                    f"'{name}' moves under this symmetry but is not among the parameters given ({_some(params)}); "
                    f"leaving it behind would change the function (partial=True acts on what is there)"
                )


def check_tensor(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise unless ``tensor`` has the parameter's shape, possibly behind leading sample axes."""
    if not isinstance(tensor, Tensor) or tuple(tensor.shape[max(0, tensor.ndim - len(shape)) :]) != shape:
        found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InputError(f"'{name}' has shape {found}; expected {shape}, or that behind leading sample axes")


def _some(names: Mapping[str, Any]) -> str:
    shown = ", ".join(list(names)[:4])
    return f"{shown}, … ({len(names)} in all)" if len(names) > 4 else shown or "none"


def act(sym: "Symmetry", g: Element, params: Any, *, partial: bool = False) -> Any:
    """g·θ for a dict of parameters, or for any value that knows how to be carried along."""
    action = Action(sym, g)
    if isinstance(params, Mapping):
        return action(params, partial=partial)
    if isinstance(params, Transformable):
        return params.transformed(action, partial=partial)
    raise InputError(f"an element acts on a dict of parameters or a distribution, found {type(params).__name__}")


def moving_together(sym: "Symmetry", params: Mapping[str, Tensor]) -> list[list[str]]:
    """Names whose tensors have to move in one step: tied ones, and a variance with its gain."""
    home: dict[str, list[str]] = {}
    tied: dict[int, list[str]] = {}
    known = {name: tensor for name, tensor in params.items() if name in sym.parameters}
    for name, tensor in known.items():
        home[name] = tied.setdefault(id(params.get(sym.parameters[name].tied or name, tensor)), [])
        home[name].append(name)
    for name in known:
        gain = sym.parameters[name].gain
        if gain is not None and home[gain] is not home[name]:
            home[name] += home[gain]
            for other in home[gain]:
                home[other] = home[name]
    return list({id(names): names for names in home.values()}.values())


def move(sym: "Symmetry", g: Element, params: dict[str, Tensor], together: list[list[str]] | None = None) -> set[str]:
    """θ ← g·θ in place, a few parameters at a time (``moving_together``), so that there are never two of all.

    Returns the names of those that were moved; tensors that stay as they are stay the same tensors.
    """
    order, moved = list(params), set[str]()
    action = Action(sym, replace(g, matrices={}))
    for names in moving_together(sym, params) if together is None else together:
        if not g.turns and all(action.leaves(name) for name in names):
            continue
        params |= action({name: params.pop(name) for name in names}, partial=True)
        moved.update(names)
    for name in order:
        params[name] = params.pop(name)
    mix(sym, g.matrices, params)
    return moved.union(*(sym.continuous[name].places for name in g.matrices)) & params.keys()


class Acted(Mapping[str, Tensor]):
    """g·θ, each parameter made when it is asked for: beside θ itself it takes no memory. g must not turn units.

    Of the tensors that g leaves as they are, those of θ are given.
    """

    def __init__(self, sym: "Symmetry", g: Element, params: Mapping[str, Tensor]) -> None:
        # A mapping may make its tensors anew each time; from here on they are kept.
        self._sym, self._params, self._matrices = sym, dict(params), g.matrices
        self._action = Action(sym, replace(g, matrices={}))
        self._home = {name: names for names in moving_together(sym, self._params) for name in names}
        mixed = [sym.continuous[name] for name in g.matrices]
        self._mixed = {name for mixing in mixed for name in mixing.places}
        gains = [gain for mixing in mixed for gain in mixing.gains]
        self._gains = self._action({gain: self._params[gain] for gain in gains}, partial=True)

    def __getitem__(self, name: str) -> Tensor:
        names = self._home.get(name, (name,))
        if name not in self._sym.parameters or all(self._action.leaves(one) for one in names):
            tensor = self._params[name]
            if name not in self._mixed:
                return tensor
            moved = {name: tensor}
        else:
            moved = self._action({one: self._params[one] for one in names}, partial=True)
        moved = {**self._gains, name: moved[name]}
        mix(self._sym, self._matrices, moved)
        return moved[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)
