"""Transport: a source distribution carried to draws, or to a posterior that is known up to its evidence."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from coset._checks import check_choice
from coset.distribution import Distribution, MeanField, Samples
from coset.distribution.contract import require
from coset.distribution.density import vector
from coset.errors import InputError
from coset.flow._coupling_fits import fit_coupling_flow, fit_coupling_flow_to_draws, varying_names
from coset.flow._coupling_flow import CouplingFlow
from coset.flow._fitting import fit_flow
from coset.flow._flow import Flow
from coset.posterior import Fit
from coset.posterior.likelihoods import Likelihood
from coset.posterior.problem import Data, PriorLike


@dataclass(frozen=True, eq=False)
class PosteriorTarget:
    """p(θ | Y) as a target: the network, the data and what is believed; ``prior`` None is the source."""

    model: nn.Module
    data: Data
    likelihood: Likelihood | str = "categorical"
    prior: PriorLike | None = None
    temperature: float = 1.0


Target = Samples | PosteriorTarget


def transport(source: Distribution, target: Target, *, way: str = "couplings", **settings: Any) -> Fit[Any]:
    """Fit a flow that carries ``source`` to ``target``: a distribution with the density of what arrives.

    ``target``: draws of any sampler on any model (by maximum likelihood), or a ``PosteriorTarget``, by
    its evidence bound. ``way``: the kind of flow, a name in ``WAYS``; ``settings``: those of its fit,
    for couplings ``fit_coupling_flow_to_draws`` or ``fit_coupling_flow``, for a field ``fit_flow``.
    """
    check_choice("way", way, WAYS)
    source = require(source, Distribution, "source", "a distribution to begin with, such as the prior")
    if not isinstance(target, Samples | PosteriorTarget):
        raise InputError(f"target is a {type(target).__name__}; expected draws as a Samples, or a PosteriorTarget")
    return WAYS[way](source, target, settings)


def carry(source: MeanField, flow: CouplingFlow | Fit[CouplingFlow], params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """f(θ₀) for θ₀ ~ ``source``: where each of its draws (…, *shape) arrives; these are draws of the ``flow``."""
    q = require(flow.posterior if isinstance(flow, Fit) else flow, CouplingFlow, "flow", "a CouplingFlow")
    mean, spread = _standard(source, q.names)
    away = vector(params, q.names, source.mean) - mean
    # The number of T that a weight takes is the one whose noise the weight of the source gives.
    return q.from_noise((away / spread).to(q.scale)[..., q.order.argsort()])


def _couplings(source: Distribution, target: Target, settings: Mapping[str, Any]) -> Fit[CouplingFlow]:
    """The source is where the flow's own base lies: to begin with the identity carries it to itself."""
    source = require(source, MeanField, "source", "a MeanField, of which coupling layers know the standard noise")
    if isinstance(target, Samples):
        _standard(source, varying_names(target))
        return fit_coupling_flow_to_draws(target, **settings)
    prior = source.log_prob if target.prior is None else target.prior
    given: dict[str, Any] = {"start": source, **settings}
    return fit_coupling_flow(
        target.model, target.data, likelihood=target.likelihood, prior=prior, temperature=target.temperature, **given
    )


def _standard(source: MeanField, names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Means and deviations (D,) of the named parameters, all of which must vary."""
    for name in names:
        if name not in source.std or bool((source.std[name] == 0).any()):
            raise InputError(f"source does not vary '{name}', which the target does; expected a deviation > 0")
    like = {name: source.mean[name] for name in names}
    mean, spread = (vector(part, names, like) for part in (source.mean, source.std))
    return mean, spread.to(mean)


def _field(source: Distribution, target: Target, settings: Mapping[str, Any]) -> Fit[Flow]:
    """Flow matching from the source to draws, which sees no density."""
    if not isinstance(target, Samples):
        raise InputError(
            "target is a PosteriorTarget, and way is 'field'; expected draws as Samples, or way 'couplings'"
        )
    return fit_flow(target, source=source, **settings)


WAYS: dict[str, Callable[[Distribution, Target, Mapping[str, Any]], Fit[Any]]] = {
    "couplings": _couplings,
    "field": _field,
}
"""Kind of flow → how it is fitted, for (source, target, settings)."""
