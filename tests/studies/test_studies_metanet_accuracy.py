"""The study of accuracies: its networks without batch normalisation, moved ones, means over data sets, and claims."""

from dataclasses import replace

import pytest
import torch
from torch.func import functional_call

from coset.metanet import PNA, rank_correlation
from coset.models import build
from coset.study import Estimate, Table
from coset_studies.metanet import _accuracy_tables, accuracy
from coset_studies.metanet._accuracy_claims import CLAIMS
from coset_studies.metanet._cnn import Probabilities
from coset_studies.metanet._methods import METHODS, ORBITS, STATISTICS, Probes, Probing
from coset_studies.metanet._tests import MEAN, NORMED, SAME
from coset_studies.metanet._zoos import MODEL, Networks, VariedZoo, folded, moved

TINY = {"width": 3, "padding": 1}


def discovered(once, **options):
    from coset.models import example_input

    model = build(MODEL, seed=0, **TINY, **options).double().eval()
    return model, once(model, example_input(model))


def networks_of(once, count, **options):
    model, sym = discovered(once, **options)
    generator = torch.Generator().manual_seed(0)
    stack = {
        name: tensor.expand(count, *tensor.shape) + torch.rand(count, *tensor.shape, generator=generator).double()
        if tensor.is_floating_point()
        else tensor.expand(count, *tensor.shape)
        for name, tensor in model.state_dict().items()
    }
    return model, Networks(sym, stack, torch.arange(count).double(), 10)


def outputs(model, networks):
    x = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(1)).double()
    rows = range(len(networks.accuracy))
    return torch.stack([functional_call(model, {n: t[i] for n, t in networks.stack.items()}, (x,)) for i in rows])


def test_the_network_has_as_many_parameters_as_those_of_the_small_cnn_zoo():
    assert sum(p.numel() for p in build(MODEL, seed=0).parameters()) == 4970
    grey = torch.randn(2, 1, 28, 28)
    model = build(MODEL, seed=0)
    torch.testing.assert_close(model(grey.expand(2, 3, 28, 28)), model(grey))


def test_networks_without_their_normalisation_are_the_same_functions(once):
    normed, networks = networks_of(once, 3, norm="batch")
    plain, sym = discovered(once)
    without = folded(networks, sym)
    assert without.stack.keys() == plain.state_dict().keys()
    torch.testing.assert_close(outputs(plain, without), outputs(normed, networks))
    assert (outputs(normed, networks)[0] - outputs(normed, networks)[1]).abs().max() > 1e-3


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_moved_networks_are_the_same_functions_with_other_weights(once, norm):
    model, networks = networks_of(once, 3, norm=norm)
    elsewhere = moved(networks, torch.Generator().manual_seed(0))
    torch.testing.assert_close(outputs(model, elsewhere), outputs(model, networks))
    assert (elsewhere.stack["conv2.weight"] - networks.stack["conv2.weight"]).abs().max() > 0.1


def test_readers_with_probes_stay_on_orbits_and_see_the_function(once):
    _, networks = networks_of(once, 4)
    images = torch.randn(5, 1, 9, 9, generator=torch.Generator().manual_seed(2))
    probes = Probes({networks.sym.fingerprint: Probabilities(**TINY).eval()}, images)
    given = probes.outputs(networks.sym, networks.stack)["outputs"]
    torch.testing.assert_close(given.reshape(4, 5, 10).sum(-1), torch.ones(4, 5, dtype=torch.float64))
    elsewhere = moved(networks, torch.Generator().manual_seed(0))
    torch.testing.assert_close(probes.outputs(elsewhere.sym, elsewhere.stack)["outputs"], given)
    reader = Probing(PNA(networks.sym, 1, channels=4, layers=1, probes=5), probes).double().eval()
    reader.calibrate(networks.stack, sym=networks.sym)
    with torch.no_grad():
        answers = reader(networks.stack, sym=networks.sym)
        torch.testing.assert_close(reader(elsewhere.stack, sym=networks.sym), answers, rtol=1e-9, atol=1e-9)
    assert answers.std() > 1e-3


def test_the_mean_over_data_sets_has_the_interval_of_independent_draws():
    generator = torch.Generator().manual_seed(0)
    truths = torch.randn(2, 50, generator=generator)
    ones = [rank_correlation(truth + torch.randn(50, generator=generator), truth, draws=900, seed=s)
            for s, truth in enumerate(truths)]  # fmt: skip
    mean = _accuracy_tables.mean_of(ones)
    assert mean.value == pytest.approx((ones[0].value + ones[1].value) / 2)
    widths = [one.high - one.low for one in ones]
    assert mean.high - mean.low == pytest.approx((widths[0] ** 2 + widths[1] ** 2) ** 0.5 / 2, rel=0.15)


def test_settings_of_a_zoo_vary_and_do_not_overlap_between_seeds():
    zoo = VariedZoo({"name": "digits"}, (1, 2), (0.0, 0.4), 3, TINY)
    spec = zoo.spec(1)
    assert [one.label_noise for one in spec.data] == [0.0, 0.4]
    assert spec.seeds == (100_000, 100_001, 100_002)
    assert set(zoo.spec(0).seeds).isdisjoint(spec.seeds)


def test_claims_are_judged_by_rows_of_the_tables():
    names = ("data", "networks tested", "difference", "Δτ", "low", "high")
    what = f"PNA − {STATISTICS}"
    rows = [["Fashion-MNIST", SAME, what, 0.1, 0.05, 0.2], [MEAN, NORMED, what, -0.1, -0.2, -0.05]]
    changes = [["d", SAME, method, *[0.0] * 7, 0.002 if method == "PNA" else 1e-5] for method in METHODS]
    columns = [*(f"c{n}" for n in range(10)), "largest change"]
    columns[1:3] = "networks tested", "method"
    results = type(
        "R", (), {"numbers": {}, "tables": {"differences": Table(names, rows), "correlations": Table(columns, changes)}}
    )
    found = {claim.statistic: claim.judge(results) for claim in CLAIMS}
    assert str(found[f"Fashion-MNIST, {SAME}: τ of {what}"].verdict) == "holds"
    assert str(found[f"{MEAN}, {NORMED}: τ of {what}"].verdict) == "fails"
    assert str(found[f"CIFAR-10, grey, {SAME}: τ of {what}"].verdict) == "cannot tell"
    unchanged = {s: j for s, j in found.items() if "largest change" in s}
    assert sorted(str(j.verdict) for j in unchanged.values()) == ["fails", *["holds"] * (len(ORBITS) - 1)]
    assert found[f"Fashion-MNIST, {SAME}: τ of {what}"].estimate == Estimate(0.1, 0.05, 0.2)


def test_presets_fit_their_zoos():
    for config in (accuracy.QUICK, accuracy.SMALL, accuracy.PAPER):
        for zoos in config.zoos.values():
            count = len(zoos.base.epochs) * len(zoos.base.label_noise) * zoos.base.each
            assert 0 < config.tested < count
            assert replace(zoos.base, options={}) != zoos.wider
    small = accuracy.SMALL.zoos.values()
    assert sum(9 * (zoos.base.each + zoos.wider.each + zoos.normed.each) for zoos in small) >= 1000
