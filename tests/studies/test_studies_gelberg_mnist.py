"""Parts of the study of symmetrized VI on MNIST: against densities, draws and plain inference, and what it says."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coset.distribution import MeanField, kl
from coset.models import MLP, build
from coset.posterior import fit_mean_field, predictive, score
from coset.posterior.problem import Problem, pose
from coset.posterior.symmetrized import pair_matrix
from coset.store import Store
from coset.study import Context
from coset.symmetry import Element, Symmetry
from coset_studies.gelberg.mnist._claims import PUBLISHED
from coset_studies.gelberg.mnist._course import (
    Moment,
    Onlooker,
    Training,
    best_exchange,
    course,
    exchanges,
    expected_exchanges,
    look,
    permutations_of,
)
from coset_studies.gelberg.mnist._fits import (
    BETTER,
    OTHER_NOISE,
    PIXELS,
    PLAIN,
    apart,
    mean_outputs,
    options_of,
    posterior_of,
    scores_of,
    settings_of,
)
from coset_studies.gelberg.mnist._report import Found, Row, Tried, Wide, numbers_of, settled, tables_of

UNITS = 4
TRAINING = Training(epochs=2, batch_size=30, std=0.1, learning_rate=1e-2)


def _posterior() -> tuple[MLP, Symmetry, MeanField]:
    torch.manual_seed(0)
    model = MLP(3, [UNITS], 2).double().eval()
    mean = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    q = MeanField(mean, {name: torch.rand_like(tensor) + 0.1 for name, tensor in mean.items()})
    return model, permutations_of(model, torch.zeros(2, 3, dtype=torch.float64)), q


def _labelled() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(90, 6, generator=generator)
    return x, (x[:, 0] > x[:, 1]).long()


def _swaps(sym: Symmetry) -> list[Element]:
    orders = []
    for i, j in itertools.combinations(range(UNITS), 2):
        order = torch.arange(UNITS)
        order[i], order[j] = j, i
        orders.append(sym.element({sym.permuting[0]: order}))
    return orders


def test_log_ratios_of_exchanges_are_those_of_the_density() -> None:
    _, sym, q = _posterior()
    omega = q.sample(5, torch.Generator().manual_seed(1))
    found = exchanges(pair_matrix(sym, q, omega))
    expected = [q.log_prob(sym.act(g, omega)) - q.log_prob(omega) for g in _swaps(sym)]
    torch.testing.assert_close(found, torch.stack(expected, 1), rtol=1e-10, atol=1e-10)


def test_expected_log_ratios_are_divergences() -> None:
    _, sym, q = _posterior()
    expected = [-float(kl(q, sym.act(g, q))) for g in _swaps(sym)]
    assert expected_exchanges(sym, q).tolist() == pytest.approx(expected, rel=1e-10)
    assert best_exchange(sym, q) == pytest.approx(max(expected), rel=1e-10)


def test_mean_outputs_are_the_limit_of_averages() -> None:
    model, _, q = _posterior()
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    draws = q.sample(100_000, torch.Generator().manual_seed(3))
    outputs = torch.func.vmap(lambda params: torch.func.functional_call(model, params, (x,)))(draws)
    error = outputs.std(0) / math.sqrt(len(outputs))
    assert ((outputs.mean(0) - mean_outputs(q, x)).abs() < 5 * error).all()
    assert error.max() < 0.02


def _problem(width: int) -> tuple[Problem, Symmetry]:
    x, y = _labelled()
    problem = pose(build("mlp", seed=0, in_features=6, widths=[width], out_features=2), (x, y), "categorical", 1.0, 1.0)
    return problem, permutations_of(problem.model, x)


def test_modes_that_coincide_and_modes_that_do_not() -> None:
    problem, sym = _problem(UNITS)
    same = torch.stack([torch.zeros_like(problem.start), torch.full_like(problem.start, math.log(0.3))])
    coincide = look(problem, sym, same, 0, 8, 0)
    assert (coincide.exchange, coincide.nearest, coincide.information) == pytest.approx((0, 0, 0), abs=1e-12)
    far = torch.stack([problem.start, torch.full_like(problem.start, math.log(1e-4))])
    apart_from = look(problem, sym, far, 0, 8, 0)
    assert apart_from.information == pytest.approx(1, abs=1e-12)
    assert apart_from.exchange < -1e4
    # Rounding of shares that add up to 1.
    assert apart_from.uniform < 1e-14
    assert apart_from.guided < 1e-14


def test_information_between_is_that_of_the_sum_over_all_permutations() -> None:
    problem, sym = _problem(3)
    values = torch.stack([problem.start, torch.full_like(problem.start, math.log(0.6))])
    found = look(problem, sym, values, 7, 100, 0)
    q = MeanField(
        {name: tensor.double() for name, tensor in problem.layout.views(values[0]).items()},
        {name: tensor.double() for name, tensor in problem.layout.views(values[1].exp()).items()},
    )
    omega = q.sample(4000, torch.Generator().manual_seed(11))
    every = [sym.element({sym.permuting[0]: torch.tensor(p)}) for p in itertools.permutations(range(3))]
    logs = torch.stack([q.log_prob(sym.act(g, omega)) for g in every])
    gains = (q.log_prob(omega) - torch.logsumexp(logs, 0) + math.log(6)) / math.log(6)
    assert 0.1 < found.information < 0.9
    error = float(gains.std()) * math.sqrt(1 / 100 + 1 / 4000)
    assert found.information == pytest.approx(float(gains.mean()), abs=5 * error)
    assert found.guided > 1e-3


def test_looking_on_changes_nothing() -> None:
    x, y = _labelled()
    model = build("mlp", seed=3, in_features=6, widths=[UNITS], out_features=2)
    fit = fit_mean_field(model, (x, y), **TRAINING.settings, seed=3, show=False)
    moments = course(model, (x, y), TRAINING, (0, 4), draws=2, seed=3, show=False)
    assert [moment.step for moment in moments] == [0, 4, 6]
    # float32 deviations pass through a logarithm on the way.
    assert moments[-1].exchange == pytest.approx(best_exchange(permutations_of(model, x), fit.posterior), rel=1e-5)
    assert moments[0].exchange != pytest.approx(moments[-1].exchange, rel=1e-3)


def test_an_onlooker_looks_when_it_is_told_to() -> None:
    problem, sym = _problem(UNITS)
    onlooker = Onlooker(problem, sym, (1,), 2, 0)
    values = torch.stack([problem.start, torch.full_like(problem.start, -1.0)])
    for _ in range(3):
        onlooker.gradient(values, torch.randn_like(problem.start), 1)
    assert [moment.step for moment in onlooker.moments] == [1]
    assert onlooker.mean() == 0


def test_rows_of_the_table_share_their_random_numbers(tmp_path: Path) -> None:
    context = Context(0, torch.device("cpu"), Store(tmp_path), False)
    training = replace(TRAINING, batch_size=200, epochs=1)
    fits = {
        name: posterior_of(context, "digits", training, name, UNITS, 1, exact_units=UNITS).posterior
        for name in (PLAIN, "K = 5", BETTER, OTHER_NOISE)
    }
    assert apart(fits[PLAIN], fits["K = 5"]) == (0, 0)
    assert apart(fits[PLAIN], fits[OTHER_NOISE])[0] > 1e-3
    dataset = context.data("digits", **PIXELS)
    scores = scores_of(context, "digits", fits[PLAIN], UNITS, 10)
    model = build("mlp", seed=0, **options_of(dataset, UNITS))
    expected = score(predictive(model, fits[PLAIN], dataset.test.x, samples=10, seed=0, show=False), dataset.test.y)
    assert scores == {"accuracy": 100 * expected["accuracy"], "nll": expected["nll"], "ece": expected["ece"]}
    before = len(context.store.entries())
    assert scores_of(context, "digits", fits["K = 5"], UNITS, 10) == scores
    assert len(context.store.entries()) == before


def test_settings_of_the_methods() -> None:
    assert settings_of(PLAIN, 20, 10) == ("mean-field", {})
    assert settings_of("K = 10", 20, 10) == ("symmetrized", {"K": 10, "proposal": "uniform"})
    assert settings_of(BETTER, 10, 10)[1]["proposal"] == "exact"
    assert settings_of(BETTER, 11, 10)[1]["proposal"] == "sequential"


def test_settled_is_for_good() -> None:
    moments = [Moment(step, -1.0, -1.0, 1.0, 0.0, 0.0) for step in (0, 10, 20)]
    assert settled(moments, [True, True, True]) == 0
    assert settled(moments, [True, False, True]) == 20
    assert settled(moments, [False, True, True]) == 10
    assert settled(moments, [True, True, False]) is None


def _row(accuracies: list[float], moved: float) -> Row:
    scores = [{"accuracy": value, "nll": 0.5, "ece": 0.02} for value in accuracies]
    return Row(scores, accuracies, [(moved, moved)] * len(accuracies), [-600.0] * len(accuracies))


def _found(uniform: float = 0.0, noise: float = 0.2, guided: float = 0.0) -> Found:
    """Planted results of MNIST: symmetrized fits ``uniform`` away, accuracies under other noise ``noise`` points."""
    rows = {}
    for width, (paper, _) in PUBLISHED[PLAIN].items():
        base = [paper - 0.3, paper + 0.3]
        for name in PUBLISHED:
            rows[width, name] = _row([value + uniform for value in base], 0.0 if name == PLAIN else uniform)
        rows[width, BETTER] = _row(base, 0.0)
        rows[width, OTHER_NOISE] = _row([value + noise for value in base], 0.5)
    moments = [Moment(0, -27.0, -3.0, 0.999, 0.0, guided), Moment(600, -600.0, -500.0, 1.0, 0.0, 0.0)]
    wide = [Wide(0.5, name, [90.0, 91.0], [0.0, 0.1], 0.0) for name in (PLAIN, "K = 20", BETTER)]
    return Found(
        widths=tuple(PUBLISHED[PLAIN]),
        published=PUBLISHED,
        rows=rows,
        repeats={width: [90.0, 90.04] for width in PUBLISHED[PLAIN]},
        courses={0.15: moments, 0.5: moments},
        scan=[Tried(0.15, 1.0, 95.0, -600.0)],
        wide=wide,
        width=20,
        steps_per_epoch=600,
        training=Training(10, 100, 0.15),
        samples=1000,
        exact_units=10,
    )


def test_numbers_of_planted_results() -> None:
    found = _found(guided=0.8)
    numbers = numbers_of(found)
    assert numbers["uniform_equal"] == numbers["uniform_fits"] == 24
    assert numbers["largest_gap"] == pytest.approx(0, abs=1e-9)
    assert numbers["widest_gain"] == pytest.approx(0.12)
    assert numbers["noise_rms"] == pytest.approx(0.2)
    assert numbers["guided_settled"] == numbers["saturated"] == 600
    assert numbers["draws_std"] == pytest.approx(0.04 / math.sqrt(2))
    tables = tables_of(found)
    assert len(tables["accuracy"].rows) == 4 * 5
    assert len(tables["same-seed"].rows) == 4 * 5
