"""Parts of the study of UCI regression: what tells starting weights apart, R̂, the generated data, the store."""

import math
from pathlib import Path

import pytest
import torch

from coset.store import Store
from coset.study import Context
from coset_studies.posteriors.uci._methods import Settings, Weights, case, generated, median_rhat, run_methods


def test_weights_are_told_apart_by_their_content() -> None:
    weights = Weights({"a": torch.arange(5000.0), "b": torch.zeros(2)})
    assert repr(weights) == repr(Weights({name: tensor.clone() for name, tensor in weights.items()}))
    changed = torch.arange(5000.0)
    changed[2500] += 1e-3
    assert repr(weights) != repr(Weights({"a": changed, "b": torch.zeros(2)}))


def test_rhat_by_hand() -> None:
    # Halves (0, 2), (0, 2), (4, 6), (4, 6): means 1, 1, 5, 5 of variance 16/3, variances 2, n = 2.
    values = torch.tensor([[0.0, 2.0, 0.0, 2.0], [4.0, 6.0, 4.0, 6.0]]).unsqueeze(-1)
    assert median_rhat(values) == pytest.approx(math.sqrt(1 / 2 + (16 / 3) / 2), rel=1e-12)


def test_rhat_of_independent_draws_is_one() -> None:
    values = torch.randn(4, 2000, 11, generator=torch.Generator().manual_seed(0))
    assert median_rhat(values) == pytest.approx(1.0, abs=2e-3)


def test_generated_splits_are_normalised_and_differ() -> None:
    one, two = generated(0), generated(1)
    for part in (one.train.x, one.train.y):
        torch.testing.assert_close(part.mean(0), torch.zeros(part.shape[1]), atol=1e-5, rtol=0)
        torch.testing.assert_close(part.std(0, unbiased=False), torch.ones(part.shape[1]), atol=1e-5, rtol=0)
    assert not torch.equal(one.train.x, two.train.x)
    assert torch.equal(one.test.y, generated(0).test.y)


def test_methods_on_a_split_are_stored(data_folder: Path, tmp_path: Path) -> None:
    tiny = Settings(
        width=5, members=2, steps=8, vi_steps=8, sghmc_burn_in=5, sghmc_draws=4, sghmc_thin=1, leapfrog_steps=3,
        hmc_warmup=3, hmc_draws=4, samples=4,
    )  # fmt: skip
    store = Store(tmp_path / "store")
    context = Context(0, torch.device("cpu"), store, show=False)
    first = run_methods(case(context, "uci/yacht", 3, tiny))
    written = {row.key: row.created for row in store.entries()}
    assert len(written) == 5  # Laplace is not stored, and the single network is a member of the ensemble
    again = run_methods(case(Context(0, torch.device("cpu"), store, show=False), "uci/yacht", 3, tiny))
    assert again == first
    assert {row.key: row.created for row in store.entries()} == written
