"""Loss and accuracy of stacks of networks on data, by the formulas of ``coset.train.evaluate``."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from coset.data import Split
from coset.train import Metrics
from coset.train.check import probe
from coset.train.loss import LOSSES
from coset.train.metrics import BATCH, evaluation_mode
from coset.zoo._stacked import each, outputs_of


def measure_stack(model: nn.Module, tensors: Mapping[str, Tensor], part: Split, loss: str) -> list[Metrics]:
    """The metrics of every network of a stack on x (examples, …) and y; in evaluation mode, without gradients."""
    rule, count = LOSSES[loss], len(next(iter(tensors.values())))
    total, score = torch.zeros(2, count, dtype=torch.float64)
    with evaluation_mode(model), torch.no_grad():
        targets = rule.fit_targets(part.y, probe(model, part.x[:2], "x"), "y")
        for start in range(0, len(part), BATCH):
            x, y = part.x[start : start + BATCH], targets[start : start + BATCH]
            outputs = outputs_of(model, tensors, x, shared=True)
            total += each(lambda o, t: rule.mean(o, t, 0.0), outputs, y, shared=True).double().cpu() * len(x)
            score += each(rule.score, outputs, y, shared=True).double().cpu()
    sums = zip(total.tolist(), score.tolist(), strict=True)
    return [Metrics.of_sums(rule, lost, right, len(part)) for lost, right in sums]
