"""The inference problem: a network, data, likelihood, prior and temperature, as functions of a flat weight vector.

One convention of scale holds in the whole room: log-likelihoods, log-densities and ELBOs are sums over the data set, a
minibatch of M standing for all N by the factor N/M; reports are per data point, divided by N.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.func import vmap

from coset._checks import check_positive
from coset._values import freeze
from coset.data import given_pair
from coset.errors import InputError
from coset.posterior.likelihoods import Likelihood, as_likelihood
from coset.posterior.priors import GaussianPrior, Named, Prior, as_prior, flat_moments
from coset.running import check_model, outputs_with, owners
from coset.train.check import check_pair, model_device, probe


@dataclass(frozen=True, eq=False)
class VectorLayout:
    """Where each trained parameter lies in a vector of D numbers; tied ones lie there once.

    ``shapes``: of the trained parameters, in order. ``fixed``: all else that the ``state_dict`` holds, as points:
    frozen parameters and buffers. ``aliases``: further names of trained tensors.
    """

    shapes: Mapping[str, Size]
    fixed: Mapping[str, Tensor]
    aliases: Mapping[str, str]

    def __post_init__(self) -> None:
        freeze(self, "shapes", "fixed", "aliases")

    @property
    def size(self) -> int:
        """D."""
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """The number of entries of each trained parameter."""
        return [math.prod(shape) for shape in self.shapes.values()]

    def flatten(self, params: Mapping[str, Tensor]) -> Tensor:
        """Trained parameters, possibly behind the same leading axes, as vectors (…, D); a copy."""
        parts = []
        for name, shape in self.shapes.items():
            if name not in params:
                raise InputError(f"'{name}' is not among the parameters given; expected all trained ones")
            tensor = params[name]
            if tensor.shape[max(0, tensor.ndim - len(shape)) :] != shape:
                raise InputError(f"'{name}' has shape {tuple(tensor.shape)}; the model expects {tuple(shape)}")
            parts.append(tensor.detach().reshape(*tensor.shape[: tensor.ndim - len(shape)], -1))
        return torch.cat(parts, -1)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The trained parameters in vectors (…, D), each (…, *shape), without a copy."""
        pieces = torch.split(flat, self.sizes, -1)
        return {
            name: piece.view(*flat.shape[:-1], *shape)
            for piece, (name, shape) in zip(pieces, self.shapes.items(), strict=True)
        }

    def whole(self, flat: Tensor) -> dict[str, Tensor]:
        """All that the ``state_dict`` holds, from vectors (…, D): own copies; points have no leading axes."""
        return self.named(flat) | {name: tensor.clone() for name, tensor in self.fixed.items()}

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Trained parameters, or what belongs to them, under all their names, from vectors (…, D): own copies."""
        trained = {name: tensor.clone() for name, tensor in self.views(flat.detach()).items()}
        return {**trained, **{alias: trained[name] for alias, name in self.aliases.items()}}


def layout_of(model: nn.Module) -> VectorLayout:
    """Trained are the floating-point parameters that require a gradient."""
    owner = owners(model)
    trained = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    if not trained:
        raise InputError("model has no parameters that require a gradient; expected a network to infer")
    for what in ("dtype", "device"):
        found = {str(getattr(tensor, what)) for tensor in trained.values()}
        if len(found) > 1:
            raise InputError(f"the model's trained parameters have {what}s {', '.join(sorted(found))}; expected one")
    state = model.state_dict(keep_vars=True)
    aliases = {name: owner[name] for name in state if name in owner and owner[name] != name and owner[name] in trained}
    fixed = {
        name: tensor.detach().clone()
        for name, tensor in state.items()
        if isinstance(tensor, Tensor) and name not in trained and name not in aliases
    }
    return VectorLayout({name: tensor.shape for name, tensor in trained.items()}, fixed, aliases)


Data = Any
"""Inputs and targets, row by row: a pair of tensors, or what ``coset.data.given`` makes one of; a loader's are put
together."""

PriorLike = Prior | float | Callable[[Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True, eq=False)
class Problem:
    """p_T(θ | Y) ∝ (p(Y | θ) p(θ))^{1/T} over the trained parameters θ of ``model``, flat vectors (D,).

    ``model`` is a copy in evaluation mode: dropout is off, running statistics are constants, and f(x; θ) is a function.
    ``x``, ``y`` lie on its device. ``start``: the weights the model came with (D,).
    """

    model: nn.Module
    layout: VectorLayout
    x: Tensor
    y: Tensor
    likelihood: Likelihood
    prior: Prior
    temperature: float
    start: Tensor

    @property
    def count(self) -> int:
        """N, the number of data points."""
        return len(self.x)

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        """f(x; θ), (n, …)."""
        return outputs_with(self.model, self.layout.views(flat), x)

    def log_likelihood(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Σ_i log p(y_i | f(x_i; θ)) over the given points, a scalar."""
        return self.likelihood.log_prob(self.outputs(flat, x), y).sum()

    def log_prior(self, flat: Tensor) -> Tensor:
        """log p(θ), a scalar."""
        return self.prior.log_prob(self.layout.views(flat))

    def log_joint(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(N/M) Σ_i log p(y_i | θ) + log p(θ), not tempered, a scalar; (x, y) are M of the N points, or all."""
        return self.count / len(x) * self.log_likelihood(flat, x, y) + self.log_prior(flat)

    def log_joints(self, flats: Tensor, x: Tensor, y: Tensor, *, own: bool = False) -> tuple[Tensor, Tensor]:
        """``log_joint`` of many networks (C, D) at once: values (C,) and gradients (C, D).

        x and y are for all of them, or with ``own`` (C, M, …), each for its own.
        """
        leaves, axis = flats.detach().requires_grad_(), 0 if own else None
        with torch.enable_grad():
            values = vmap(self.log_joint, (0, axis, axis))(leaves, x, y)
            # A value depends on its own row only; outside of vmap this costs less than a gradient inside.
            (gradients,) = torch.autograd.grad(values.sum(), leaves)
        return values.detach(), gradients

    def mean_loss_gradient(self, flat: Tensor, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        """−(1/M) Σ_i log p(y_i | θ), a detached scalar; its gradient is written to ``out`` (D,).

        The fast way for one network: leaves are the parameters' views, so that nothing but their gradients is made.
        """
        leaves = {name: view.detach().requires_grad_() for name, view in self.layout.views(flat).items()}
        loss, gradients = self._differentiated(outputs_with(self.model, leaves, x), y, list(leaves.values()))
        torch.cat(gradients, out=out)
        return loss

    def bind(self, flat: Tensor) -> Callable[[Tensor, Tensor], tuple[Tensor, list[Tensor]]]:
        """A function of x and y: the mean loss at what ``flat`` holds by then, and its gradients, one a parameter.

        Faster by a few hundredths of a step: a network of its own has its parameters in the memory of ``flat`` for
        good, where ``outputs_with`` would put them in and take them out again each time.
        """
        network, layout = copy.deepcopy(self.model), self.layout
        parameters = dict(network.named_parameters())
        leaves = [parameters[name] for name in layout.shapes]
        for leaf, view in zip(leaves, layout.views(flat.detach()).values(), strict=True):
            leaf.data = view
        return lambda x, y: self._differentiated(network(x), y, leaves)

    def _differentiated(self, outputs: Tensor, y: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The mean loss of outputs, and its gradients as flat vectors, one for each leaf."""
        loss = -self.likelihood.log_prob(outputs, y).mean()
        gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
        return loss.detach(), [gradient.reshape(-1) for gradient in gradients]

    def prior_moments(self) -> tuple[Tensor, Tensor] | None:
        """Means and standard deviations (D,) of a Gaussian prior; None of any other."""
        if not isinstance(self.prior, GaussianPrior):
            return None
        return flat_moments(self.prior, self.layout.shapes, self.start)


def pose(
    model: nn.Module,
    data: Data,
    likelihood: Likelihood | str,
    prior: PriorLike,
    temperature: float = 1.0,
    points: Sequence[Mapping[str, Tensor]] = (),
) -> Problem:
    """Check everything and put it together; the model itself is left alone.

    ``points``: weights whose buffers and frozen parameters stand in place of the model's: running statistics belong to
    the weights they were trained with. Of several networks they must agree.
    """
    check_model(model)
    x, y = data_tensors(data, model)
    check_positive("temperature", temperature)
    device = model_device(model)
    own = copy.deepcopy(model).eval()
    _take_points(own, points)
    layout = layout_of(own)
    start = layout.flatten(dict(own.named_parameters()))
    if not bool(start.isfinite().all()):
        raise InputError("model has weights that are NaN or infinite")
    chosen, believed = as_likelihood(likelihood), as_prior(prior)
    x = x.to(device, start.dtype) if x.is_floating_point() else x.to(device)
    outputs = probe(own, x[:2], "x")
    _require_function(own, x)
    targets = chosen.fit_targets(y.to(device), outputs)
    if isinstance(believed, Named):
        believed.check(layout.shapes)
    problem = Problem(own, layout, x, targets, chosen, believed, float(temperature), start)
    value = problem.log_prior(start)
    if not bool(value.isfinite()):
        raise InputError(f"the prior's log-density of the model's weights is {float(value)}; expected a finite number")
    return problem


def _take_points(model: nn.Module, networks: Sequence[Mapping[str, Tensor]]) -> None:
    """Copy into ``model`` what ``networks`` say of tensors that are not trained."""
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if tensor.requires_grad:
                continue
            for number, given in enumerate(network[name].detach() for network in networks if name in network):
                if given.shape[max(0, given.ndim - tensor.ndim) :] != tensor.shape:
                    raise InputError(
                        f"'{name}' has shape {tuple(given.shape)}; the model expects {tuple(tensor.shape)}"
                    )
                each = given.reshape(-1, *tensor.shape).to(tensor)
                if number == 0:
                    tensor.copy_(each[0])
                if not bool((each == tensor).all()):
                    raise InputError(
                        f"'{name}' is not inferred and differs between the networks given; expected one value"
                    )


def _require_function(model: nn.Module, x: Tensor) -> None:
    """f(x; θ) must not depend on what else is in the batch: a likelihood is a product over data points."""
    if len(x) < 5:
        return
    # Three at a time: two that are normalised are ±1, whatever they were.
    seen, beside = probe(model, x[:3], "x"), probe(model, torch.cat([x[:1], x[-2:]]), "x")
    allowed = 1e-3 * float(seen.detach().abs().max())
    if not torch.allclose(seen[0], beside[0], rtol=0, atol=allowed, equal_nan=True):
        raise InputError(
            "model: its output for an example depends on the others in the batch (a batch norm without running "
            "statistics, say); expected a function of each example alone"
        )


def data_tensors(data: Data, model: nn.Module | None = None) -> tuple[Tensor, Tensor]:
    """Inputs and targets as two tensors with as many rows; arrays get the type of ``model``'s weights."""
    pair = given_pair(data, model)
    check_pair(*pair, "x", "y")
    return pair
