"""Stitching penalties of pairs: planted symmetries, what is resampled, what is stored, and which family beats which."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import coset
from coset.data import Split
from coset.errors import InputError
from coset.models import MLP
from coset.represent import stitching_penalty
from coset.represent.stitching._stitch import stitch
from coset.store import Store
from coset.study import Context, Findings, Table, Verdict
from coset.study.images import Images
from coset_studies.godfrey import _stitching as module
from coset_studies.godfrey import alpha, lasso, rotations, stitching
from coset_studies.godfrey._penalties import difference_table, pair_table, penalty_table
from coset_studies.godfrey._stitching import Penalties, Training, pair_weights, penalties, resampled, student_weights
from coset_studies.godfrey._zoo import Networks, Zoo, chosen_pairs, drawn, load_networks

LAYER = "activations.0"
N = 60


@pytest.fixture(scope="module")
def networks() -> Networks:
    """Two networks that differ by a symmetry, and one that has nothing to do with them; labels are the first's."""
    torch.manual_seed(0)
    first, moved, other = (MLP(6, [7], 3).double().eval() for _ in range(3))
    for network in (first, other):
        # As they are made, networks give nearly all examples one label.
        network.load_state_dict({name: torch.randn_like(value) for name, value in network.state_dict().items()})
    sym = coset.discover(first, torch.zeros(2, 6, dtype=torch.float64))
    moved.load_state_dict(sym.act(sym.random(torch.Generator().manual_seed(1)), dict(first.state_dict())))
    x = torch.randn(N, 6, dtype=torch.float64)
    split = Split(x, first(x).argmax(1))
    modules = dict(enumerate((first, moved, other)))
    return Networks(modules, {number: f"network {number}" for number in modules}, split, split, 3, "random vectors")


@pytest.fixture
def context(tmp_path) -> Context:
    return Context(0, torch.device("cpu"), Store(tmp_path), False)


def test_a_planted_symmetry_costs_nothing(networks, context):
    found = penalties(
        context, networks, [LAYER], ["G_ReLU", "rank 1"], ((0, 1), (1, 0)), Training(None, None, epochs=0)
    )
    assert found.values[0, 0].tolist() == [0.0, 0.0]
    assert found.values[0, 1].min() > 0
    assert found.mean(LAYER, "G_ReLU").high == 0
    assert found.difference(LAYER, "G_ReLU", "rank 1").value == pytest.approx(-float(found.values[0, 1].mean()))
    # A permutation with positive scales has n of n² entries.
    assert found.sparsity[0, 0].tolist() == pytest.approx([1 - 1 / 7] * 2)


def test_the_penalty_is_the_librarys(networks, context):
    how = Training(None, None, epochs=1)
    found = penalties(context, networks, [LAYER], ["full"], ((0, 2),), how)
    below, above = networks.modules[0], networks.modules[2]
    data = (networks.train.x, networks.train.y)
    one = stitching_penalty(
        stitch(below, above, LAYER, data, family="full", training=how.sgd, seed=0, show=False), data
    )
    assert found.values[0, 0, 0] == pytest.approx(one.value)
    assert found.accuracy == pytest.approx(one.before)


def test_an_interrupted_run_goes_on(networks, context, monkeypatch):
    how = Training(None, None, epochs=1)
    pairs = ((0, 2), (2, 0))
    whole = penalties(context, networks, [LAYER], ["full"], pairs[:1], how)
    calls = []

    def counted(*args, **kwargs):
        calls.append(args)
        return stitch(*args, **kwargs)

    monkeypatch.setattr(module, "stitch", counted)
    both = penalties(context, networks, [LAYER], ["full"], pairs, how)
    assert len(calls) == 1
    assert torch.equal(both.lost[:, :, :1], whole.lost)


def test_draws_are_of_pairs_and_of_examples():
    generator = torch.Generator().manual_seed(0)
    by_pair = torch.tensor([0.0, 1.0, 4.0, 5.0])[:, None].expand(4, 50)
    by_example = torch.randn(50, generator=generator).expand(4, 50)
    draws = resampled(torch.stack([by_pair, by_example]), generator, 4000, over_pairs=pair_weights)
    # Examples as they are resampled with replacement; the variance of a variance of 4,000 normal draws is 2/4,000 of
    # its square, and five deviations are allowed.
    expected = float(by_example[0].double().var(correction=0)) / 50
    assert float(draws[1].var()) == pytest.approx(expected, rel=5 * (2 / 4000) ** 0.5)
    # Pairs as Student's t has them: quartiles at ± 0.765 of the mean's deviation, for three degrees of freedom.
    spread = 0.765 * float(by_pair[:, 0].std()) / 4**0.5
    inside = float(((draws[0] - 2.5).abs() < spread).double().mean())
    assert abs(inside - 0.5) < 5 * 0.5 / 4000**0.5
    # All rows see the same draw.
    twice = resampled(torch.stack([by_pair, by_pair + 1]), torch.Generator().manual_seed(1), 7, over_pairs=pair_weights)
    assert torch.allclose(twice[1] - twice[0], torch.ones(7, dtype=torch.float64))


def test_two_pairs_are_held():
    by_pair = torch.tensor([0.0, 1.0])[:, None].expand(2, 50)
    held = resampled(by_pair, torch.Generator().manual_seed(0), 5, over_pairs=pair_weights)
    assert torch.allclose(held, torch.full((5,), 0.5, dtype=torch.float64))


@pytest.mark.parametrize("n", [2, 4])
def test_student_weights_give_students_intervals(n):
    from scipy.stats import t

    x = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    means = student_weights(n, 100_000, torch.Generator().manual_seed(0)) @ x
    spread = float(x.std()) / n**0.5
    shares = [0.05, 0.25, 0.75, 0.95]
    for share, found in zip(shares, torch.quantile(means, torch.tensor(shares).double()), strict=True):
        # Between the quantiles of shares that are five deviations of 100,000 draws away.
        off = 5 * (share * (1 - share) / 1e5) ** 0.5
        low, high = (float(x.mean()) + spread * t.ppf(share + shift, n - 1) for shift in (-off, off))
        assert low < float(found) < high
    assert student_weights(1, 3, torch.Generator()).tolist() == [[1.0]] * 3


def _made(families: dict[str, list[float]], noise: float = 0.0, sparsity: dict[str, float] | None = None) -> Penalties:
    """Penalties by layer for each family, resamples of the first of them ± noise."""
    names = tuple(families)
    values = torch.tensor([families[name] for name in names], dtype=torch.float64).T
    shifts = noise * torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    signs = torch.tensor([1.0] + [0.0] * (len(names) - 1), dtype=torch.float64)[:, None]
    zeros = torch.tensor([(sparsity or {}).get(name, 0.5) for name in names]).expand(len(values), -1)[..., None]
    layers = tuple(f"layer{number}" for number in range(len(values)))
    return Penalties(layers, names, ((0, 1),), values[..., None, None], values[..., None] + shifts * signs, zeros, 0.9)


def test_the_table_has_sparsities_of_trained_maps_only():
    found = _made({"full": [0.1]})
    assert penalty_table(found).columns[-1] == "sparsity"
    bare = Penalties(found.layers, found.families, found.pairs, found.lost, found.draws, None, 0.9)
    assert penalty_table(bare).rows[0][2] == pytest.approx(10.0)
    assert penalty_table(bare).columns[-1] == "highest"


def test_pairs_of_a_zoo(context):
    zoo = Zoo("mlp", Images("digits"), 3, None)
    assert chosen_pairs(context, zoo, ((0, 2),)) == ((0, 2),)
    drawn_pairs = chosen_pairs(context, zoo, 20)
    assert len(drawn_pairs) == 20
    assert all(a != b and {a, b} <= {0, 1, 2} for a, b in drawn_pairs)
    with pytest.raises(InputError, match="expected pairs of different numbers below 3"):
        chosen_pairs(context, zoo, ((0, 3),))
    with pytest.raises(InputError, match="expected pairs of different numbers"):
        chosen_pairs(context, zoo, ((1, 1),))


def test_published_networks_need_their_folder(context, data_folder, monkeypatch):
    monkeypatch.delenv("COSET_CHECKPOINTS", raising=False)
    with pytest.raises(InputError, match=r"COSET_CHECKPOINTS is not set; expected a folder with tiny10-seed0"):
        load_networks(context, Zoo("tiny10", Images("cifar10-slice", train=20, test=20), 1, None), [0])


def test_published_networks_see_their_pixels(context, data_folder, checkpoint_folder):
    zoo = Zoo("tiny10", Images("cifar10-slice", train=20, test=200), 4, None)
    networks = load_networks(context, zoo, [0])
    right = (networks.modules[0](networks.test.x).argmax(1) == networks.test.y).double().mean()
    # 86.5 % on all test images; 200 of them have a deviation of 2.4 points.
    assert abs(float(right) - 0.865) < 4 * 0.024


def test_a_part_keeps_the_share_of_classes():
    part = Split(torch.arange(40.0)[:, None], torch.arange(40) % 4)
    assert torch.bincount(drawn(part, 12).y).tolist() == [3, 3, 3, 3]
    assert drawn(part, None) is part
    assert drawn(part, 40) is part


HOLDS, FAILS, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.CANNOT_TELL


def verdicts(claims, results):
    return [claim.judge(results).verdict for claim in claims]


def _results(found: Penalties, family: str, others) -> Findings:
    tables = {
        "penalties": penalty_table(found),
        "differences": difference_table(found, family, others),
        "pairs": pair_table(found),
    }
    return Findings({}, tables)


@pytest.mark.parametrize(
    ("second", "noise", "expected"),
    [
        (0.4, 0.0, [HOLDS, HOLDS, FAILS, HOLDS]),
        (0.05, 0.0, [HOLDS, FAILS, FAILS, HOLDS]),
        (0.4, 1.0, [OPEN, OPEN, OPEN, HOLDS]),
    ],
)
def test_claims_on_ranks(second, noise, expected):
    """The second of two layers decides."""
    families = {"G_ReLU": [0.1, 0.1], "rank 1": [0.9, 0.5], "rank 2": [0.9, second], "rank 4": [0.9, 0.05]}
    found = _made(families | {"full": [0.0, 0.02]}, noise)
    further = difference_table(_made({"G_ReLU": [0.1, 0.1], "SoftSort": [0.11, 0.07]}), "G_ReLU", ("SoftSort",))
    results = _results(found, "G_ReLU", stitching.RANKS)
    results = Findings({}, {**results.tables, "further-differences": further})
    # The last is SoftSort's: three points apart, where less is comparable.
    assert verdicts(stitching.CLAIMS[:-1], results) == expected
    assert stitching.CLAIMS[-1].judge(results).estimate.value == pytest.approx(3.0)


def test_claims_on_sparse_maps():
    penalty = {"G_ReLU": [0.2], "λ = 0.001": [0.01], "λ = 0.01": [0.1], "λ = 0.1": [0.4]}
    dense = {"G_ReLU": 0.9, "λ = 0.001": 0.1, "λ = 0.01": 0.5, "λ = 0.1": 0.8}

    def judged(**sparsity):
        found = _made(penalty, sparsity={**dense, **{f"λ = {name}": value for name, value in sparsity.items()}})
        return verdicts(lasso.CLAIMS, _results(found, "G_ReLU", lasso.SPARSE))

    assert judged() == [HOLDS, OPEN, FAILS]
    assert judged(**{"0.01": 0.95}) == [HOLDS, FAILS, FAILS]
    assert judged(**{"0.1": 0.95}) == [HOLDS, HOLDS, FAILS]


@pytest.mark.parametrize(
    ("penalties_of_maps", "noise", "expected"),
    [
        ([0.01, 0.015, 0.05], 0.0, [HOLDS, HOLDS, HOLDS]),
        ([0.01, 0.09, 0.05], 0.0, [FAILS, HOLDS, FAILS]),
        ([0.01, 0.015, 0.05], 0.2, [OPEN, OPEN, HOLDS]),
    ],
)
def test_claims_on_rotations(penalties_of_maps, noise, expected):
    ours = dict(zip(("orthogonal", "G_ReLU", "permutation"), reversed(penalties_of_maps), strict=True))
    found = _made({name: [value] for name, value in ours.items()}, noise)
    assert verdicts(rotations.CLAIMS, _results(found, "orthogonal", rotations.GROUP_ELEMENTS)) == expected


def test_which_alphas_can_have_been_chosen():
    first, second, tied = frozenset({0}), frozenset({1}), frozenset({0, 1, 2})
    assert (alpha.fewest([first, first]), alpha.most([first, first])) == (1, 1)
    assert (alpha.fewest([first, second, tied]), alpha.most([first, second, tied])) == (2, 3)
    assert (alpha.fewest([tied, tied]), alpha.most([tied, tied])) == (1, 2)
    columns = ("pair", "layer", "α chosen", "as good", *(f"α = {value:g}" for value in alpha.ALPHAS))
    rows = [["a", "x", 0.001, 2, 5.0, 5.0, 1.0, 1.0, 1.0], ["b", "x", 0.01, 1, 1.0, 5.0, 1.0, 1.0, 1.0]]
    found = alpha.varied(Findings({}, {"choices": Table(columns, rows)}))
    assert (found.value, found.low, found.high) == (2, 1, 2)
    assert verdicts(alpha.CLAIMS[-1:], Findings({}, {"choices": Table(columns, rows)})) == [OPEN]


@given(st.lists(st.frozensets(st.integers(0, 4), min_size=1), min_size=1, max_size=5))
def test_numbers_of_choices_are_those_of_all_choices(best):
    counts = [len(set(choice)) for choice in product(*best)]
    assert (alpha.fewest(best), alpha.most(best)) == (min(counts), max(counts))
