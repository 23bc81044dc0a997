"""Parts of the study of nearest equivalent modes: against densities, moments and planted numbers, and what it says."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coset.distribution import MeanField
from coset.models import MLP, build
from coset.posterior.symmetrized import nearest_mode
from coset.store import Store
from coset.study import Context, Findings
from coset.symmetry import Symmetry, discover
from coset.train import Recipe
from coset_studies.gelberg.modes._found import Case, Run, exponents, shortfall, spread, thresholds
from coset_studies.gelberg.modes._posteriors import Sampling, interpolated, late_rise, likeliest_exchange, separations
from coset_studies.gelberg.modes.study import Config, run

UNITS = 5


def _posterior(std: float | None = None) -> tuple[Symmetry, MeanField]:
    """A mean field of a 3-5-2 network in float64; deviations all ``std``, or each its own."""
    torch.manual_seed(0)
    model = MLP(3, [UNITS], 2, activation="tanh").double().eval()
    sym = discover(model, torch.zeros(2, 3, dtype=torch.float64)).restrict(scales=False, signs=False)
    mean = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    spread = {
        name: torch.rand_like(tensor) + 0.1 if std is None else torch.full_like(tensor, std)
        for name, tensor in mean.items()
    }
    return sym, MeanField(mean, spread)


def test_log_ratios_are_those_of_the_density() -> None:
    sym, q = _posterior()
    g, ratios = likeliest_exchange(sym, q)
    expected = []
    for i, j in itertools.combinations(range(UNITS), 2):
        order = torch.arange(UNITS)
        order[i], order[j] = j, i
        moved = sym.act(sym.element({sym.permuting[0]: order}), q.mean)
        expected.append(float(q.log_prob(moved) - q.log_prob(q.mean)))
    assert ratios.tolist() == pytest.approx(expected, rel=1e-10)
    assert float(q.log_prob(sym.act(g, q.mean)) - q.log_prob(q.mean)) == pytest.approx(max(expected), rel=1e-10)


def test_distances_in_deviations() -> None:
    sym, q = _posterior()
    g, ratios = likeliest_exchange(sym, q)
    sigmas, along = separations(sym, q, g)
    assert -0.5 * sigmas**2 == pytest.approx(float(ratios.max()), rel=1e-10)
    assert 0 < along < sigmas

    sym, q = _posterior(std=0.2)
    g, _ = likeliest_exchange(sym, q)
    expected = nearest_mode(sym, q).distance / 0.2
    assert separations(sym, q, g) == pytest.approx((expected, expected), rel=1e-10)
    assert separations(sym, q, sym.identity()) == (0.0, 0.0)


def test_halfway_has_the_moments_of_both_modes() -> None:
    sym, q = _posterior()
    g, _ = likeliest_exchange(sym, q)
    halfway, other = interpolated(sym, q, g), sym.act(g, q)
    for name, mean in q.mean.items():
        first = (mean + other.mean[name]) / 2
        second = (mean.square() + q.std[name].square() + other.mean[name].square() + other.std[name].square()) / 2
        torch.testing.assert_close(halfway.mean[name], first)
        torch.testing.assert_close(halfway.std[name].square() + first.square(), second)
    # The exchange of the two units does not change it, and to interpolate again gives nothing new.
    again = interpolated(sym, halfway, g)
    for name in q.mean:
        torch.testing.assert_close(again.mean[name], halfway.mean[name])
        torch.testing.assert_close(again.std[name], halfway.std[name])
    assert separations(sym, halfway, g)[0] == pytest.approx(0, abs=1e-12)


def test_exponents_of_planted_powers() -> None:
    family = {width: [{"trained": 3 * width**power} for power in (-0.5, -1.0)] for width in (5, 50, 1000)}
    assert exponents(family, "trained") == pytest.approx([-0.5, -1.0], rel=1e-12)


CONSTANT = Run("constant", None, (5, 20), 10, 100, 1e-3, "constant", 1)
ANNEALED = Run("annealed", None, (5, 20), 10, 200, 1e-2, "cosine", 1)


def test_settings_reach_the_inference() -> None:
    assert (
        ANNEALED.settings.items()
        >= {"epochs": 10, "batch_size": 200, "learning_rate": 1e-2, "schedule": "cosine"}.items()
    )
    for change in ({"epochs": 40}, {"batch_size": 200}, {"learning_rate": 1e-2}, {"schedule": "cosine"}):
        assert replace(CONSTANT, **change).told != CONSTANT.told


def test_thresholds_are_the_exact_ones() -> None:
    """To the digits that the study of one Gaussian fitted to two prints."""
    assert thresholds() == pytest.approx((2.9217, 5.6002), abs=5e-5)


def test_statistics_over_seeds() -> None:
    seeds = [{"sigmas": 1.0}, {"sigmas": 3.0}]
    assert spread(seeds, "sigmas") == pytest.approx(math.sqrt(2))
    assert spread(seeds[:1], "sigmas") is None
    cases = {Case(100, CONSTANT, 5): -0.9, Case(100, ANNEALED, 5): -0.4, Case(50, ANNEALED, 5): -0.1}
    found = {case: [{"elbo": elbo}] for case, elbo in cases.items()}
    assert [shortfall(found, case) for case in found] == pytest.approx([0.5, 0.0, 0.0])
    # Of ten epochs the last three, of four the last.
    assert late_rise([float(epoch**2) for epoch in range(10)]) == 81 - 36
    assert late_rise([0.0, 1.0, 4.0, 9.0]) == 5
    assert late_rise([7.0]) == 0


def _nearest_at_start(width: int, seed: int) -> float:
    """√2·min ‖ν_i − ν_j‖ / ‖ω‖ of the network that training begins with."""
    model = build("mlp", seed=seed, in_features=64, widths=[width], out_features=10)
    weights = [tensor.double() for tensor in model.state_dict().values()]
    into, bias, out, _ = weights
    units = torch.cat([into, bias[:, None], out.T], 1)
    norm = math.sqrt(sum(float(tensor.square().sum()) for tensor in weights))
    return math.sqrt(2) * float(torch.pdist(units).min()) / norm


def test_numbers_of_a_run(tmp_path: Path) -> None:
    recipe = Recipe(epochs=1, batch_size=100, learning_rate=1e-2, optimizer="adam")
    one = Run("annealed", 40, (3,), 5, 40, 1e-2, "cosine", 2)
    runs = (one, replace(one, name="constant", learning_rate=1e-3, schedule="constant", seeds=1))
    config = Config("digits", (3, 6), (3, 4), 2, recipe, runs, Sampling(3, 40))
    context = Context(0, torch.device("cpu"), Store(tmp_path / "store"), show=False)
    findings = run(config, context)
    table = findings.tables["networks"]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [(row["hidden layers"], row["units"]) for row in rows] == [(1, 3), (1, 6), (2, 3), (2, 4)]
    for row in rows:
        depth, width = row["hidden layers"], row["units"]
        dimension = 65 * width + (depth - 1) * (width + 1) * width + 10 * (width + 1)
        assert row["2D/log|G|"] == pytest.approx(2 * dimension / (depth * math.lgamma(width + 1)), rel=1e-12)
        assert row["2/√(n − 1)"] == pytest.approx(2 / math.sqrt(width - 1), rel=1e-12)
        assert 0 < row["trained"] < row["2/√(n − 1)"]
    by_hand = {width: [_nearest_at_start(width, seed) for seed in (0, 1)] for width in (3, 6)}
    assert [rows[0]["at initialisation"], rows[1]["at initialisation"]] == pytest.approx(
        [sum(by_hand[3]) / 2, sum(by_hand[6]) / 2], rel=1e-6
    )
    slopes = [math.log(six / three) / math.log(2) for three, six in zip(by_hand[3], by_hand[6], strict=True)]
    assert findings.numbers["slope_start_1"] == pytest.approx(sum(slopes) / 2, rel=1e-6)
    _check_posteriors(findings)


def _check_posteriors(findings: Findings) -> None:
    table = findings.tables["posteriors"]
    posterior, other = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    settings = [row["rate, schedule, batch, epochs"] for row in (posterior, other)]
    assert settings == ["0.01 cosine, batch 40, 5 epochs", "0.001 constant, batch 40, 5 epochs"]
    assert (posterior["training points"], posterior["units"]) == (40, 3)
    assert posterior["distance, σ"] == findings.numbers["sigmas_40_annealed_3"]
    assert other["distance, σ"] == findings.numbers["sigmas_40_constant_3"] != posterior["distance, σ"]
    assert (other["seeds"], other["± seeds"]) == (1, None)
    # Of the mean square over seeds, which their mean and deviation give.
    square = posterior["distance, σ"] ** 2 + posterior["± seeds"] ** 2 / 2
    assert posterior["Δ, nats"] == pytest.approx(-0.5 * square, rel=1e-6)
    assert 0 <= posterior["I(g; ω)/log n!"] <= 1 + 1e-9
    gap = posterior["ELBO, nats per point"] - other["ELBO, nats per point"]
    assert findings.numbers["short_40_constant_3"] == pytest.approx(max(gap, 0.0))
