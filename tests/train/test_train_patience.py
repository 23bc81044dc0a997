"""Runs that end early, and the loss of shares."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from coset.errors import InputError
from coset.train import DivergenceError, Recipe, evaluate, fit
from coset.train.loss import LOSSES

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(60, 5, generator=GENERATOR)
# Noise alone: validation soon gets worse.
Y = torch.randn(60, 1, generator=GENERATOR)
TRAIN, HELD = (X[:40], Y[:40]), (X[40:], Y[40:])
RECIPE = Recipe(epochs=60, batch_size=10, learning_rate=0.01, optimizer="adam", loss="mse", keep="best")


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 30), nn.Tanh(), nn.Linear(30, 1))


def test_a_run_ends_when_validation_has_not_improved_for_so_long():
    whole = fit(model(), *TRAIN, RECIPE, seed=0, validation=HELD, show=False)
    early = fit(model(), *TRAIN, RECIPE, seed=0, validation=HELD, patience=4, show=False)
    merits = [epoch.validation.merit for epoch in whole.history]
    best, ends = 0, len(merits)
    for epoch, merit in enumerate(merits):
        best = epoch if merit > merits[best] else best
        if epoch - best == 4:
            ends = epoch + 1
            break
    assert 4 < ends < 60
    assert len(early.history) == ends
    assert early.best_epoch == best
    assert [epoch.validation for epoch in early.history] == [epoch.validation for epoch in whole.history[:ends]]
    score = evaluate(model(), *HELD, params=early.params, loss="mse")
    assert -score.rmse == pytest.approx(merits[best])


def test_a_run_that_ended_early_stays_ended_and_one_that_was_stopped_goes_on(tmp_path):
    given = {"seed": 0, "validation": HELD, "patience": 4, "show": False}
    whole = fit(model(), *TRAIN, RECIPE, **given)
    path = tmp_path / "run.safetensors"
    fit(model(), *TRAIN, RECIPE, **given, checkpoint=path, callback=lambda moment: moment.epoch == 1)
    for _ in range(2):
        again = fit(model(), *TRAIN, RECIPE, **given, checkpoint=path)
        assert len(again.history) == len(whole.history)
        assert all(torch.equal(again.params[name], tensor) for name, tensor in whole.params.items())
    with pytest.raises(InputError, match="patience is 4 there and 5 here"):
        fit(model(), *TRAIN, RECIPE, **{**given, "patience": 5}, checkpoint=path)


def test_patience_needs_validation_data():
    with pytest.raises(InputError, match="patience is 3 and validation is None"):
        fit(model(), *TRAIN, replace(RECIPE, keep="last"), seed=0, patience=3)
    with pytest.raises(InputError, match="patience is 0"):
        fit(model(), *TRAIN, RECIPE, seed=0, validation=HELD, patience=0)


def test_the_loss_of_shares_is_the_divergence_of_coins():
    outputs = torch.randn(7, 2, generator=GENERATOR, dtype=torch.float64)
    shares = torch.rand(7, 2, generator=GENERATOR, dtype=torch.float64)
    shares[0] = torch.tensor([0.0, 1.0])
    coins = torch.distributions.Bernoulli
    expected = torch.distributions.kl_divergence(coins(probs=shares), coins(logits=outputs)).mean()
    loss = LOSSES["shares"]
    torch.testing.assert_close(loss.mean(outputs, shares, 0.0), expected)
    torch.testing.assert_close(loss.mean(shares[1:].logit(), shares[1:], 0.0), torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(loss.score(outputs, shares), (outputs.sigmoid() - shares).square().mean(1).sum())
    with pytest.raises(InputError, match="expects numbers from 0 to 1"):
        loss.fit_targets(shares + 0.5, outputs, "y")


def test_the_last_finite_loss_is_told():
    recipe = Recipe(epochs=5, batch_size=10, learning_rate=1e12, loss="mse")
    with pytest.raises(
        DivergenceError, match=r"the loss is (inf|nan) in epoch \d, step \d, .* the last finite one was \d"
    ):
        fit(model().double(), TRAIN[0].double(), TRAIN[1].double(), recipe, seed=0, show=False)
