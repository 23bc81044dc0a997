"""Parts of the study of functions between posteriors: the points held out, numbers by hand, and what the text says."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from coset.store import Store
from coset.study import Context
from coset_studies._shared.wave import wave
from coset_studies.rossi.functions import CLAIMS, Config, held_out, run

TINY = Config(
    data="wave",
    widths=(6,),
    activation="tanh",
    noise=0.4,
    gain=3.0,
    bias_std=1.0,
    temperatures=(0.1, 1.0),
    epochs=20,
    held_out=0,
    restarts=1,
    draws=20,
    samples=4,
    points=5,
)


def _context(folder: Path, seed: int = 0) -> Context:
    return Context(seed, torch.device("cpu"), Store(folder / "store"), show=False)


def test_points_are_held_out_once_and_by_the_seed(tmp_path: Path) -> None:
    data = wave()
    one, again, other = (held_out(data, 10, _context(tmp_path, seed)) for seed in (0, 0, 1))
    assert (len(one.train), len(one.test)) == (len(data.train) - 10, 10)
    pairs = torch.cat([torch.cat([part.x, part.y], 1) for part in (one.train, one.test)])
    whole = torch.cat([data.train.x, data.train.y], 1)
    assert sorted(pairs.tolist()) == sorted(whole.tolist())
    assert torch.equal(one.test.x, again.test.x)
    assert one.fingerprint == again.fingerprint
    assert not torch.equal(one.test.x, other.test.x)
    assert len({data.fingerprint, one.fingerprint, other.fingerprint}) == 3


def test_numbers_are_those_of_the_profiles(tmp_path: Path) -> None:
    findings = run(TINY, _context(tmp_path))
    profiles = findings.tables["profiles"]
    columns = dict(zip(profiles.columns, zip(*profiles.rows, strict=True), strict=True))
    taus = columns["τ"]
    assert taus == (0.0, 0.25, 0.5, 0.75, 1.0)
    for prefix, temperature in (("", "0.1"), ("other_", "1")):
        for path in ("naive", "aligned"):
            values = columns[f"T = {temperature}, {path}, train"]
            drops = [(1 - tau) * values[0] + tau * values[-1] - value for tau, value in zip(taus, values, strict=True)]
            assert findings.numbers[f"{prefix}barrier_{path}_train"] == pytest.approx(max(drops), rel=1e-12)
            assert findings.numbers[f"{prefix}{path}_train"] == values[2]
            # ℓ = −L: ℓ_τ lies above its chord by the drop.
            square = findings.numbers[f"{prefix}w2_{path}"] ** 2
            inner = zip(taus[1:-1], drops[1:-1], strict=True)
            lowest = min(-2 * drop / (tau * (1 - tau) * square) for tau, drop in inner)
            assert findings.numbers[f"{prefix}convexity_{path}"] == pytest.approx(lowest, rel=1e-9)
            assert max(drops) <= max(0.0, findings.numbers[f"{prefix}bound_{path}"]) * (1 + 1e-12)
        assert findings.numbers[f"{prefix}w2_aligned"] < findings.numbers[f"{prefix}w2_naive"]
    targets = wave().train.y.double()
    spread = targets.std(correction=0)
    by_hand = torch.distributions.Normal(targets.mean(), spread).log_prob(targets).mean()
    assert findings.numbers["constant"] == pytest.approx(float(by_hand), rel=1e-6)
    assert findings.numbers["group"] == "permutations and signs"
    assert math.isfinite(findings.numbers["barrier_error_naive_train"])


def test_relu_units_have_no_signs_to_align(tmp_path: Path) -> None:
    findings = run(replace(TINY, activation="relu", temperatures=(0.1,)), _context(tmp_path))
    assert findings.numbers["group"] == "permutations"
    assert "other_temperature" not in findings.numbers


@pytest.mark.parametrize(
    ("naive", "aligned", "halfway", "verdicts"),
    [
        (2.0, 0.1, -2.5, ["holds", "holds", "cannot tell"]),
        (2.0, 0.3, -2.5, ["holds", "fails", "cannot tell"]),
        (0.5, 0.01, -1.0, ["fails", "holds", "cannot tell"]),
        (0.0, 0.0, -1.4, ["cannot tell", "cannot tell", "cannot tell"]),
    ],
)
def test_the_verdicts_are_what_the_numbers_say(
    naive: float, aligned: float, halfway: float, verdicts: list[str]
) -> None:
    numbers = {
        "barrier_naive_train": naive,
        "barrier_error_naive_train": 0.01,
        "barrier_aligned_train": aligned,
        "barrier_error_aligned_train": 0.001,
        "naive_train": halfway,
        "constant": -1.4,
    }
    results = SimpleNamespace(numbers=numbers, tables={})
    assert [str(claim.judge(results).verdict) for claim in CLAIMS] == verdicts
