"""Groups that act on the channels of a feature: what a measure is to be invariant under, as a value.

Channels are cut into parts; a part is a row of pieces that may change places, have positive scales and signs of their
own, and may themselves consist of parts: heads of units, or a channel's positions behind a flatten. Where only linear
maps and norms see the channels of a part, matrices mix them: all invertible ones, or rotations.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from coset._checks import check_choice
from coset.errors import InputError
from coset.symmetry.mixing import Mixing, random_matrices


@dataclass(frozen=True)
class Part:
    """``count`` pieces in a row: each is one channel or, if ``inside`` is given, these parts side by side.

    ``permutes``: the pieces change places; ``scales``, ``signs``: each piece has a positive factor, a sign of its own.
    ``mixes``: the channels are mixed by matrices of this kind (``symmetry.mixing.KINDS``), which do all of the former.
    """

    count: int
    permutes: bool = False
    scales: bool = False
    signs: bool = False
    inside: tuple["Part", ...] = ()
    mixes: str | None = None

    @property
    def width(self) -> int:
        """The channels of one piece."""
        return sum(part.size for part in self.inside) if self.inside else 1

    @property
    def size(self) -> int:
        """The channels of all pieces."""
        return self.count * self.width

    @property
    def moves(self) -> bool:
        """Whether anything acts on the pieces or within them."""
        own = self.permutes or self.scales or self.signs or self.mixes is not None
        return own or any(part.moves for part in self.inside)


@dataclass(frozen=True)
class UnitGroup:
    """A group on the channels of a feature.

    ``parts``: side by side, what acts on the channels. ``order``: the place on the channel axis of each channel in the
    order in which the parts count them; None where that is the same. ``sign``: one sign for all channels together.
    """

    parts: tuple[Part, ...]
    order: tuple[int, ...] | None = None
    sign: bool = False

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of matrices that mix some channels."""
        return frozenset(part.mixes for part in _all_parts(self.parts) if part.mixes is not None)

    @property
    def whole(self) -> bool:
        """Whether matrices mix all channels together."""
        return len(self.parts) == 1 and self.parts[0].mixes is not None

    @property
    def rotates(self) -> bool:
        """Whether the group is O(C)."""
        return self.whole and self.parts[0].mixes == "orthogonal"

    @property
    def size(self) -> int:
        """The number of channels."""
        return sum(part.size for part in self.parts)

    @property
    def permutes(self) -> bool:
        """Whether some channels or blocks of them change places; those that matrices mix are one block."""
        return any(part.permutes for part in _all_parts(self.parts))

    @property
    def scales(self) -> bool:
        """Whether some channels have positive scales of their own."""
        return any(part.scales or part.mixes == "general" for part in _all_parts(self.parts))

    @property
    def signs(self) -> bool:
        """Whether some channels change sign."""
        return self.sign or any(part.signs or part.mixes is not None for part in _all_parts(self.parts))

    @property
    def nested(self) -> bool:
        """Whether pieces that change places have movable pieces inside: heads, groups of channels."""
        return any(part.moves and any(inner.moves for inner in part.inside) for part in _all_parts(self.parts))

    @property
    def units(self) -> tuple[tuple[int, int], ...]:
        """The first channel and the one behind the last of every unit, in the order of the parts.

        A unit is an innermost piece that moves: one channel, all positions of one behind a flatten, or channels that
        matrices mix.
        """
        return tuple(_units(self.parts, 0))

    @property
    def scaled(self) -> tuple[int, ...]:
        """For every channel, in the order of the parts, the number of the piece whose scale it has.

        Channels without a scale of their own are numbered as one piece.
        """
        labels = list(_scaled(self.parts, -1, count()))
        numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
        return tuple(numbers[label] for label in labels)

    @property
    def mixed(self) -> tuple[tuple[int, int, str], ...]:
        """The units that matrices mix: first channel, the one behind the last, kind; in the order of the parts."""
        return tuple(_mixed(self.parts, 0))

    @property
    def places(self) -> tuple[int, ...]:
        """``order``, written out where it is None."""
        return tuple(range(self.size)) if self.order is None else self.order

    def arranged(self, x: Tensor) -> Tensor:
        """(N, C, …) with its channels in the order of the parts."""
        return x if self.order is None else x[:, torch.tensor(self.order, device=x.device)]

    def __str__(self) -> str:
        words = " × ".join(_words(part) for part in self.parts)
        return f"{words}, one sign for all" if self.sign else words


def orthogonal(channels: int) -> UnitGroup:
    """O(C): under which linear CKA and orthogonal Procrustes are invariant."""
    return UnitGroup((Part(channels, mixes="orthogonal"),))


def general(channels: int) -> UnitGroup:
    """GL(C): under which canonical correlations are invariant."""
    return UnitGroup((Part(channels, mixes="general"),))


def permutation(channels: int) -> UnitGroup:
    """G_ReLU: permutations with positive scales, P·D, D > 0."""
    return UnitGroup((Part(channels, permutes=True, scales=True),))


def signed_permutation(channels: int) -> UnitGroup:
    """Permutations with scales of both signs, P·D, D ≠ 0; it contains the group of tanh."""
    return UnitGroup((Part(channels, permutes=True, scales=True, signs=True),))


def rigid_permutation(channels: int) -> UnitGroup:
    """Permutations alone, P: the group of GELU, SiLU and the sigmoid."""
    return UnitGroup((Part(channels, permutes=True),))


def rigid_signed_permutation(channels: int) -> UnitGroup:
    """Permutations with signs, P·D, D = ±1: the group of tanh."""
    return UnitGroup((Part(channels, permutes=True, signs=True),))


def trivial(channels: int) -> UnitGroup:
    """Nothing acts: channel i is compared with channel i."""
    return UnitGroup((Part(channels),))


GROUPS: dict[str, Callable[[int], UnitGroup]] = {
    "general": general,
    "orthogonal": orthogonal,
    "permutation": permutation,
    "signed-permutation": signed_permutation,
    "rigid-permutation": rigid_permutation,
    "rigid-signed-permutation": rigid_signed_permutation,
    "trivial": trivial,
}
"""Groups by name, for any number of channels."""

Group = str | UnitGroup
"""A group by its name in ``GROUPS``, or a group as ``layer_group`` finds it at a layer."""


def group_on(group: Group, channels: int, what: str) -> UnitGroup:
    """``group`` for so many channels of ``what``; raises where there is no such group or it has another size."""
    if isinstance(group, UnitGroup):
        if group.size != channels:
            raise InputError(f"group acts on {group.size} channels ({group}); {what} has {channels}")
        return group
    return GROUPS[check_choice("group", group, GROUPS, quoted=True, otherwise=", or a UnitGroup")](channels)


def random_element(group: UnitGroup, generator: torch.Generator, *, spread: float = 1.0) -> Tensor:
    """A random matrix (C, C) of the group, in float64: uniform permutations and signs, log-normal scales, and matrices
    as ``symmetry.mixing.random_matrices`` draws them.

    ``spread``: the deviation of the logarithms of scales. Of O(C) it is uniform (Haar measure).
    """
    matrix = _random_parts(group.parts, generator, spread)
    if group.sign:
        matrix = matrix * _signs(1, generator)
    if group.order is None:
        return matrix
    arranged = torch.eye(group.size, dtype=torch.float64)[torch.tensor(group.order)]
    return arranged.T @ matrix @ arranged


def _random_parts(parts: tuple[Part, ...], generator: torch.Generator, spread: float) -> Tensor:
    return _diagonal([_random_part(part, generator, spread) for part in parts])


def _random_part(part: Part, generator: torch.Generator, spread: float) -> Tensor:
    """Pieces with a factor each, and places changed: block i of the outputs reads piece order[i]."""
    if part.mixes is not None:
        return random_matrices(part.mixes, (part.size, part.size), generator, spread)
    factors = torch.ones(part.count, dtype=torch.float64)
    if part.scales:
        factors = torch.exp(spread * torch.randn(part.count, generator=generator, dtype=torch.float64))
    if part.signs:
        factors = factors * _signs(part.count, generator)
    one = torch.ones(1, 1, dtype=torch.float64)
    pieces = [
        factor * (_random_parts(part.inside, generator, spread) if part.inside else one) for factor in factors.unbind()
    ]
    order = torch.randperm(part.count, generator=generator) if part.permutes else torch.arange(part.count)
    rows = _diagonal(pieces).reshape(part.count, part.width, part.size)
    return rows[order].reshape(part.size, part.size)


def _diagonal(blocks: list[Tensor]) -> Tensor:
    matrix: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return matrix


def _signs(count: int, generator: torch.Generator) -> Tensor:
    return 2.0 * torch.randint(2, (count,), generator=generator).double() - 1.0


def _all_parts(parts: tuple[Part, ...]) -> Iterator[Part]:
    for part in parts:
        yield part
        yield from _all_parts(part.inside)


def _units(parts: tuple[Part, ...], start: int) -> Iterator[tuple[int, int]]:
    for part in parts:
        if part.mixes is not None:
            yield start, start + part.size
            start += part.size
            continue
        whole = not any(inner.moves for inner in part.inside) and part.moves
        for piece in range(start, start + part.size, part.width):
            if whole or not part.inside:
                yield piece, piece + part.width
            else:
                yield from _units(part.inside, piece)
        start += part.size


def _scaled(parts: tuple[Part, ...], around: int, fresh: Iterator[int]) -> Iterator[int]:
    for part in parts:
        # Matrices that are not rotations have a size, which the block is divided by.
        common = next(fresh) if part.mixes == "general" else around
        for _ in range(part.count):
            label = next(fresh) if part.scales else common
            if part.inside:
                yield from _scaled(part.inside, label, fresh)
            else:
                yield label


def _mixed(parts: tuple[Part, ...], start: int) -> Iterator[tuple[int, int, str]]:
    for part in parts:
        if part.mixes is not None:
            yield start, start + part.size, part.mixes
        elif part.inside:
            for piece in range(start, start + part.size, part.width):
                yield from _mixed(part.inside, piece)
        start += part.size


def _words(part: Part) -> str:
    """One part in symbols: S for permutations, R for scales, ± for signs, of how many pieces, and what is inside."""
    if part.mixes is not None:
        return Mixing(part.mixes, {}).named(part.size)
    marks = {"S": part.permutes, "R": part.scales, "±": part.signs}
    acts = "".join(mark for mark, acting in marks.items() if acting)
    inside = f"[{' × '.join(_words(inner) for inner in part.inside)}]" if part.inside else ""
    return f"{acts or 'fixed'}({part.count}){inside}"
