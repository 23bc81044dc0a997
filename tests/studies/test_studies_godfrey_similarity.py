"""Similarities of pairs: against the library's measures, resamples of batches by hand, and what is said of them."""

import pytest
import torch
from torch import nn

from coset.data import Split
from coset.errors import InputError
from coset.represent import Part, UnitGroup, cka, features, procrustes
from coset.represent.similarity._cka import mean_terms, side_of
from coset.represent.similarity._hsic import hsic_terms, sums_of_matrices
from coset.store import Store
from coset.study import Context, Findings, Verdict
from coset_studies.godfrey import _similarity as module
from coset_studies.godfrey._similarity import CKA, PROCRUSTES, Measuring, Similarities, similarities
from coset_studies.godfrey._similarity_report import excess_fall, matched, numbers_of, tables_of
from coset_studies.godfrey._zoo import Networks
from coset_studies.godfrey.similarity import CLAIMS

LAYERS = ("1", "3")
N, BATCH = 40, 8


def _network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 3), nn.ReLU()).double().eval()


@pytest.fixture(scope="module")
def networks() -> Networks:
    x = torch.randn(N, 2, 7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    split = Split(x, torch.arange(N) % 3)
    modules = {number: _network(number) for number in range(3)}
    return Networks(modules, {number: f"network {number}" for number in modules}, split, split, 3, "random images")


@pytest.fixture
def context(tmp_path) -> Context:
    return Context(0, torch.device("cpu"), Store(tmp_path), False)


def test_values_are_those_of_the_library(networks, context):
    pairs = ((0, 1), (2, 0))
    found = similarities(context, networks, LAYERS, pairs, Measuring(None, BATCH, draws=3))
    for number, pair in enumerate(pairs):
        both = [features(networks.modules[one], networks.test.x, LAYERS) for one in pair]
        for place, layer in enumerate(LAYERS):
            x, y = (one[layer] for one in both)
            for measure, group in CKA.items():
                value = cka(x, y, group=group, batches=N // BATCH)
                assert found.values[measure][number, place] == pytest.approx(value, abs=1e-12)
                assert found.matrices[measure][number, place, place] == pytest.approx(value, abs=1e-12)
            for measure, group in PROCRUSTES.items():
                value = procrustes(x, y, group=group).similarity
                assert found.values[measure][number, place] == pytest.approx(value, abs=1e-7)
        # Off the diagonal: one layer with another.
        value = cka(both[0]["1"], both[1]["3"], group="permutation", batches=N // BATCH)
        assert found.matrices["G_ReLU CKA"][number, 0, 1] == pytest.approx(value, abs=1e-12)


def test_a_resample_is_one_of_batches(networks, context):
    found = similarities(context, networks, LAYERS, ((0, 1),), Measuring(None, BATCH, draws=2))
    count = N // BATCH
    chosen = torch.randint(count, (2, count), generator=context.generator("batches"))
    both = [features(networks.modules[one], networks.test.x, ["3"])["3"] for one in (0, 1)]
    for draw, batches in enumerate(chosen.tolist()):
        x, y = (torch.cat([one.split(BATCH)[batch] for batch in batches]) for one in both)
        for measure, group in PROCRUSTES.items():
            # Matched as all images are: what belongs together stands in one place, and nothing else may move.
            whole = procrustes(*both, group=group)
            if whole.rotation is None:
                value = procrustes(x, y[:, whole.order], group=UnitGroup((Part(4, scales=True),))).similarity
            else:
                value = procrustes(x, torch.einsum("dc,nd...->nc...", whole.rotation, y), group="trivial").similarity
            assert found.draws[measure][0, 1, draw] == pytest.approx(value, abs=1e-7)
        for measure, group in CKA.items():
            terms = []
            sides = [side_of([one.flatten(2)], group, None, "x") for one in both]
            for batch in batches:
                k, l = (side.matrix(one.flatten(2).split(BATCH)[batch]) for side, one in zip(sides, both, strict=True))  # noqa: E741
                terms.append(hsic_terms(sums_of_matrices(k, l), "unbiased"))
            value = mean_terms(terms, [BATCH] * count).ratio()
            assert found.draws[measure][0, 1, draw] == pytest.approx(value, abs=1e-12)


def test_what_is_stored_is_not_measured_again(networks, context, monkeypatch):
    how = Measuring(None, BATCH, draws=2)
    first = similarities(context, networks, LAYERS, ((0, 1),), how)
    monkeypatch.setattr(module, "_measured", None)
    second = similarities(context, networks, LAYERS, ((0, 1),), how)
    for measure in module.MEASURES:
        assert torch.equal(first.draws[measure], second.draws[measure])


def test_too_few_images_for_batches(networks, context):
    with pytest.raises(InputError, match="40 images in batches of 40 leave 1 batches"):
        similarities(context, networks, LAYERS, ((0, 1),), Measuring(None, 40, draws=2))


def _made(ours: list[list[float]], other: list[list[float]], noise: float = 0.0) -> Similarities:
    """Similarities of pairs (pairs, layers), the same for CKA and Procrustes, with resamples ± noise."""
    tables = {"G_ReLU": torch.tensor(ours).double(), "orthogonal": torch.tensor(other).double()}
    shifts = noise * torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    values, draws = {}, {}
    for measure in module.MEASURES:
        table = tables[measure.rsplit(" ", 1)[0]]
        values[measure] = table
        draws[measure] = table[..., None] + shifts * torch.tensor([0.0] * (table.shape[1] - 1) + [1.0])[:, None]
    matrices = {measure: torch.eye(len(ours[0])).expand(len(ours), -1, -1).double() for measure in CKA}
    layers = tuple(f"layer{number}" for number in range(len(ours[0])))
    return Similarities(layers, tuple((0, n + 1) for n in range(len(ours))), values, draws, matrices)


def test_the_excess_of_the_fall():
    found = _made([[0.9, 0.5], [0.8, 0.5]], [[0.9, 0.8], [0.9, 0.8]])
    assert excess_fall(found, "CKA").value == pytest.approx((0.4 + 0.3) / 2 - 0.1)
    assert numbers_of(found)["cka_excess_pairs"] == 2


def test_layers_that_know_each_other_again():
    assert matched(torch.tensor([[0.9, 0.1, 0.2], [0.3, 0.2, 0.8], [0.1, 0.2, 0.3]])) == 2


def test_one_pair_has_no_range_of_pairs():
    one, several = (_made([[0.9, 0.75]] * count, [[0.9, 0.8]] * count) for count in (1, 2))
    for found in (one, several):
        said = [f"{table.caption} {' '.join(table.columns)}" for table in tables_of(found).values()]
        assert any("lowest" in text for text in said) == (found is several)
        assert all(len(row) == len(table.columns) for table in tables_of(found).values() for row in table.rows)


def test_matrices_say_which_kernel_both_sides_have():
    tables = tables_of(_made([[0.9, 0.75]], [[0.9, 0.8]]))
    assert "with the max kernel on both sides" in tables["g-relu-cka"].caption
    assert "with the linear kernel on both sides" in tables["orthogonal-cka"].caption


@pytest.mark.parametrize(
    ("ours", "other", "expected"),
    [
        ([[0.9, 0.5], [0.8, 0.5]], [[0.95, 0.92]] * 2, ["holds", "holds"]),
        ([[0.9, 0.9], [0.8, 0.79]], [[0.95, 0.8]] * 2, ["fails", "fails"]),
        # In one pair of two: more in the mean.
        ([[0.9, 0.3], [0.8, 0.79]], [[0.95, 0.92], [0.95, 0.85]], ["cannot tell", "cannot tell"]),
    ],
)
def test_claims_follow_the_pairs(ours, other, expected):
    results = Findings({}, tables_of(_made(ours, other)))
    assert [claim.judge(results).verdict for claim in CLAIMS] == [Verdict(word) for word in expected]
