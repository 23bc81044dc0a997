"""Specifications: what they mean, and what is said of mistakes in them."""

import pytest
import torch
from small_zoos import SMALL, small

from coset.errors import InputError
from coset.zoo import DataSpec, Range, ZooSpec, read_spec
from coset.zoo._data import load_data
from coset.zoo._members import grouped, members, new_model

TEXT = """
model = "mlp"
seeds = 3
[options]
in_features = 30
out_features = 2
[data]
name = "breast-cancer"
[recipe]
epochs = 2
batch_size = 32
[grid.options]
widths = [[4], [5]]
[grid.recipe]
learning_rate = {low = 1e-3, high = 1e-1, log = true}
weight_decay = [0.0, 1e-3]
"""


def test_all_combinations_are_numbered_and_ranges_drawn(tmp_path):
    (tmp_path / "spec.toml").write_text(TEXT)
    spec = read_spec(tmp_path / "spec.toml")
    everyone = members(spec)
    assert len(everyone) == 2 * 2 * 3
    assert [(m.options["widths"], m.settings["weight_decay"], m.seed) for m in everyone[2:5]] == [
        ([4], 0.0, 2),
        ([4], 1e-3, 0),
        ([4], 1e-3, 1),
    ]
    rates = [m.recipe.learning_rate for m in everyone]
    assert len(set(rates)) == 12
    assert all(1e-3 <= rate < 1e-1 for rate in rates)
    assert members(ZooSpec.from_dict(spec.to_dict())) == everyone
    assert grouped(everyone, {(0, 0): 4, (0, 1): 8}) == [(0, 1, 2, 3), (4, 5), (6, 7, 8, 9, 10, 11)]


def test_a_draw_does_not_depend_on_how_many_there_are():
    grid = {"recipe": {"weight_decay": {"low": 0.0, "high": 1.0}}}
    few, many = (members(ZooSpec.from_dict({**SMALL, "seeds": n, "grid": grid})) for n in (2, 9))
    assert [m.settings for m in few] == [m.settings for m in many[:2]]


def test_the_scale_of_first_weights_varies_like_settings_of_the_recipe():
    listed = ZooSpec.from_dict(small(seeds=2, grid={"initial_scale": [0.5, 2.0]}))
    assert [(m.scale, m.seed) for m in members(listed)] == [(0.5, 0), (0.5, 1), (2.0, 0), (2.0, 1)]
    drawn = ZooSpec.from_dict(small(grid={"initial_scale": {"low": 0.5, "high": 2.0, "log": True}}))
    scales = [m.settings["initial_scale"] for m in members(drawn)]
    assert len(set(scales)) == 6
    assert all(0.5 <= scale < 2.0 for scale in scales)
    assert grouped(members(drawn), {(0, 0): 8}) == [tuple(range(6))]
    for spec in (listed, drawn):
        assert members(ZooSpec.from_dict(spec.to_dict())) == members(spec)
    plain, scaled = (new_model(listed, {}, 0, scale).state_dict() for scale in (1.0, 2.0))
    for name, tensor in plain.items():
        assert torch.equal(scaled[name], tensor * (2.0 if tensor.ndim > 1 else 1.0))


def test_label_noise_replaces_that_share_of_the_labels_by_others():
    clean, noisy = (
        load_data(DataSpec("digits", subset=100, validation=0.2, label_noise=share), torch.float64)
        for share in (0.0, 0.3)
    )
    wrong = clean.train.y != noisy.train.y
    assert int(wrong.sum()) == round(0.3 * len(clean.train))
    assert noisy.train.y.unique().tolist() == list(range(10))
    assert torch.equal(clean.train.x, noisy.train.x)
    for part in ("validation", "test"):
        assert torch.equal(clean.parts[part].y, noisy.parts[part].y)


def test_label_noise_is_for_classes(data_folder):
    with pytest.raises(InputError, match="snelson has no labels of classes"):
        load_data(DataSpec("snelson", label_noise=0.1), torch.float64)


def test_a_specification_without_noise_and_scales_is_written_as_before_there_were_any():
    written = ZooSpec.from_dict(SMALL).to_dict()
    assert "label_noise" not in written["data"][0]
    assert "initial_scale" not in written["grid"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({**SMALL, "sedes": 3}, "has no key 'sedes'; did you mean 'seeds'?"),
        (small({"learning_rte": 3}), "recipe has no key 'learning_rte'; did you mean 'learning_rate'?"),
        (small(data={"name": "breast-cancer", "subst": 3}), "data has no key 'subst'; did you mean 'subset'?"),
        (small(data="brest-cancer"), "'brest-cancer' is not a data set; did you mean 'breast-cancer'?"),
        (small(data={"name": "breast-cancer", "label_noise": 1.5}), "label_noise is 1.5; expected a share from 0 to 1"),
        (small(grid={"initial_scale": [1.0, 0.0]}), "initial_scale is (1.0, 0.0); expected numbers > 0"),
        (small(grid={"initial_scale": []}), "initial_scale is (); expected numbers > 0"),
        (small(grid={"option": {}}), "grid has no key 'option'; did you mean 'options'?"),
        (small(grid={"recipe": {"weight_decay": {"lo": 1}}}), "a range has no key 'lo'; did you mean 'low'?"),
        (small(grid={"recipe": {"epochs": [1]}}), "epochs has values here and one above"),
        (small(snapshots={"step": [1]}), "snapshots has no key 'step'; did you mean 'steps'?"),
        (small(seeds=0), "seeds is 0; expected how many, or a list of them"),
        (small(seeds=[1, 1]), "all different"),
        (small(order="mine"), "order is 'mine'; expected one of 'own', 'shared'"),
        ({"model": "mlp"}, "has no data; expected model, data, recipe and seeds at least"),
    ],
)
def test_mistakes_are_named_in_one_line(spec, said):
    with pytest.raises(InputError) as error:
        ZooSpec.from_dict(spec)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_ranges_are_checked():
    assert Range(1e-4, 1e-2, log=True).at(0.5) == pytest.approx(1e-3)
    with pytest.raises(InputError, match="low < high"):
        Range(2.0, 1.0)
    with pytest.raises(InputError, match="above 0"):
        Range(0.0, 1.0, log=True)
