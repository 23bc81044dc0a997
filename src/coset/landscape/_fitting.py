"""``fit_curve``: a curve of low loss between two networks (Garipov et al. 2018, section 3; thesis, section 4.2)."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from typing import Literal

import torch
from torch import Tensor, nn

from coset import callbacks
from coset._batches import Labelled, check_repeatable, is_pair, labelled_batches
from coset._checks import check_choice, is_count, is_number
from coset._show.progress import progress
from coset.data import given
from coset.errors import InputError
from coset.landscape._criterion import Criterion, Mean, mean_loss
from coset.landscape._curves import KINDS, Bezier, PolygonalChain
from coset.landscape._path import Point, between, check_joinable, params_of
from coset.running import Network, owners, suited, whole_weights, with_weights
from coset.train import Recipe
from coset.train.check import probe
from coset.train.loop import DivergenceError
from coset.train.metrics import evaluation_mode
from coset.train.modes import still_modules, training_mode
from coset.train.optimizer import make_optimizer
from coset.train.randomness import own_global_state, seed_global_state, stream, stream_seed
from coset.train.schedule import learning_rate as rate_at

_ADVICE = "a lower learning_rate may help"
_RECIPE = Recipe(epochs=1, batch_size=128, learning_rate=1e-3, optimizer="adam", schedule="linear")
"""Without a decay: that of a fit is of points on the curve, not of its bends. The rate is set at every step."""


@dataclass(frozen=True)
class CurveStep:
    """A step of a fit, numbered from 1: the τ it drew and the loss there, on its batch and without the decay."""

    number: int
    tau: float
    loss: float


Callback = callbacks.Callback[CurveStep]
"""Called after every step; returning True stops the fit there."""


@dataclass(frozen=True, eq=False)
class FittedCurve:
    """A path of low loss: the ``curve`` and the steps that led to it. ``stopped``: the callback ended the fit."""

    curve: Bezier | PolygonalChain
    history: tuple[CurveStep, ...]
    stopped: bool

    def __call__(self, tau: float, /) -> dict[str, Tensor]:
        """The point at τ."""
        return self.curve(tau)

    @property
    def control(self) -> tuple[Mapping[str, Tensor], ...]:
        """The control points, the two ends among them."""
        return self.curve.control


def fit_curve(
    model: nn.Module,
    a: Point,
    b: Point,
    data: Labelled,
    *,
    kind: str = "bezier",
    bends: int = 1,
    steps: int = 1000,
    learning_rate: float = 1e-3,
    batch_size: int = 128,
    criterion: Criterion = "cross-entropy",
    weight_decay: float = 0.0,
    mode: Literal["eval", "train"] = "eval",
    seed: int = 0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> FittedCurve:
    """Bend the line from ``a`` to ``b`` so that the loss along it is low; the ends and the model stay as they are.

    Minimises E_{τ~U(0,1)} [loss(θ(τ)) + weight_decay/2·‖θ(τ)‖²] over the ``bends``, the control points between the
    ends, which begin evenly spaced on the line. Each of the ``steps`` draws a τ and a batch of ``data`` (tensors (x, y)
    or a loader, read again and again); Adam, the rate decays linearly to 0. Buffers, and parameters that do not require
    gradients, stay on the line. ``kind``: "bezier" or "chain" (straight pieces).

    ``mode``: batch norm uses the statistics on the line ("eval"), as in a plain evaluation of the curve, or those of
    the batch ("train"; dropout is on, too): then evaluate with statistics computed anew at each point, which is what
    ``at`` of ``barrier`` is for. The same ``seed`` gives the same curve.
    """
    data = given(data, model)
    _check_numbers(bends, steps, learning_rate, batch_size, weight_decay, seed)
    callbacks.check_callback(callback)
    check_choice("kind", kind, KINDS)
    if mode not in ("eval", "train"):
        raise InputError(f"mode is {mode!r}; expected 'eval' or 'train'")
    recipe = replace(_RECIPE, batch_size=batch_size, learning_rate=float(learning_rate))
    fit = _Fit(model, (params_of(a, "a"), params_of(b, "b")), KINDS[kind], bends, mean_loss(criterion), weight_decay)
    still, taus = still_modules(model), stream("tau", seed, 0)
    history: list[CurveStep] = []
    stopped = False
    with own_global_state(fit.device), evaluation_mode(model), progress("fitting a curve", steps, show=show) as bar:
        # Dropout draws from the global generators, and so do loaders that shuffle.
        seed_global_state(stream_seed("model", seed, 0), fit.device)
        batches = _endless(data, batch_size, seed)
        first = next(batches)
        fit.check(first[0])
        if mode == "train":
            training_mode(model, still)
        for number, (inputs, targets) in enumerate(islice(chain([first], batches), steps)):
            tau = float(torch.rand((), generator=taus, dtype=torch.float64))
            loss = fit.step(tau, inputs, targets, rate_at(recipe, number, steps))
            if not math.isfinite(loss):
                raise DivergenceError(f"the loss is {loss} at step {number + 1}, τ = {tau:.3g}; {_ADVICE}")
            history.append(CurveStep(number + 1, tau, loss))
            bar.advance(note=f"loss {loss:.4f}")
            if callback is not None:
                with own_global_state(fit.device):
                    stopped = bool(callback(history[-1]))
            if stopped:
                break
    return FittedCurve(fit.result(), tuple(history), stopped)


class _Fit:
    """The state of a fit: control points that move, tied tensors under one name each, and their optimizer."""

    def __init__(
        self,
        model: nn.Module,
        ends: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
        kind: Callable[[Sequence[Point]], Bezier | PolygonalChain],
        bends: int,
        mean: Mean,
        weight_decay: float,
    ) -> None:
        check_joinable(ends, ("a", "b"))
        self.model, self.mean, self.weight_decay, self.kind = model, mean, weight_decay, kind
        self.ends = [{name: tensor.detach() for name, tensor in end.items()} for end in ends]
        self.owner, self.device = owners(model), next(iter(ends[0].values())).device
        self.trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        if not self.trained:
            raise InputError("model has no parameter that requires gradients; expected at least one that may bend")
        a, b = (whole_weights(model, end) for end in self.ends)
        line = [between(a, b, number / (bends + 1)) for number in range(1, bends + 1)]
        # Copies: names that share memory in both ends by chance, not in the model, must be free to move apart.
        self.bends = [{name: tensor.clone() for name, tensor in point.items()} for point in line]
        self.curve = kind([a, *self.bends, b])
        moving = [bend[name] for bend in self.bends for name in self.trained]
        self.optimizer = make_optimizer(moving, _RECIPE)

    def check(self, inputs: Tensor) -> None:
        """Raise if the model cannot take the inputs."""
        start = self.curve(0)
        with_weights(self.model, start, lambda network: probe(network, suited(inputs[:2], start), "data"))

    def step(self, tau: float, inputs: Tensor, targets: Tensor, rate: float) -> float:
        """One step at τ on a batch; the loss before it."""
        point = {name: tensor.detach() for name, tensor in self.curve(tau).items()}
        leaves = [point[name].requires_grad_() for name in self.trained]

        def batch_loss(network: Network) -> Tensor:
            try:
                outputs = network(suited(inputs, point))
            except ValueError as problem:
                # As batch norm in training mode, which needs more than one example.
                raise InputError(f"the model cannot take a batch of {len(inputs)}: {problem}") from problem
            return self.mean(outputs, targets.to(self.device))

        with torch.enable_grad():
            loss = with_weights(self.model, point, batch_loss)
            gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
        # θ(τ) = Σ_k w_k P_k, so the gradient of P_k is w_k times that of θ(τ): the curve needs no graph of its own.
        for bend, weight in zip(self.bends, self.curve.weights(tau)[1:-1], strict=True):
            for name, leaf, gradient in zip(self.trained, leaves, gradients, strict=True):
                bend[name].grad = weight * gradient.add(leaf.detach(), alpha=self.weight_decay)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return float(loss.detach())

    def result(self) -> Bezier | PolygonalChain:
        """The curve as it is now, with all names of the ends."""
        for bend in self.bends:
            for name in self.trained:
                bend[name].grad = None
                if not bool(bend[name].isfinite().all()):
                    raise DivergenceError(f"'{name}' is no longer finite; {_ADVICE}")
        a, b = self.ends
        return self.kind([a, *({name: bend[self.owner[name]] for name in a} for bend in self.bends), b])


def _endless(data: Labelled, batch_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches for ever; tensors come in a new order in each pass."""
    check_repeatable(data, "data")
    for number in count():
        if is_pair(data):
            next(labelled_batches(data))  # raises unless they belong together
            x, y = data
            order = torch.randperm(len(x), generator=stream("order", seed, number))
            for start in range(0, len(x), batch_size):
                picked = order[start : start + batch_size]
                yield x[picked.to(x.device)], y[picked.to(y.device)]
        else:
            yield from labelled_batches(data, batch_size)


def _check_numbers(
    bends: int, steps: int, learning_rate: float, batch_size: int, weight_decay: float, seed: int
) -> None:
    whole = {"bends": (bends, 1), "steps": (steps, 1), "batch_size": (batch_size, 1), "seed": (seed, 0)}
    for what, (number, least) in whole.items():
        if not is_count(number, least):
            raise InputError(f"{what} is {number!r}; expected a whole number of at least {least}")
    if not (is_number(learning_rate) and learning_rate > 0):
        raise InputError(f"learning_rate is {learning_rate!r}; expected a positive number")
    if not (is_number(weight_decay) and weight_decay >= 0):
        raise InputError(f"weight_decay is {weight_decay!r}; expected a number of at least 0")
