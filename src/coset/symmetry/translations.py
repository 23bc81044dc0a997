"""Directions of weight space along which the function stays, whatever the weights are: θ → θ + δ(θ, z).

A bias in front of another linear map, a bias of keys, offsets of norms, multiples of 1 that a LayerNorm takes away.
Free numbers z are added to one parameter, the pivot, and what they change is taken back by others: b₁ + z, b₂ − W₂z.
No group element is needed to remove them: the pivot is brought to 0.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
from torch import Tensor

from coset.errors import InputError

KINDS = ("reader", "constant", "shift")
"""In the order in which they are removed: a later kind leaves what an earlier one has removed."""

Params = Mapping[str, Tensor]


@dataclass(frozen=True)
class Take:
    """x ↦ (x[i₀], x[i₁], …), and 0 where a number is −1.

    ``runs``: the numbers as (first, step, count) …, all of which follow one another ``times`` times.
    """

    runs: tuple[tuple[int, int, int], ...]
    times: int = 1

    @classmethod
    def of(cls, index: Tensor) -> "Take":
        """The numbers of a vector in short."""
        n = len(index)
        period = next(p for p in range(1, n + 1) if n % p == 0 and bool((index.view(-1, p) == index[:p]).all()))
        row, runs, at = index[:period].tolist(), [], 0
        steps = [b - a for a, b in pairwise(row)]
        while at < period:
            step = steps[at] if at < len(steps) else 0
            same = next((i for i in range(at, len(steps)) if steps[i] != step), len(steps))
            runs.append((row[at], step, same - at + 1))
            at = same + 1
        return cls(tuple(runs), n // period)

    @property
    def index(self) -> Tensor:
        """The numbers, one after the other."""
        parts = [first + step * torch.arange(count) for first, step, count in self.runs]
        return torch.cat(parts).repeat(self.times)

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return self.times * sum(count for _, _, count in self.runs)

    def __call__(self, x: Tensor, params: Params) -> Tensor:
        index = self.index.to(x.device)
        return torch.where(index < 0, torch.zeros_like(x[:1]), x[index.clamp(min=0)])


@dataclass(frozen=True)
class Through:
    """x ↦ W·x for what is the same at all positions; ``axis``: along which W is read; (out, in, …) are summed."""

    parameter: str
    axis: int = 1
    groups: int = 1

    def __call__(self, x: Tensor, params: Params) -> Tensor:
        weight = _of(params, self.parameter).to(x)
        whole = weight.flatten(2).sum(-1) if weight.ndim > 2 else weight
        if self.axis == 0:
            return whole.T @ x
        blocks = whole.reshape(self.groups, -1, whole.shape[1])
        return (blocks @ x.reshape(self.groups, -1, 1)).reshape(-1)


@dataclass(frozen=True)
class Level:
    """x ↦ ⟨1/γ, β⟩^power·x: what a reader that is 1/γ sees behind a LayerNorm. Without a gain, γ = 1."""

    gain: str | None
    offset: str
    power: int = 1

    def factor(self, params: Params) -> Tensor:
        """⟨1/γ, β⟩^power."""
        offset = _of(params, self.offset)
        level = (offset if self.gain is None else offset / _gain(params, self.gain)).sum()
        if self.power < 0 and float(level) == 0:
            raise InputError(f"'{self.offset}' is orthogonal to 1/gain: no translation of its readers takes it up")
        result: Tensor = level**self.power
        return result

    def __call__(self, x: Tensor, params: Params) -> Tensor:
        return x * self.factor(params).to(x)


@dataclass(frozen=True)
class Divided:
    """x ↦ x/γ, entry by entry."""

    gain: str

    def __call__(self, x: Tensor, params: Params) -> Tensor:
        return x / _gain(params, self.gain).to(x)


Link = Take | Through | Level | Divided


@dataclass(frozen=True)
class Move:
    """How a parameter (under each of its names) follows the free numbers: + factor·links(z).

    ``over``: axes along which the change is the same, but for a ``gain`` along the last of them that divides it; along
    the first of them it is the same within each of ``blocks`` equal parts, as a group norm has them.
    """

    parameters: tuple[str, ...]
    factor: float = 1.0
    links: tuple[Link, ...] = ()
    over: tuple[int, ...] = ()
    gain: str | None = None
    blocks: int = 1

    def free_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the numbers that are added to a parameter of a shape, before they are spread over axes."""
        first = self.over[0] if self.over else None
        return tuple(self.blocks if axis == first else 1 if axis in self.over else n for axis, n in enumerate(shape))

    def change(self, params: Params, z: Tensor) -> Tensor:
        """What is added to the parameter, up to broadcasting."""
        tensor = _of(params, self.parameters[0])
        x = z.reshape(-1)
        for link in self.links:
            x = link(x, params)
        change = self.factor * x.reshape(self.free_shape(tensor.shape))
        if self.blocks > 1:
            change = change.repeat_interleave(tensor.shape[self.over[0]] // self.blocks, self.over[0])
        return change if self.gain is None else change / self._along(params)

    def mean(self, params: Params) -> Tensor:
        """The mean of the parameter over the axes of the change, after its gain is multiplied into it."""
        tensor = _of(params, self.parameters[0])
        whole = tensor if self.gain is None else tensor * self._along(params)
        if self.blocks > 1:
            first, *others = self.over
            parts: Tensor = whole.reshape(*whole.shape[:first], self.blocks, -1, *whole.shape[first + 1 :]).mean(
                first + 1
            )
            return parts.mean(others, keepdim=True) if others else parts
        return whole.mean(self.over, keepdim=True) if self.over else whole

    def _along(self, params: Params) -> Tensor:
        assert self.gain is not None
        ndim = _of(params, self.parameters[0]).ndim
        return _gain(params, self.gain).reshape([-1 if axis == self.over[-1] else 1 for axis in range(ndim)])


@dataclass(frozen=True)
class Translation:
    """Free numbers z of ``shape`` and the ``moves`` of parameters that follow them, the pivot's first.

    ``free``: which entries of z are free (None: all); ``centred``: axes of z over which it sums to 0. ``target``: the
    gain whose values the pivot has where the translation is removed, () for ones, None for zeros.
    """

    kind: str
    shape: tuple[int, ...]
    moves: tuple[Move, ...]
    free: Take | None = None
    centred: tuple[tuple[int, ...], ...] = ()
    target: tuple[str, ...] | None = None

    @property
    def pivot(self) -> str:
        """The parameter that the free numbers are added to."""
        return self.moves[0].parameters[0]

    @property
    def name(self) -> str:
        """Its kind and its pivot, and of constants the axes."""
        axes = "".join(f":{axis}" for axis in self.moves[0].over) if self.kind == "constant" else ""
        return f"{self.kind}:{self.pivot}{axes}"

    @property
    def parameters(self) -> tuple[str, ...]:
        """All parameters that it moves."""
        return tuple(dict.fromkeys(name for move in self.moves for name in move.parameters))

    @property
    def needed(self) -> tuple[str, ...]:
        """All parameters that it moves or is computed from."""
        links = [link for move in self.moves for link in move.links]
        read = [link.parameter for link in links if isinstance(link, Through)]
        read += [link.offset for link in links if isinstance(link, Level)]
        return tuple(dict.fromkeys((*self.parameters, *read, *self.gains, *(self.target or ()))))

    @property
    def gains(self) -> tuple[str, ...]:
        """The gains along whose inverse it moves."""
        links = [link.gain for move in self.moves for link in move.links if isinstance(link, Level | Divided)]
        return tuple(dict.fromkeys(name for name in (*links, *(move.gain for move in self.moves)) if name))

    @property
    def dimension(self) -> int:
        """The number of independent directions."""
        mask = self._mask()
        count = int(mask.sum())
        for axes in self.centred:
            count -= int(mask.all(axes[0]).sum()) if len(axes) == 1 else int(mask.flatten().all())
        return count

    def _mask(self) -> Tensor:
        if self.free is None:
            return torch.ones(self.shape, dtype=torch.bool)
        return (self.free.index >= 0).reshape(self.shape)

    def projected(self, z: Tensor) -> Tensor:
        """The part of z that is free."""
        mask = self._mask().to(z.device)
        z = torch.where(mask, z, torch.zeros_like(z))
        for axes in self.centred:
            whole = mask.all(axes[0], keepdim=True) if len(axes) == 1 else mask.all()
            z = torch.where(whole, z - z.mean(axes, keepdim=True), z)
        return z

    def applied(self, params: Params, z: Tensor) -> dict[str, Tensor]:
        """θ + δ(θ, z); moves follow one another, so that offsets are new where their readers take them up."""
        if tuple(z.shape) != self.shape:
            raise InputError(f"the numbers of '{self.name}' have shape {tuple(z.shape)}; expected {self.shape}")
        result = dict(params)
        z = self.projected(z)
        for move in self.moves:
            old = _of(result, move.parameters[0])
            new = old + move.change(result, z.to(old)).to(old.dtype)
            result |= {name: new for name in move.parameters if name in result}
        return result

    def values(self, params: Params) -> Tensor:
        """Where the pivot stands along the free numbers, of their shape."""
        return self.moves[0].mean(params)

    def brought(self, params: Params, values: Tensor | None = None) -> dict[str, Tensor]:
        """The parameters translated so that the pivot stands at ``values`` (default: at the target)."""
        here = self.values(params)
        if values is None:
            gain = None if not self.target else _of(params, self.target[0]).reshape(self.shape).to(here)
            values = torch.zeros_like(here) if self.target is None else torch.ones_like(here) if gain is None else gain
        z = values.to(here) - here
        for link in self.moves[0].links:
            if isinstance(link, Level):
                z = z / link.factor(params).to(z)
        return self.applied(params, z)


def _of(params: Params, name: str) -> Tensor:
    if name not in params:
        raise InputError(f"'{name}' is not among the parameters given, and a translation needs it")
    return params[name]


def _gain(params: Params, name: str) -> Tensor:
    tensor = _of(params, name)
    if bool((tensor == 0).any()):
        raise InputError(f"'{name}' has entries that are 0: nothing can be translated along its inverse")
    return tensor


def in_order(translations: Sequence[Translation]) -> tuple[Translation, ...]:
    """Sorted by kinds as they are removed; of one kind as they are found, from the input on."""
    return tuple(sorted(translations, key=lambda item: KINDS.index(item.kind)))


def translated(
    translations: Collection[Translation], params: Params, values: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """θ + δ(θ, z) for the free numbers of some translations, by name, one after the other."""
    known = [item.name for item in translations]
    if unknown := [name for name in values if name not in known]:
        raise InputError(f"no translation is called '{unknown[0]}'; they are: {', '.join(known) or 'none'}")
    result = _single(translations, params)
    for item in translations:
        if item.name in values:
            result = item.applied(result, values[item.name])
    return result


def normalized(translations: Collection[Translation], params: Params, like: Params | None = None) -> dict[str, Tensor]:
    """The one network of the same function whose pivots stand at their targets, or where those of another one stand.

    The second round takes up constants that shifts have brought back.
    """
    result = _single(translations, params)
    for _ in range(2):
        for item in translations:
            result = item.brought(result, None if like is None else item.values(like))
    return result


def _single(translations: Collection[Translation], params: Params) -> dict[str, Tensor]:
    """The parameters as a dict of their own, of one network each."""
    for item in translations:
        pivot = _of(params, item.pivot)
        if item.moves[0].free_shape(pivot.shape) != item.shape:
            raise InputError(
                f"'{item.pivot}' has shape {tuple(pivot.shape)}: translations act on single networks of their shapes"
            )
    return dict(params)


def random_values(
    translations: Collection[Translation], params: Params, generator: torch.Generator
) -> dict[str, Tensor]:
    """Normal numbers of the size of each pivot's entries, by name."""
    found = {}
    for item in translations:
        pivot = _of(params, item.pivot)
        size = float(pivot.abs().double().mean()) or 0.1
        noise = torch.randn(item.shape, generator=generator, dtype=torch.float64, device=generator.device)
        found[item.name] = (size * noise).to(pivot)
    return found


def told(translations: Collection[Translation]) -> list[str]:
    """For each kind in words: how many directions, and the parameters that begin them."""
    words = {
        "reader": "readers of LayerNorms by 1/gain",
        "constant": "constants that nothing sees",
        "shift": "shifts that others take back",
    }
    lines = []
    for kind, group in groupby(translations, key=lambda item: item.kind):
        items = list(group)
        more = f", and {len(items) - 3} more" if len(items) > 3 else ""
        total = sum(item.dimension for item in items)
        lines.append(f"{words[kind]}: {total:,} ({', '.join(item.pivot for item in items[:3])}{more})")
    return lines


def total_dimension(translations: Collection[Translation]) -> int:
    """The number of independent directions of all."""
    return sum(item.dimension for item in translations)
