"""Networks and distributions times a power of two, which changes no digit, so that their squares are numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from torch import Tensor

from coset._magnitudes import exponent, magnitude, scaled
from coset.distribution.contract import Distribution
from coset.distribution.ties import map_tied, ties
from coset.errors import InputError

T = TypeVar("T", bound=Mapping[str, Tensor] | Distribution)


def common_exponent(*networks: Mapping[str, Tensor] | Distribution) -> int:
    """The e for which all ``rescaled`` networks together are of ordinary size; 0 where they are."""
    parts = [part for network in networks for part in _parts(network, 1)]
    sized = [tensor for tensor, power in parts if power == 1 and tensor.is_floating_point()]
    squared = [tensor for tensor, power in parts if power == 2]
    ordinary = not exponent(*sized) if sized else True
    if ordinary and all(not exponent(part) for part in squared):
        return 0
    found = [magnitude(*sized), *(None if (m := magnitude(part)) is None else -(-m // 2) for part in squared)]
    return max((size for size in found if size is not None), default=0)


def rescaled(network: T, by: int) -> T:
    """2⁻ᵉ·network: weights, means, deviations and draws by 2⁻ᵉ, covariances by 4⁻ᵉ; itself where e is 0."""
    return network if by == 0 else cast(T, _times(network, by))


def _times(part: Any, by: int) -> Any:
    if isinstance(part, Tensor):
        return scaled(part, by)
    if isinstance(part, Mapping):
        return map_tied(lambda name: scaled(part[name], by), ties(part))
    if isinstance(part, tuple):
        return tuple(_times(one, by) for one in part)
    if not part.powers:
        raise InputError(
            f"a {type(part).__name__} has no 'powers', so it cannot be multiplied by a power of two, which weights of "
            f"this size need; expected numbers nearer to 1"
        )
    return replace(part, **{name: _times(getattr(part, name), by * power) for name, power in part.powers.items()})


def _parts(part: Any, power: int) -> Iterator[tuple[Tensor, int]]:
    """Every tensor, with the power of the scale of the weights that it scales with."""
    if isinstance(part, Tensor):
        yield part, power
    elif isinstance(part, Mapping | tuple):
        for one in part.values() if isinstance(part, Mapping) else part:
            yield from _parts(one, power)
    else:
        for name, own in part.powers.items():
            yield from _parts(getattr(part, name), power * own)
