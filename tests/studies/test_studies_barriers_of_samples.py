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
from coset_studies.posteriors.barriers_of_samples._report import ALIGNED, EACH, METHODS, NAIVE, WITHIN, sweep, verdict
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


def _numbers(**aligned: float) -> dict[str, float]:
    numbers = {f"{method.replace('-', '_')}_naive": 1.0 for method in METHODS}
    numbers |= {f"{method.replace('-', '_')}_aligned": aligned[method.replace("-", "_")] for method in METHODS}
    return numbers | {f"{word}_share": aligned[word] for word in aligned}


@pytest.mark.parametrize(
    ("aligned", "said"),
    [
        ({"laplace": 0.05, "sgmcmc": 0.02}, ["is yes", "Even so narrow a network aligns"]),
        ({"laplace": 0.3, "sgmcmc": 0.02}, ["is yes", "more than a tenth is left for dense Laplace."]),
        ({"laplace": 1.3, "sgmcmc": 0.5}, ["is mixed: alignment lowers only that of SGHMC"]),
        ({"laplace": 1.0, "sgmcmc": 1.1}, ["is no: alignment lowers neither"]),
    ],
)
def test_the_text_says_what_the_numbers_do(aligned: dict[str, float], said: list[str]) -> None:
    numbers = _numbers(map=0.05, mean_field=0.05, **aligned)
    text = verdict(numbers).format(**numbers)
    assert all(part in text for part in said)


@pytest.mark.parametrize(
    ("wide", "within", "said", "not_said"),
    [
        (0.6, 4.0, ["no smaller a share is left for SGHMC (60.0%)", "farther apart than aligned"], "closer than"),
        (0.01, 2.0, ["a smaller share of the barrier is left for MAP", "closer than aligned"], "no smaller a share"),
    ],
)
def test_the_text_says_what_width_does(wide: float, within: float, said: list[str], not_said: str) -> None:
    numbers: dict[str, Any] = _numbers(map=0.2, mean_field=0.2, laplace=0.2, sgmcmc=0.2) | {"widest": "many"}
    for word, left in (("map", 0.01), ("mean_field", 0.01), ("sgmcmc", wide)):
        numbers |= {f"widest_{word}_naive": 1.0, f"widest_{word}_aligned": left, f"widest_{word}_share": left}
    numbers |= {"widest_sgmcmc_each": wide, "widest_sgmcmc_within": 0.5}
    numbers |= {"widest_w2_within": within, "widest_w2_aligned": 3.0, "widest_w2_naive": 5.0}
    text = sweep(numbers).format(**numbers)
    assert all(part in text for part in said)
    assert not_said not in text
