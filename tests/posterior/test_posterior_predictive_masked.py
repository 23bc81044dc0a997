"""Classes of probability 0: logits of −∞ have a predictive, too."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

import coset.posterior.prediction.chunks as chunks
from coset.distribution import MeanField
from coset.models import MLP
from coset.posterior.prediction._predictive import predictive
from coset.posterior.prediction.draws import draws_of

CLASSES = 3


class Masked(nn.Module):
    """Class 0 is no answer where the first input is positive."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = MLP(4, [6], CLASSES).double()

    def forward(self, x):
        return self.body(x).masked_fill((x[:, :1] > 0) & (torch.arange(CLASSES) == 0), -math.inf)


@pytest.mark.parametrize("work", [0, 2**22], ids=["alone", "together"])
def test_a_masked_class_adds_nothing_to_the_entropies(work, monkeypatch):
    monkeypatch.setattr(chunks, "OVERHEAD_WORK", work)
    model = Masked().eval()
    mean = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    q = MeanField(mean, {name: torch.full_like(tensor, 0.3) for name, tensor in mean.items()})
    x = torch.randn(23, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    barred = x[:, 0] > 0
    result = predictive(model, q, x, samples=10, batch_size=7)
    draws = draws_of(q, 10, 0)
    outputs = torch.stack([functional_call(model, draws.draw(j), (x,)).detach() for j in range(10)])
    logs = outputs.log_softmax(-1)
    assert bool((result.probabilities[barred, 0] == 0).all())
    torch.testing.assert_close(result.expected_entropy, torch.special.entr(logs.exp()).sum(-1).mean(0))
    torch.testing.assert_close(result.entropy, torch.special.entr(logs.exp().mean(0)).sum(-1))
    torch.testing.assert_close(result.mutual_information, result.entropy - result.expected_entropy)
    assert bool((result.mutual_information > 0).all())
    # The entropies of a model without the class.
    rest = outputs[:, barred, 1:].log_softmax(-1)
    torch.testing.assert_close(result.expected_entropy[barred], -(rest.exp() * rest).sum(-1).mean(0))
