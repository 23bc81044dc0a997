"""Loss and accuracy (or root mean square error) of a network on given data."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset._checks import check_choice, is_count
from coset.errors import InputError
from coset.running import Network, with_weights
from coset.train.check import check_pair, model_device, probe
from coset.train.loss import LOSSES, Loss

# Examples at a time where no gradients are kept.
BATCH = 512


@dataclass(frozen=True)
class Metrics:
    """Means over ``count`` examples: the loss, and ``accuracy`` in [0, 1] or ``rmse``, whichever the loss implies."""

    loss: float
    accuracy: float | None
    rmse: float | None
    count: int

    @classmethod
    def of_sums(cls, loss: Loss, total: float, score: float, count: int) -> "Metrics":
        """From the sums over the examples of the loss and of its score."""
        mean = score / count
        accuracy, rmse = (mean, None) if loss.measure == "accuracy" else (None, mean**0.5)
        return cls(total / count, accuracy, rmse, count)

    @property
    def merit(self) -> float:
        """What the best epoch has most of: the accuracy, or minus the RMSE."""
        if self.accuracy is not None:
            return self.accuracy
        assert self.rmse is not None
        return -self.rmse


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the length of the block; every module then gets back the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def evaluate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    params: Mapping[str, Tensor] | None = None,
    loss: str = "cross-entropy",
    batch_size: int = BATCH,
) -> Metrics:
    """The metrics of ``model`` (with ``params`` in place of its own weights, if given) on x (N, …) and y (N, …).

    In evaluation mode and without gradients; the model and its mode stay as they are. Data go to the device of the
    weights batch by batch. ``loss``: "cross-entropy" (y integer labels), "mse", "binary-cross-entropy" or "shares"
    (y of the shape of the outputs).
    """
    check_choice("loss", loss, LOSSES)
    if not is_count(batch_size):
        raise InputError(f"batch_size is {batch_size!r}, expected a whole number of at least 1")
    check_pair(x, y, "x", "y")
    device = model_device(model)
    if params is not None:
        _check_params(model, params)
        device = next(iter(params.values())).device

    def measure(network: Network) -> Metrics:
        targets = LOSSES[loss].fit_targets(y, probe(network, x[:2].to(device), "x"), "y")
        return evaluate_batches(network, x, targets, LOSSES[loss], device, batch_size)

    with evaluation_mode(model):
        return measure(model) if params is None else with_weights(model, params, measure)


def evaluate_batches(
    model: Network, x: Tensor, y: Tensor, loss: Loss, device: torch.device, batch_size: int = BATCH
) -> Metrics:
    """The metrics of a model that is already in evaluation mode, on data that are already checked."""
    total, score = torch.zeros(2, dtype=torch.float64, device=device)
    with torch.inference_mode():
        for start in range(0, len(x), batch_size):
            inputs, targets = (part[start : start + batch_size].to(device) for part in (x, y))
            outputs = model(inputs)
            total += loss.mean(outputs, targets, 0.0).double() * len(inputs)
            score += loss.score(outputs, targets).double()
    return Metrics.of_sums(loss, float(total), float(score), len(x))


def _check_params(model: nn.Module, params: Mapping[str, Tensor]) -> None:
    """The names and shapes of ``params`` must be those of the model's ``state_dict``."""
    expected = model.state_dict()
    for name in expected.keys() ^ params.keys():
        where, other = ("the model", "params") if name in expected else ("params", "the model")
        raise InputError(f"params: {name} is in {where} but not in {other}")
    for name, tensor in expected.items():
        if tensor.shape != params[name].shape:
            raise InputError(
                f"params: {name} has shape {tuple(params[name].shape)}, the model expects {tuple(tensor.shape)}"
            )
