"""Flows over weights: sampling networks, with densities on the manifold of canonical weights."""

from coset.flow._coupling_fits import fit_coupling_flow, fit_coupling_flow_to_draws
from coset.flow._coupling_flow import CouplingFlow
from coset.flow._evidence import Evidence, evidence
from coset.flow._space import Space, euclidean
from coset.flow._transport import WAYS, PosteriorTarget, carry, transport

__all__ = [
    "WAYS",
    "CouplingFlow",
    "Evidence",
    "PosteriorTarget",
    "Space",
    "carry",
    "euclidean",
    "evidence",
    "fit_coupling_flow",
    "fit_coupling_flow_to_draws",
    "transport",
]
