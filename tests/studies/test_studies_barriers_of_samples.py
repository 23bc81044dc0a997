"""Parts of the study of barriers between draws: draws in one gauge, numbers by hand, and what the text says."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import functional_call

from coset import discover
from coset.distribution import Samples
from coset.distribution.divergences import wasserstein2
from coset.models import MLP
from coset.store import Store
from coset.study import Context
from coset_studies.posteriors.barriers_of_samples._page import ALIGNED, EACH, METHODS, NAIVE, WITHIN
from coset_studies.posteriors.barriers_of_samples.study import Config, in_one_gauge, run

TINY = Config(
    data="digits",
    networks=((4,), (6,)),
    prior=0.3,
    temperature=1.0,
    epochs=2,
    step_size=1e-5,
    burn_in=4,
    thin=2,
    chains=2,
    draws=2,
    restarts=1,
    dense=320,
    samples=4,
    points=5,
)


def _context(folder: Path) -> Context:
    return Context(0, torch.device("cpu"), Store(folder / "store"), show=False)


def test_draws_that_differ_by_an_element_each_meet_in_one_gauge(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = MLP(3, [6, 5], 2, activation="tanh").double()
    x = torch.randn(7, 3, dtype=torch.float64, generator=generator)
    sym = discover(model, x).restrict(scales=False)
    centre = {name: tensor.detach() for name, tensor in model.named_parameters()}
    draws = [
        {name: t + 0.01 * torch.randn(t.shape, generator=generator, dtype=t.dtype) for name, t in centre.items()}
        for _ in range(6)
    ]
    q0 = Samples.stack(draws, 2)
    q1 = Samples.stack([sym.act(sym.random(generator), draw) for draw in draws], 2)
    first, second = in_one_gauge(sym, q0, q1, _context(tmp_path))
    assert float(wasserstein2(q0, q1)) > 0.5
    assert float(wasserstein2(first, second)) < 1e-9
    for before, after in ((q0, first), (q1, second)):
        assert (after.chains, after.draws) == (2, 3)
        for old, new in zip(before, after, strict=True):
            torch.testing.assert_close(functional_call(model, new, (x,)), functional_call(model, old, (x,)))


def test_every_method_has_its_paths_and_its_numbers(tmp_path: Path) -> None:
    findings = run(TINY, _context(tmp_path))
    table = findings.tables["barriers"]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    found = {(row["hidden units"], row["method"], row["path"]): row for row in rows}
    # 4 hidden units are 310 weights, 6 are 460: too many for a dense covariance here.
    expected = {("4", METHODS[method], path) for method in METHODS for path in (NAIVE, ALIGNED)}
    expected |= {("6", METHODS[method], path) for method in METHODS if method != "laplace" for path in (NAIVE, ALIGNED)}
    expected |= {(units, METHODS["sgmcmc"], path) for units in ("4", "6") for path in (EACH, WITHIN)}
    assert set(found) == expected
    profiles = findings.tables["profiles"]
    columns: dict[str, Any] = dict(zip(profiles.columns, zip(*profiles.rows, strict=True), strict=True))
    for method, title in METHODS.items():
        word = method.replace("-", "_")
        for path in (NAIVE, ALIGNED):
            values = columns[f"{title}, {path}, test"]
            taus = columns["τ"]
            chord = [(1 - tau) * values[0] + tau * values[-1] for tau in taus]
            drop = max(high - value for high, value in zip(chord, values, strict=True))
            assert findings.numbers[f"{word}_{path}"] == pytest.approx(drop, rel=1e-12)
            assert found["4", title, path]["test barrier"] == findings.numbers[f"{word}_{path}"]
        # Alignment looks for a shorter way; of draws and dense Gaussians by their marginals.
        assert found["4", title, ALIGNED]["W₂"] < found["4", title, NAIVE]["W₂"]
    assert found["4", "MAP", NAIVE]["± test"] == 0.0
    # Of draws that depend on each other it is not known.
    assert found["4", "SGHMC", NAIVE]["± test"] is None
    assert found["4", "mean-field VI", NAIVE]["± test"] > 0.0
