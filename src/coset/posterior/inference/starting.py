"""Weights to begin with: given ones, or those that a network's layers draw anew."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from coset.distribution.contract import Distribution, centre_of
from coset.distribution.samples import Samples
from coset.errors import InputError
from coset.posterior.fit import Fit
from coset.posterior.problem import Problem
from coset.train.randomness import own_global_state, seed_global_state

Start = Mapping[str, Tensor] | Distribution | Fit[Any]
"""Weights to begin at: a dict of them, a distribution with one centre (its mean), or a fit of either."""

# What initialises a module again: torch's public name, and that of its attention layers.
_RESETS = ("reset_parameters", "_reset_parameters")


def initial_weights(problem: Problem, start: Start | None) -> Tensor:
    """The trained parameters (D,) of ``start``; the model's own if None."""
    if start is None:
        return problem.start.clone()
    flat = problem.layout.flatten(weights_of(start, "start")).to(problem.start)
    if flat.ndim != 1:
        raise InputError(f"start has tensors with leading axes {tuple(flat.shape[:-1])}; expected one network")
    if not bool(flat.isfinite().all()):
        raise InputError("start has values that are NaN or infinite")
    return flat


def points_of(*starts: Start | None) -> list[Mapping[str, Tensor]]:
    """What ``pose`` takes buffers and frozen parameters from: all that is said by networks to begin with."""
    given = [start for start in starts if start is not None]
    return [weights_of(start, "start") if (many := draws_in(start)) is None else many.params for start in given]


def draws_in(start: object) -> Samples | None:
    """The draws that are given to begin at, one for each chain or member; None where it is one network."""
    found = start.posterior if isinstance(start, Fit) else start
    return found if isinstance(found, Samples) else None


def weights_of(start: Start, name: str) -> Mapping[str, Tensor]:
    """One network as a dict of weights. Draws have none to stand for all: their mean is no network of that function."""
    found = start.posterior if isinstance(start, Fit) else start
    network = centre_of(found)
    if network is None:
        raise InputError(
            f"{name} is a {type(found).__name__}; expected one network: a dict of weights, a distribution with one "
            f"centre or a Fit of either"
        )
    for key, tensor in network.items():
        if not isinstance(tensor, Tensor):
            raise InputError(f"{name}['{key}'] is a {type(tensor).__name__}; expected a tensor")
    return network


def fresh_weights(problem: Problem, seed: int, otherwise: str) -> Tensor:
    """New initial weights (D,): ``reset_parameters`` of every module that has it, inner ones first.

    An outer module thus has the last word on the weights inside it: one whose constructor initialises its layers
    otherwise than they do by themselves must do so in a ``reset_parameters`` of its own. Without it the layers' own
    law is drawn, which cannot be told from here: the given weights may be trained ones.

    Raises where a trained parameter is drawn by none: nobody but its author knows how; ``otherwise`` says what the
    caller takes instead.
    """
    fresh = copy.deepcopy(problem.model)
    trained = {name: parameter for name, parameter in fresh.named_parameters() if name in problem.layout.shapes}
    with torch.no_grad():
        # What still is NaN afterwards was not drawn.
        for parameter in trained.values():
            parameter.fill_(math.nan)
    device = problem.start.device
    with own_global_state(device):
        seed_global_state(seed, device)
        with torch.no_grad():
            fresh.apply(_reset)
    for name, parameter in trained.items():
        if bool(parameter.isnan().any()):
            owner = type(fresh.get_submodule(name.rpartition(".")[0])).__name__
            raise InputError(
                f"'{name}' belongs to a {owner} that has no reset_parameters() to draw it anew; expected "
                f"such a method, or {otherwise}"
            )
    return problem.layout.flatten(trained)


def _reset(module: nn.Module) -> None:
    for name in _RESETS:
        method = getattr(module, name, None)
        if callable(method):
            method()
            return
