"""Renormalised networks, measured unit by unit with hooks on their modules, against what was asked for."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from measured_networks import LINEAR, MODELS, WEIGHTS, Normed, assert_repaired, generator, outputs, setting
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from architectures import CASES, made, randomized
from coset._show.progress import SILENT
from coset.alignment.averages import mean
from coset.alignment.merging._renormalize import RENORMALIZATIONS, renormalize
from coset.alignment.merging.layer_statistics import moments
from coset.errors import InputError
from coset.models import MLP
from coset.running.moments import merged as pooled
from coset.symmetry import Symmetry, discover
from coset.symmetry.axes import units_of
from coset.symmetry.graph import Graph


@pytest.mark.parametrize("name", MODELS)
def test_repair_gives_every_hidden_unit_the_ends_mean_and_deviation(name):
    build, shape = MODELS[name]
    model, sym, a, b, merged, x = setting(build(), shape)
    done = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=x)
    hidden = [f"{key}.weight" for key in outputs(model, a, x, LINEAR)]
    assert list(done.corrected) == hidden[:-1]
    assert done.skipped.keys() == {hidden[-1]}
    assert_repaired(model, [a, b], done.params, x, done.corrected, 1e-12)
    assert torch.equal(done.params[hidden[-1]], merged[hidden[-1]])


class Groups(nn.Module):
    """Groups of a transposed convolution that change places, while the channels in them do not."""

    def __init__(self):
        super().__init__()
        self.lift = nn.Conv2d(2, 8, 1)
        self.up = nn.ConvTranspose2d(8, 12, 2, groups=4)

    def forward(self, x):
        x = torch.relu(self.up(torch.relu(self.lift(x)))).flatten(2).mean(-1).unflatten(1, (4, 3))
        return (x * torch.tensor([1.0, 2.0, 3.0]).to(x)).sum(1)


def test_the_graph_tells_which_units_stand_on_outputs():
    """On its axis the weight has the channels of one group, which stay; on the output are the groups, too."""
    model, sym, a, b, merged, x = setting(Groups(), (2, 3, 3))
    assert not any(sym.classes[unit.name].permutes for unit in units_of(sym.parameters["up.weight"].axes[1]))
    done = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=x)
    assert done.corrected == ("lift.weight", "up.weight")
    assert not done.skipped
    assert_repaired(model, [a, b], done.params, x, done.corrected, 1e-12)
    # A symmetry without a graph knows the axes of weights alone.
    bare = sym.annotated(graph=Graph(nodes=sym.classes))
    assert renormalize(bare, model, merged, [a, b], weights=WEIGHTS, data=x).corrected == ("lift.weight",)


def test_the_output_is_corrected_on_request():
    model, sym, a, b, merged, x = setting(MLP(4, [5], 2), (4,))
    done = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=x, hidden_only=False)
    assert done.corrected == ("layers.0.weight", "layers.1.weight")
    assert_repaired(model, [a, b], done.params, x, done.corrected, 1e-12)


def test_batch_by_batch_the_first_layers_are_exact_and_more_passes_make_all_so():
    model, sym, a, b, merged, x = setting(MLP(4, [6, 6, 6], 2), (4,), count=60)
    loader = [(x[:25], None), (x[25:55], None), (x[55:], None)]
    layers = [f"layers.{index}.weight" for index in range(3)]
    one = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=loader)
    assert_repaired(model, [a, b], one.params, x, layers[:1], 1e-12)
    # Behind it a batch of five was corrected by the statistics of five.
    with pytest.raises(AssertionError):
        assert_repaired(model, [a, b], one.params, x, layers, 1e-3)
    two = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=x, batch_size=25, passes=2)
    assert_repaired(model, [a, b], two.params, x, layers[:2], 1e-12)
    three = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=loader, passes=3)
    assert_repaired(model, [a, b], three.params, x, layers, 1e-12)


def test_rescale_multiplies_outputs_and_shifts_nothing():
    model, sym, a, b, merged, x = setting(MLP(4, [6, 5], 2), (4,))
    done = renormalize(sym, model, merged, [a, b], method="rescale", weights=WEIGHTS, data=x)
    assert done.rescaled == ("layers.0.weight", "layers.1.weight")
    assert done.corrected == ()
    before, after = ([outputs(model, p, x, LINEAR) for p in pair] for pair in ((a, b), (merged, done.params)))
    for layer in ("layers.0", "layers.1"):
        wanted = sum(share * end[layer].std(0) for share, end in zip(WEIGHTS, before, strict=True))
        torch.testing.assert_close(after[1][layer].std(0), wanted)
        factor = done.factors[f"{layer}.bias"]
        torch.testing.assert_close(done.params[f"{layer}.bias"], merged[f"{layer}.bias"] * factor)
        torch.testing.assert_close(done.params[f"{layer}.weight"], merged[f"{layer}.weight"] * factor[:, None])
    torch.testing.assert_close(after[1]["layers.0"], after[0]["layers.0"] * done.factors["layers.0.bias"])


def test_layers_without_a_bias_are_only_rescaled():
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    model, sym, a, b, merged, x = setting(model, (3,))
    done = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=x + 1)
    assert done.rescaled == ("0.weight",)
    assert done.corrected == ("2.weight",)
    before = [outputs(model, end, x + 1, LINEAR)["0"] for end in (a, b)]
    after = outputs(model, done.params, x + 1, LINEAR)["0"]
    torch.testing.assert_close(after.std(0), 0.3 * before[0].std(0) + 0.7 * before[1].std(0))
    assert_repaired(model, [a, b], done.params, x + 1, done.corrected, 1e-12)


@pytest.mark.parametrize("method", RENORMALIZATIONS)
@pytest.mark.parametrize("name", CASES)
def test_names_shapes_and_types_stay_for_every_architecture(name, method):
    model, sym, shape = made(name)
    a, b = (randomized(model, generator(seed)) for seed in range(2))
    merged = mean([a, b])
    kept = {key: tensor.clone() for key, tensor in merged.items()}
    x = torch.randn(8, *shape, generator=generator(3), dtype=torch.float64)
    options = {"none": {}, "data-free": {"example": x, "count": 8}}.get(method, {"data": x})
    done = renormalize(sym, model, merged, [a, b], method=method, **options)
    assert list(done.params) == list(merged)
    for key, tensor in done.params.items():
        assert tensor.shape == merged[key].shape
        assert tensor.dtype == merged[key].dtype
        assert torch.isfinite(tensor).all()
        assert torch.equal(merged[key], kept[key])
    touched = {*done.corrected, *done.rescaled, *done.refreshed}
    assert touched.isdisjoint(done.skipped)
    weights = {key for key in merged if key.endswith("weight") and sym.parameters[key].moves and merged[key].ndim > 1}
    if method in ("repair", "rescale", "data-free"):
        assert weights <= touched | done.skipped.keys()


@pytest.mark.parametrize(
    ("name", "method"),
    [("mlp", "repair"), ("unusual", "repair"), ("mlp", "rescale"), ("mlp", "data-free"), ("normed", "data-free")],
)
def test_copies_need_no_correction(name, method):
    build, shape = {**MODELS, "normed": (Normed, (2, 5, 5))}[name]
    model, sym, a, _, _, x = setting(build(), shape)
    options = {"example": x} if method == "data-free" else {"data": x}
    done = renormalize(sym, model, a, [a, a], method=method, **options)
    for key, tensor in a.items():
        torch.testing.assert_close(done.params[key], tensor, rtol=1e-11, atol=1e-11)


class Odd(nn.Module):
    """A map applied twice, one whose weight is read elsewhere, one with a computed bias, and one of plain products."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.twice = nn.Linear(4, 4)
        self.seen = nn.Linear(4, 4)
        self.computed = nn.Linear(4, 4)
        self.bare = nn.Parameter(torch.randn(4, 4))
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        x = torch.relu(self.seen(x)) + self.seen.weight.sum(1)
        x = torch.relu(F.linear(x, self.computed.weight, 2 * self.computed.bias))
        return self.out(torch.relu(x @ self.bare))


def test_what_cannot_be_folded_is_left_and_told():
    model = Odd().double().eval()
    axes = {
        "first.weight": "a", "first.bias": "a", "twice.weight": "a a^-1", "twice.bias": "a", "seen.weight": "b a^-1",
        "computed.weight": "c b^-1", "bare": "c^-1 d", "out.weight": "- d^-1",
    }  # fmt: skip
    sym = Symmetry.from_axes(axes, model)
    model, sym, a, b, merged, x = setting(model, (3,), symmetry=sym)
    done = renormalize(sym, model, merged, [a, b], data=x)
    assert done.corrected == ("first.weight",)
    assert done.skipped["twice.weight"] == "'twice.bias' is read more than once: by linear, linear"
    assert done.skipped["seen.weight"] == "'seen.weight' is read more than once: by linear, sum"
    assert done.skipped["computed.weight"] == "its bias is computed and no parameter"
    assert done.skipped["bare"] == "no linear map or convolution reads it, but matmul"
    for name, tensor in merged.items():
        assert torch.equal(done.params[name], tensor) or name.startswith("first")


def test_tied_weights_are_left_and_stay_tied():
    model, sym, _ = made("tied embeddings")
    a, b = (randomized(model, generator(seed)) for seed in range(2))
    x = torch.randn(8, 6, generator=generator(3), dtype=torch.float64)
    done = renormalize(sym, model, mean([a, b]), [a, b], data=x)
    assert done.params["embed.weight"] is done.params["head.weight"]
    assert done.skipped["embed.weight"] == "'embed.weight' and 'head.weight' are one tensor"


@pytest.mark.parametrize("method", ["refresh", "repair", "rescale", "data-free"])
def test_tied_weights_may_come_apart_as_files_store_them(method):
    model, sym, _ = made("tied embeddings")
    a, b = (randomized(model, generator(seed)) for seed in range(2))
    x = torch.randn(8, 6, generator=generator(3), dtype=torch.float64)
    options = {"example": x} if method == "data-free" else {"data": x}
    tied = renormalize(sym, model, mean([a, b]), [a, b], method=method, **options)
    loose = [{name: tensor.clone() for name, tensor in params.items()} for params in (mean([a, b]), a, b)]
    done = renormalize(sym, model, loose[0], loose[1:], method=method, **options)
    assert done.params.keys() == tied.params.keys()
    assert all(torch.equal(done.params[name], tensor) for name, tensor in tied.params.items())
    loose[0]["head.weight"] += 1
    with pytest.raises(InputError, match=r"'head\.weight' and 'embed\.weight' are one tensor in .* differ here"):
        renormalize(sym, model, loose[0], loose[1:], method=method, **options)


def test_inputs_take_the_type_of_the_weights():
    model, sym, a, b, merged, x = setting(MLP(4, [5], 2), (4,))
    single = x.float()
    done = renormalize(sym, model, merged, [a, b], data=single)
    wide = renormalize(sym, model, merged, [a, b], data=single.double())
    assert all(torch.equal(done.params[name], tensor) for name, tensor in wide.params.items())


def test_data_that_are_not_finite_are_named():
    model, sym, a, b, merged, x = setting(MLP(4, [5], 2), (4,))
    x[25, 1] = torch.nan
    with pytest.raises(InputError, match="batch 1 of data has 1 entries that are NaN or infinite"):
        renormalize(sym, model, merged, [a, b], data=x, batch_size=20)


def test_units_that_are_constant_stay_as_they_are():
    model, sym, a, b, _, x = setting(MLP(3, [4, 4], 2), (3,))
    # Opposite units average to none; one unit is dead in both ends.
    b["layers.0.weight"][0] = -a["layers.0.weight"][0]
    b["layers.0.bias"][0] = -a["layers.0.bias"][0]
    for end in (a, b):
        end["layers.0.weight"][1] = 0
    merged = mean([a, b])
    for method in ("repair", "rescale"):
        done = renormalize(sym, model, merged, [a, b], method=method, data=x)
        assert all(torch.isfinite(tensor).all() for tensor in done.params.values())
        for name in ("layers.0.weight", "layers.0.bias"):
            assert torch.equal(done.params[name][:2], merged[name][:2])
            assert not torch.equal(done.params[name][2:], merged[name][2:])


def test_half_types_are_kept_and_measured_in_single_precision():
    model = MLP(3, [4], 2).half().eval()
    a, b = ({key: t.half() for key, t in randomized(model, generator(seed)).items()} for seed in range(2))
    sym = discover(MLP(3, [4], 2).eval(), torch.randn(2, 3))
    x = torch.randn(50, 3, generator=generator(0)).half()
    merged = mean([a, b])
    done = renormalize(sym, model, merged, [a, b], data=x)
    wide = [{key: tensor.float() for key, tensor in params.items()} for params in (a, b, merged)]
    exact = renormalize(sym, model.float(), wide[2], wide[:2], data=x.float())
    for key, tensor in done.params.items():
        assert tensor.dtype == torch.float16
        torch.testing.assert_close(tensor.float(), exact.params[key], rtol=5e-3, atol=5e-3)


def test_moments_of_parts_add_up():
    y = 1e3 + torch.randn(50, 3, 4, generator=generator(0), dtype=torch.float64)
    both = pooled(moments(y[:13], 1), moments(y[13:], -2))
    assert both.count == 200
    torch.testing.assert_close(both.mean, y.mean((0, 2)), rtol=1e-14, atol=0)
    torch.testing.assert_close(both.deviation, y.std((0, 2), correction=0), rtol=1e-12, atol=0)


def test_the_model_keeps_its_mode_and_drops_nothing_out():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    model, sym, a, b, merged, x = setting(model, (3,))
    calm = renormalize(sym, model, merged, [a, b], data=x)
    model.train()
    model[2].eval()
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    done = renormalize(sym, model, merged, [a, b], data=x)
    assert [module.training for module in model] == [True, True, False, True, True, True]
    assert all(torch.equal(done.params[name], tensor) for name, tensor in calm.params.items())
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in own.items())


@pytest.mark.parametrize("method", ["repair", "rescale"])
def test_a_loader_that_shuffles_gives_the_same_result_and_takes_no_global_randomness(method):
    model, sym, a, b, merged, x = setting(MLP(4, [5, 5], 2), (4,))
    loader = DataLoader(TensorDataset(x), batch_size=7, shuffle=True)
    state = torch.get_rng_state()
    first, again = (renormalize(sym, model, merged, [a, b], method=method, data=loader).params for _ in range(2))
    assert all(torch.equal(first[name], tensor) for name, tensor in again.items())
    assert torch.equal(torch.get_rng_state(), state)


def test_progress_counts_the_batches_of_a_pair(monkeypatch):
    model, sym, a, b, merged, x = setting(MLP(4, [5], 2), (4,))
    totals = []

    def spied(description, total, *, show=None):
        totals.append(total)
        return nullcontext(SILENT)

    monkeypatch.setattr("coset.alignment.merging.measured.progress", spied)
    renormalize(sym, model, merged, [a, b], data=(x, x[:, 0]), batch_size=15, passes=2)
    assert totals == [6]


def test_data_that_come_once_suffice_for_one_pass():
    model, sym, a, b, merged, x = setting(MLP(4, [5], 2), (4,))
    once = renormalize(sym, model, merged, [a, b], data=(batch for batch in (x[:20], x[20:])))
    twice = renormalize(sym, model, merged, [a, b], data=[x[:20], x[20:]])
    assert all(torch.equal(once.params[name], tensor) for name, tensor in twice.params.items())
    with pytest.raises(InputError, match="can be gone through once, and passes is 2"):
        renormalize(sym, model, merged, [a, b], data=iter([x]), passes=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": []}, "data holds no batches"),
        ({"data": torch.zeros(0, 4)}, "expected at least one input"),
        (
            {"data": torch.zeros(5, 7, dtype=torch.float64)},
            r"does not run .* on data of shape \(5, 7\)",
        ),
        ({"data": torch.zeros(5, 4, dtype=torch.long)}, "type torch.int64"),
        ({"data": torch.zeros(5, 4), "passes": 0}, "passes is 0"),
        ({"data": torch.zeros(5, 4), "batch_size": 0}, "batch_size is 0"),
        ({"data": None}, "data is None; renormalize='repair' measures"),
        ({"method": "data-free", "data": []}, "renormalize='data-free' has no option 'data'; it has example, count"),
        ({"method": "data-free", "count": 1}, "count is 1"),
        ({"method": "data-free", "example": torch.zeros(2, 4, dtype=torch.long)}, "expects a batch of real numbers"),
        ({"method": "pray"}, "renormalize is 'pray'"),
    ],
)
def test_bad_input_is_refused(options, message):
    model, sym, a, b, merged, _ = setting(MLP(4, [5], 2), (4,))
    with pytest.raises(InputError, match=message):
        renormalize(sym, model, merged, [a, b], **options)


def test_what_is_missing_is_named():
    model, sym, a, b, merged, x = setting(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (3,))
    with pytest.raises(InputError, match="Sequential has no attribute input_shape, and example is None"):
        renormalize(sym, model, merged, [a, b], method="data-free")
    with pytest.raises(InputError, match="model is None"):
        renormalize(sym, None, merged, [a, b], data=x)
    with pytest.raises(InputError, match="ends is empty"):
        renormalize(sym, model, merged, [], data=x)
    with pytest.raises(InputError, match="end 1 lacks"):
        renormalize(sym, model, merged, [a, {}], data=x)


def test_weights_that_overflow_are_an_error():
    model, sym, a, b, merged, x = setting(MLP(3, [4, 4], 2), (3,))
    huge = {name: tensor * 1e160 for name, tensor in a.items()}
    with pytest.raises(InputError, match=r"the outputs of 'layers.0.weight' .* whose squares float64 does not hold"):
        renormalize(sym, model, merged, [huge, b], data=x)
