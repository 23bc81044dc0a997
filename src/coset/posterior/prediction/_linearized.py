"""A network as the linear function of its weights that a Laplace approximation takes it for."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import jvp

from coset.posterior.inference.starting import Start, weights_of
from coset.running import outputs_with, whole_weights


class Linearized(nn.Module):
    """x ↦ f(x; θ*) + J(x)(θ − θ*), J the Jacobian of f at ``center`` θ*; θ are the parameters, named as those of f.

    It stands wherever the network stands, at about twice its cost. Buffers are the center's.
    """

    def __init__(self, network: nn.Module, center: Mapping[str, Tensor]) -> None:
        super().__init__()
        own = copy.deepcopy(network).eval()
        weights = whole_weights(own, center)
        with torch.no_grad():
            for name, tensor in (*own.named_parameters(), *own.named_buffers()):
                tensor.copy_(weights[name])
        # Outside what modules know of each other: f stays at θ* while other weights are put in the place of θ.
        self.__dict__["_at_center"] = copy.deepcopy(own)
        self._parameters, self._buffers, self._modules = own._parameters, own._buffers, own._modules
        self._non_persistent_buffers_set = own._non_persistent_buffers_set
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        network: nn.Module = self.__dict__["_at_center"]
        given = dict(self.named_parameters(remove_duplicate=False))
        center = {name: parameter.detach() for name, parameter in network.named_parameters()}
        away = {name: (given[name] - tensor).to(tensor) for name, tensor in center.items()}
        both = jvp(lambda params: outputs_with(network, params, x), (center,), (away,))
        outputs: Tensor = both[0]
        change: Tensor = both[1]
        return outputs + change


def linearized(model: nn.Module, at: Start) -> Linearized:
    """``model`` linearised ``at`` weights, at a distribution's mean or at the posterior of a ``Fit``.

    Laplace's Gaussian is the posterior of this model, not of the network itself (Immer et al. 2021): predict with
    ``predictive(linearized(model, fit), fit, x)``.
    """
    return Linearized(model, weights_of(at, "at"))
