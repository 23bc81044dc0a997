"""Losses of many networks at once, by which flows are guided."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from coset._checks import check_choice
from coset.errors import InputError
from coset.running import check_model, run_together, suited, under_owners, whole_weights
from coset.train.check import check_pair
from coset.train.loss import LOSSES

NetworkLoss = Callable[[Mapping[str, Tensor]], Tensor]
"""Networks (N, *shape) → a loss for each, (N,), with derivatives."""


def task_loss(model: nn.Module, data: tuple[Tensor, Tensor], loss: str = "cross-entropy") -> NetworkLoss:
    """The mean ``loss`` of every network on ``data`` (x, y), for ``Flow.sample(…, loss=…)``."""
    check_model(model)
    check_choice("loss", loss, LOSSES)
    if not isinstance(data, tuple) or len(data) != 2:
        raise InputError(f"data is a {type(data).__name__}; expected a pair (x, y) of tensors")
    x, y = data
    check_pair(x, y, "x", "y")
    rule = LOSSES[loss]

    def of(networks: Mapping[str, Tensor]) -> Tensor:
        first = whole_weights(model, {name: tensor[0].detach() for name, tensor in networks.items()})
        given = under_owners(model, networks)
        shared = {name: tensor for name, tensor in first.items() if name not in given}
        outputs = run_together(model, given, shared)(suited(x, first))
        targets = rule.fit_targets(y.to(outputs.device), outputs[0], "y")
        each: Tensor = torch.vmap(lambda one: rule.mean(one, targets, 0.0))(outputs)
        return each

    return of
