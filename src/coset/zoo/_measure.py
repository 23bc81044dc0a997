"""Loss and accuracy of stacks of networks on data, by the formulas of ``coset.train.evaluate``."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from coset.data import Split
from coset.train import Metrics
from coset.train.check import probe
from coset.train.loss import LOSSES
from coset.train.metrics import BATCH, evaluation_mode
from coset.zoo._stacked import each, images_inside, outputs_of

FEW = 64
"""So many images at a time: what grouped convolutions give of them stays in the processor's caches."""


def measure_stack(model: nn.Module, tensors: Mapping[str, Tensor], part: Split, loss: str) -> list[Metrics]:
    """The metrics of every network of a stack on x (examples, …) and y; in evaluation mode, without gradients."""
    rule, count = LOSSES[loss], len(next(iter(tensors.values())))
    total, score = torch.zeros(2, count, dtype=torch.float64)
    with evaluation_mode(model), torch.no_grad():
        targets = rule.fit_targets(part.y, probe(model, part.x[:2], "x"), "y")
        for start in range(0, len(part), BATCH):
            x, y = part.x[start : start + BATCH], targets[start : start + BATCH]
            outputs = _outputs(model, tensors, x, count)
            total += each(lambda o, t: rule.mean(o, t, 0.0), outputs, y, shared=True).double().cpu() * len(x)
            score += each(rule.score, outputs, y, shared=True).double().cpu()
    sums = zip(total.tolist(), score.tolist(), strict=True)
    return [Metrics.of_sums(rule, lost, right, len(part)) for lost, right in sums]


def _outputs(model: nn.Module, tensors: Mapping[str, Tensor], x: Tensor, count: int) -> Tensor:
    """Outputs (N, B, …) of ``count`` networks for the same x (B, …)."""
    if x.ndim != 4:
        return outputs_of(model, tensors, x, shared=True)
    # Grouped convolutions read a copy of the images for every network, beside its filters, faster.
    copies = (images_inside(few.expand(count, *few.shape)) for few in torch.split(x, FEW))
    return torch.cat([outputs_of(model, tensors, few, shared=False) for few in copies], 1)
