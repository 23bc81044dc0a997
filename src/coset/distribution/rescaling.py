"""Networks and distributions times a power of two, which changes no digit, so that their squares are numbers."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from torch import Tensor

from coset._magnitudes import exponent, magnitude, scaled
from coset.distribution.delta import Delta
from coset.distribution.gaussian import Gaussian
from coset.distribution.low_rank import LowRank
from coset.distribution.mean_field import MeanField
from coset.distribution.mixture import Distribution, Mixture
from coset.distribution.samples import Samples
from coset.distribution.ties import map_tied, ties

Params = Mapping[str, Tensor]
T = TypeVar("T", bound=Params | Distribution)


def common_exponent(*networks: Params | Distribution) -> int:
    """The e for which all ``rescaled`` networks together are of ordinary size; 0 where they are."""
    sized = [part for network in networks for part in _linear_parts(network) if part.is_floating_point()]
    squared = [part for network in networks for part in _quadratic_parts(network)]
    ordinary = not exponent(*sized) if sized else True
    if ordinary and all(not exponent(part) for part in squared):
        return 0
    found = [magnitude(*sized), *(None if (m := magnitude(part)) is None else -(-m // 2) for part in squared)]
    return max((size for size in found if size is not None), default=0)


def rescaled(network: T, by: int) -> T:
    """2⁻ᵉ·network: weights, means, deviations and draws by 2⁻ᵉ, covariances by 4⁻ᵉ; itself where e is 0."""
    if by == 0:
        return network
    result: Any = network
    if isinstance(network, Mapping):
        result = _params(network, by)
    elif isinstance(network, Delta):
        result = Delta(_params(network.params, by))
    elif isinstance(network, MeanField):
        result = MeanField(_params(network.mean, by), _params(network.std, by))
    elif isinstance(network, Gaussian):
        result = Gaussian(_params(network.mean, by), scaled(network.covariance, 2 * by), network.names)
    elif isinstance(network, LowRank):
        result = LowRank(*(_params(part, by) for part in (network.mean, network.diagonal, network.factors)))
    elif isinstance(network, Samples):
        result = Samples(_params(network.params, by))
    elif isinstance(network, Mixture):
        result = Mixture([rescaled(part, by) for part in network.components], network.weights)
    return cast(T, result)


def _params(params: Params, by: int) -> dict[str, Tensor]:
    return map_tied(lambda name: scaled(params[name], by), ties(params))


def _linear_parts(network: Params | Distribution) -> list[Tensor]:
    """What scales as the weights do."""
    if isinstance(network, Mapping):
        return list(network.values())
    if isinstance(network, Samples):
        return list(network.params.values())
    if isinstance(network, LowRank):
        return [part for of in (network.mean, network.diagonal, network.factors) for part in of.values()]
    if isinstance(network, Mixture):
        return [part for component in network.components for part in _linear_parts(component)]
    if isinstance(network, MeanField):
        return [*network.mean.values(), *network.std.values()]
    return list(network.mean.values())


def _quadratic_parts(network: Params | Distribution) -> list[Tensor]:
    """What scales as the squares of weights do."""
    if isinstance(network, Gaussian):
        return [network.covariance]
    if isinstance(network, Mixture):
        return [part for component in network.components for part in _quadratic_parts(component)]
    return []
