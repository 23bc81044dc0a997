"""Studies of readers of weights: zoos of sines, cached graphs, standardised features, moves of snapshots, edits."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

import coset
from coset.data import Split
from coset.metanet import PNA, FlatReader, RelationalTransformer
from coset.store import Store
from coset.study import Context
from coset.symmetry.stacks import act_stack, random_stack
from coset_studies.metanet import _sirens, editing, sirens
from coset_studies.metanet._classifiers import Standardized, reading
from coset_studies.metanet._snapshots import Edits, Pairs, by_layer, descending, extrapolating, left_over, shrinking

ZOO = _sirens.Sirens("digits", train=6, test=3, widths=(4, 3), steps=4, pixels=20, group=4)


@pytest.fixture(scope="module")
def networks():
    """Networks of sines in double precision, each with weights of its own, and their symmetry."""
    model = ZOO.built(0)
    sym = coset.discover(model, torch.rand(3, 2))
    states = [ZOO.built(seed).double().state_dict() for seed in range(6)]
    return sym, {name: torch.stack([state[name] for state in states]) for name in states[0]}


def test_side_by_side_is_one_by_one():
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    many = _sirens.fit_sirens(ZOO, images, torch.Generator().manual_seed(1), 5)
    for number in range(3):
        one = _sirens.fit_sirens(ZOO, images[number : number + 1], torch.Generator().manual_seed(1), 5)
        for name in many:
            torch.testing.assert_close(many[name][number], one[name][0], rtol=1e-3, atol=1e-5)


def test_quality_is_that_of_the_network_at_the_pixels():
    images = torch.rand(2, 1, 5, 7)
    found = _sirens.fit_sirens(ZOO, images, torch.Generator().manual_seed(0), 0)
    psnr = found.pop("psnr")
    for number in range(2):
        params = {name: tensor[number] for name, tensor in found.items()}
        for row, column in ((0, 0), (1, 3), (4, 6)):
            place = torch.tensor([[-1 + 2 * row / 4, -1 + 2 * column / 6]])
            value = functional_call(ZOO.built(0), params, (place,))[0, 0]
            shown = _sirens.reconstructions(ZOO, found, images)[number, row, column]
            torch.testing.assert_close(value.detach(), shown)
        errors = (_sirens.reconstructions(ZOO, found, images)[number] - images[number, 0]).square().mean()
        torch.testing.assert_close(psnr[number], -10 * errors.log10())


def test_starts_are_shared_or_own_and_nothing_is_fitted_twice(tmp_path, monkeypatch):
    context = Context(0, torch.device("cpu"), Store(tmp_path), show=False)
    begun = {own: _sirens.Sirens(**{**vars(ZOO), "own_starts": own, "rate": 1e-12}) for own in (False, True)}
    for own, zoo in begun.items():
        train, test = _sirens.trained_sirens(context, zoo)
        assert (len(train.labels), len(test.labels)) == (6, 3)
        weights = torch.cat([train.stack["layers.1.weight"], test.stack["layers.1.weight"]])
        apart = torch.cdist(weights.flatten(1), weights.flatten(1)) + torch.eye(9)
        assert (apart.min() > 1e-3) if own else (apart.fill_diagonal_(0).max() < 1e-6)
    monkeypatch.setattr(_sirens, "fit_sirens", None)
    again, _ = _sirens.trained_sirens(context, begun[True])
    torch.testing.assert_close(again.stack["layers.1.weight"], weights[:6], rtol=0, atol=0)


@pytest.mark.parametrize("gauge", sirens.GAUGES)
@pytest.mark.parametrize("kind", [RelationalTransformer, PNA])
def test_scores_stay_under_orders_signs_and_half_turns(networks, kind, gauge):
    sym, stack = networks
    reader = kind(sym, 1, gauge=gauge, channels=4, layers=2, heads=2)
    model = Standardized(reader, reading(reader, {}), reader.read(stack), 4, 3, seed=0).double()
    model.calibrate(stack, sym=sym)
    model(stack, sym=sym)  # statistics of the features
    model.eval()
    moved = act_stack(sym, random_stack(sym, 6, torch.Generator().manual_seed(3)), stack)
    with torch.no_grad():
        scores = model(stack, sym=sym)
        torch.testing.assert_close(model(moved, sym=sym), scores, rtol=0, atol=1e-9)
    assert scores.std(0).min() > 1e-4
    flat = FlatReader(sym, 3).double()
    assert (flat(moved, sym=sym) - flat(stack, sym=sym)).abs().max() > 1e-3


def test_graphs_are_made_once_for_each_gauge(networks, monkeypatch):
    sym, stack = networks
    readers = [RelationalTransformer(sym, gauge=gauge, channels=4, heads=2, layers=1) for gauge in sirens.GAUGES]
    calls, known = [], {}
    for reader in readers:
        monkeypatch.setattr(reader, "read", lambda own, sym, gauge=reader.gauge: calls.append(gauge) or len(calls))
    reads = [reading(reader, known) for reader in (*readers, readers[0])]
    assert [read(sym, stack) for read in reads] == [1, 2, 1]
    other = {name: tensor.clone() for name, tensor in stack.items()}
    assert reads[0](sym, other) == 1
    other["layers.0.bias"][2, 1] += 1e-9
    assert reads[0](sym, other) == 3


def test_shares_have_wilsons_interval():
    half = sirens.share_of(torch.arange(10) < 5)
    assert (half.value, round(half.low, 4), round(half.high, 4)) == (0.5, 0.2366, 0.7634)
    none = sirens.share_of(torch.zeros(10, dtype=torch.bool))
    assert (none.value, none.low, round(none.high, 4)) == (0.0, 0.0, 0.2775)


def pairs_of(model, count=4, steps=2):
    generator = torch.Generator().manual_seed(0)
    total = count * steps

    def drawn():
        return {
            name: torch.randn(total, *tensor.shape, generator=generator, dtype=tensor.dtype)
            for name, tensor in model.state_dict().items()
        }

    step, owner = torch.arange(steps).repeat_interleave(count), torch.arange(count).repeat(steps)
    return Pairs(drawn(), drawn(), drawn(), step, owner)


def test_planted_factors_of_layers_are_found():
    pairs = pairs_of(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double())
    zeros = {name: torch.zeros_like(tensor) for name, tensor in pairs.before.items()}
    torch.testing.assert_close(left_over(pairs, zeros), torch.ones(8, dtype=torch.float64))
    torch.testing.assert_close(left_over(pairs, pairs.moves), torch.zeros(8, dtype=torch.float64))
    for direction in (shrinking, extrapolating):
        along = direction(pairs)
        for number, name in enumerate(pairs.before):
            factor = (number + 1.0) * (1 - 3 * pairs.step).reshape(-1, *[1] * (pairs.before[name].ndim - 1))
            pairs.after[name] = pairs.before[name] + factor * along[name]
        for found in by_layer(direction, pairs, pairs):
            assert left_over(pairs, found).max() < 1e-20
    assert left_over(pairs, by_layer(shrinking, pairs, pairs)[0]).min() > 1e-3


def test_the_gradient_is_that_of_each_network():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    pairs, x, y = pairs_of(model), torch.randn(9, 3, dtype=torch.float64), torch.arange(9) % 2
    found = descending(model, Split(x, y))(pairs)
    model.load_state_dict({name: tensor[5] for name, tensor in pairs.before.items()})
    nn.functional.cross_entropy(model(x), y).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name][5], parameter.grad)


def test_defects_tell_equivariant_edits_from_others():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    sym = coset.discover(model, torch.randn(2, 3, dtype=torch.float64))
    stack = pairs_of(model).before
    edits = Edits(RelationalTransformer(sym, head="equivariant", gauge="layers", channels=4, heads=2, layers=2))
    edits.calibrate(stack, sym=sym)
    edits.double()
    assert editing.defects_of(edits, sym, stack, torch.Generator().manual_seed(1)).max() < 1e-10

    class Square(nn.Module):
        def forward(self, stack, *, sym):
            return torch.cat([tensor.flatten(1) for tensor in stack.values()], 1).square()

    assert editing.defects_of(Square(), sym, stack, torch.Generator().manual_seed(1)).min() > 0.1


def test_ratios_and_means_are_over_networks():
    pairs = pairs_of(nn.Linear(2, 2), count=6)
    values = torch.arange(12.0)
    torch.testing.assert_close(editing.over_owners(values, pairs), torch.arange(6).double() + 3)
    above, below = torch.tensor([1.0, 2, 3, 4, 5, 6]), torch.tensor([2.0, 2, 2, 2, 2, 4])
    assert editing.in_parts(above) == [3.5, 2.0, 5.0]
    assert editing.ratio(above, below) == [1.5, 1.0, 2.5]
    assert math.isclose(float(above.mean() / below.mean()), 1.5)
