"""Features made ready for comparison: checked, centred and normalised channel by channel, in float64."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from coset._magnitudes import exponents, scaled_by, squares_hold
from coset.errors import InputError
from coset.represent.unit_groups import Group, UnitGroup, group_on
from coset.running.moments import Moments, merged, moments_of

T = TypeVar("T")

DEAD = 1e-12
"""A channel is constant if what is left of it behind its mean is smaller, relative to the channel itself: rounding."""

CHUNK = 1 << 18
"""So many entries are converted to float64 at a time where sums are enough."""


def check_features(x: Tensor, what: str) -> Tensor:
    """Features as (N, C, P), positions in one axis, a view; raises unless they are finite real numbers."""
    if not isinstance(x, Tensor):
        raise InputError(f"{what} is a {type(x).__name__}; expected a tensor of features (N, C, *positions)")
    if x.ndim < 2 or x.numel() == 0:
        raise InputError(f"{what} has shape {tuple(x.shape)}; expected features (N, C, *positions), none of them 0")
    if not x.is_floating_point():
        raise InputError(f"{what} is of type {x.dtype}; expected features in floating point")
    # The sum is quicker; only where it overflows does it say less.
    if not bool(torch.isfinite(x.detach().sum())) and not bool(torch.isfinite(x).all()):
        raise InputError(f"{what} holds NaN or infinite values; expected finite features")
    return x.detach().reshape(x.shape[0], x.shape[1], -1)


def check_pair(x: Tensor, y: Tensor, *, positions: bool, where: str = "") -> tuple[Tensor, Tensor]:
    """Two features of the same examples as (N, C, P); with ``positions`` they must have as many of these.

    ``where``: what is said behind their names, " of pairs[2]" for instance.
    """
    x, y = check_features(x, f"x{where}"), check_features(y, f"y{where}")
    if len(x) != len(y):
        raise InputError(f"x{where} has {len(x)} examples and y {len(y)}; expected features of the same examples")
    if positions and x.shape[2] != y.shape[2]:
        raise InputError(f"x has {x.shape[2]} positions and y {y.shape[2]}; Procrustes compares position by position")
    return x, y


def wide_chunks(*features: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The features (N, C, P) of the same examples in float64, a few examples at a time."""
    step = max(1, CHUNK // max(x[0].numel() for x in features))
    for start in range(0, len(features[0]), step):
        yield tuple(x[start : start + step].double() for x in features)


def total(parts: Iterable[T], merge: Callable[[T, T], T]) -> T:
    """What is known of all features, from what is known of some after the other."""
    found: T | None = None
    for part in parts:
        found = part if found is None else merge(found, part)
    if found is None:
        raise InputError("there are no features; expected at least one batch")
    return found


def channel_statistics(parts: Iterable[Tensor]) -> Moments:
    """Of features (n, C, P) part after part, in float64: the moments of each channel."""
    return total((moments_of(x) for part in parts for (x,) in wide_chunks(part)), merged)


def largest_entries(x: Tensor) -> Tensor:
    """Of features (n, C, P), the largest absolute value of each channel, (C,)."""
    parts = torch.split(x, max(1, CHUNK // x[0].numel()))
    return torch.stack([part.abs().amax((0, 2)) for part in parts]).amax(0)


def pieces_of(group: UnitGroup, like: Tensor) -> Tensor:
    """For each of the channels (C,), or as many of them as there are, the number of the piece whose scale it has."""
    labels = torch.empty(group.size, dtype=torch.long, device=like.device)
    labels[torch.tensor(group.places, device=like.device)] = torch.tensor(group.scaled, device=like.device)
    return labels[: len(like)]


def ordinary_features(x: Tensor, group: UnitGroup) -> Tensor:
    """Features (N, C, P) of which squares are numbers in float64: each piece with a scale multiplied by a power of two.

    All measures divide by the norms of pieces, or of everything. The features themselves where they are of ordinary
    size, and always if narrower than float64: what is computed of them in float64 stays a number.
    """
    if x.dtype != torch.float64:
        return x
    largest = largest_entries(x)
    labels = pieces_of(group, largest)
    sizes = largest.new_zeros(group.size).scatter_reduce_(0, labels, largest, "amax")
    return scaled_by(x, exponents(sizes[labels][:, None], 1)[:, None])


@dataclass(frozen=True)
class Straightening:
    """Features such that matrices that mix some channels are rotations: ``means`` (C,) taken off, then ``maps``, each
    on some channels.
    """

    means: Tensor | None = None
    maps: tuple[tuple[Tensor, Tensor], ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        """Features (N, C, P), in float64 if there is anything to do."""
        if self.means is None and not self.maps:
            return x
        wide = x.double() if self.means is None else x - self.means[:, None]
        wide = wide.clone() if wide is x else wide
        for channels, matrix in self.maps:
            wide[:, channels] = matrix @ wide[:, channels]
        return wide


def needs_straightening(group: Group) -> bool:
    """Whether matrices mix some channels that are not just all rotations of all."""
    acting = group if isinstance(group, UnitGroup) else group_on(group, 1, "")
    return bool(acting.kinds) and not acting.rotates


def straightened(x: Tensor, group: Group, what: str, *, centred: bool = False) -> Tensor:
    """Features ``what`` (N, C, P) by their own ``straightening``."""
    return straightening([x], group, what, centred=centred)(x)


def straightening(parts: Iterable[Tensor], group: Group, what: str, *, centred: bool = False) -> Straightening:
    """What makes rotations of the matrices that mix blocks of channels, from features ``what`` (n, C, P) in parts.

    Modulo O(n) nothing; modulo O(n − 1) the mean of the channels, which LayerNorm does not read, is taken off; modulo
    GL(n) the block is made white, x → V·S⁻¹·Vᵀx with X = U·S·Vᵀ over examples and positions, directions of rounding
    left out. If ``centred``, means over examples and positions are taken off first.
    """
    if not needs_straightening(group):
        return Straightening()
    statistics = channel_statistics(parts)
    acting = group_on(group, len(statistics.mean), what)
    places = torch.tensor(acting.places, device=statistics.mean.device)
    means = torch.zeros_like(statistics.mean) if centred else None
    maps = []
    for start, stop, kind in acting.mixed:
        own = places[start:stop]
        if means is not None:
            # Other units are centred by themselves, each as a whole.
            means[own] = statistics.mean[own]
        if kind == "general":
            maps.append((own, _whitening(parts, Straightening(means), own, what)))
        elif kind == "centred":
            maps.append((own, torch.eye(len(own), dtype=torch.float64, device=own.device) - 1 / len(own)))
    return Straightening(means, tuple(maps))


def _whitening(parts: Iterable[Tensor], ready: Straightening, channels: Tensor, what: str) -> Tensor:
    """V·S⁻¹·Vᵀ of the rows of one block: from triangles of one part after the other, which keep what products lose."""
    n, rows, triangle, noise = len(channels), 0, None, 0.0
    for part in parts:
        chosen = ready(part)[:, channels].double().transpose(1, 2).reshape(-1, n)
        rows, noise = rows + len(chosen), torch.finfo(part.dtype).eps
        triangle = torch.linalg.qr(chosen if triangle is None else torch.cat([triangle, chosen]), mode="r").R
    if triangle is None or rows <= n:
        raise InputError(
            f"{what} has {rows} examples and positions for {n} channels that any invertible matrix mixes, GL({n}): "
            f"modulo these all features look the same; expected more of them than channels"
        )
    _, sizes, vh = torch.linalg.svd(triangle)
    kept = sizes > 100 * noise * sizes[0]
    white: Tensor = vh.mT * torch.where(kept, 1 / torch.where(kept, sizes, 1.0), 0.0) @ vh
    return white


def check_squares(group: UnitGroup, squares: Tensor, largest: Tensor, what: str) -> None:
    """Raise if a piece has entries and its sum of squares (both by channel) is no number: it would count as dead."""
    labels = pieces_of(group, largest)
    sums = squares.new_zeros(group.size).index_add_(0, labels, squares)
    sizes = squares.new_zeros(group.size).scatter_reduce_(0, labels, largest, "amax")
    lost = (sizes > 0) & ~squares_hold(sums)
    if bool(lost.any()):
        raise InputError(
            f"{what} has channels whose largest entry is {float(sizes[lost][0]):.3g}, whose square float64 does not "
            f"hold; expected features of another scale, which changes nothing else"
        )


@dataclass(frozen=True)
class Normalization:
    """(x − ``mean``)·``factor`` channel by channel, in the order of the group's parts; each (C,)."""

    group: UnitGroup
    mean: Tensor
    factor: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Normalised features in float64, contiguous (N, C, P)."""
        return self.of_channels(x, 0, self.group.size)

    def of_channels(self, x: Tensor, start: int, stop: int) -> Tensor:
        """The same for the channels from ``start`` to ``stop`` in the order of the parts, (N, stop − start, P)."""
        order = self.group.order
        chosen = x[:, start:stop] if order is None else x[:, torch.tensor(order[start:stop], device=x.device)]
        # A difference from float64 is in float64.
        wide = chosen - self.mean[start:stop, None]
        return wide.mul_(self.factor[start:stop, None]).contiguous()


def normalization(statistics: Moments, group: UnitGroup, *, centred: bool) -> Normalization:
    """The normalisation that removes the scales of ``group``.

    If ``centred``, each unit's mean over examples and positions is subtracted. Then each piece with a scale of its own
    is divided by its ℓ2 norm, and all that has none by its norm together; dead pieces become 0.
    """
    own, spread = group.arranged(torch.stack([statistics.mean, statistics.squares]))
    units = torch.empty(group.size, dtype=torch.long)
    for number, (start, stop) in enumerate(group.units):
        units[start:stop] = number
    scaled = torch.tensor(group.scaled)
    mean = _mean_by(units.to(own.device), own) if centred else torch.zeros_like(own)
    squares = spread + statistics.count * (own - mean).square()
    raw = spread + statistics.count * own.square()
    check_squares(
        group, statistics.squares + statistics.count * statistics.mean.square(), statistics.largest, "a layer"
    )
    norm, whole = (_sum_by(scaled.to(own.device), part).sqrt() for part in (squares, raw))
    alive = norm > DEAD * whole
    factor = torch.where(alive, 1 / torch.where(alive, norm, 1.0), 0.0)
    return Normalization(group, mean, factor)


def _sum_by(labels: Tensor, values: Tensor) -> Tensor:
    """For each entry, the sum of the entries with the same label."""
    sums = values.new_zeros(int(labels.max()) + 1).index_add_(0, labels, values)
    return sums[labels]


def _mean_by(labels: Tensor, values: Tensor) -> Tensor:
    return _sum_by(labels, values) / _sum_by(labels, torch.ones_like(values))
