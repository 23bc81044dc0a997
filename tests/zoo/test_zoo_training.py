"""Networks that train side by side are those that train alone."""

from dataclasses import replace

import pytest
import torch
from small_zoos import small
from torch import nn

from coset.errors import InputError
from coset.train import evaluate, fit
from coset.zoo import ZooSpec, train_zoo
from coset.zoo._data import load_data
from coset.zoo._members import members, new_model

NORMED = {"in_features": 30, "out_features": 2, "widths": [4, 3], "norm": "batch"}
DRAWN = {"low": 1e-3, "high": 1e-1, "log": True}
IMAGES = {"in_channels": 1, "stages": [2, 4], "blocks": 1}

# Each of at least 50 steps, since a difference of rounding may grow.
CASES = {
    "adam": small({"epochs": 13}),
    "sgd": small(
        {
            "optimizer": "sgd",
            "momentum": 0.9,
            "nesterov": True,
            "weight_decay": 1e-3,
            "epochs": 13,
            "schedule": "cosine",
        }
    ),
    "batch norm, best": small(
        {"epochs": 13, "keep": "best", "optimizer": "sgd"},
        options=NORMED,
        data={"name": "breast-cancer", "subset": 150, "validation": 0.15},
    ),
    "mixed, clipped": small({"epochs": 13, "mixup": 0.4, "clip": 0.5, "label_smoothing": 0.1}),
    "rates of adamw": {
        **small({"optimizer": "adamw", "epochs": 13, "schedule": "one-cycle"}, seeds=2),
        "grid": {"recipe": {"weight_decay": [0.0, 1e-2], "betas": [[0.9, 0.99], [0.8, 0.999]], "peak": [0.2, 0.4]}},
    },
    "decays of adam": {
        **small({"epochs": 13, "warmup_epochs": 2}, seeds=2),
        "grid": {"recipe": {"weight_decay": DRAWN}},
    },
    "momenta": {
        **small({"optimizer": "sgd", "epochs": 13}, seeds=2),
        "grid": {"recipe": {"momentum": [0.0, 0.5, 0.9], "weight_decay": [0.0, 1e-2]}},
    },
    "label noise, scales of the start": {
        **small({"epochs": 13}, seeds=2, data={"name": "breast-cancer", "subset": 128, "label_noise": 0.25}),
        "grid": {"initial_scale": {"low": 0.3, "high": 3.0, "log": True}},
    },
    "images": {
        **small({"epochs": 13, "augmentation": "shift-flip", "cutmix": 1.0, "mixup": 0.5, "optimizer": "sgd"}, seeds=2),
        "model": "resnet",
        "options": IMAGES,
        "data": {"name": "digits", "subset": 100},
    },
}


@pytest.mark.parametrize("name", CASES)
def test_a_member_is_the_network_trained_alone(name, tmp_path):
    spec = ZooSpec.from_dict(CASES[name])
    zoo = train_zoo(spec, tmp_path / "zoo")
    assert [one["path"] for one in zoo.content["architectures"]] == ["stacked"]
    everyone = members(spec)
    data = load_data(spec.data[0], torch.float64)
    held_out = data.parts.get("validation")
    for member in everyone[:: max(len(everyone) // 3, 1)]:
        model = new_model(spec, member.options, member.seed, member.scale)
        validation = None if held_out is None else (held_out.x, held_out.y)
        alone = fit(
            model, data.train.x, data.train.y, member.recipe, seed=member.seed, validation=validation, show=False
        )
        assert alone.steps >= 50
        for tensor, expected in zip(zoo[member.index].values(), alone.params.values(), strict=True):
            torch.testing.assert_close(tensor, expected, rtol=0.0, atol=1e-8)
        row = zoo.rows()[member.index]
        test = evaluate(model, data.parts["test"].x, data.parts["test"].y, params=alone.params)
        assert row["test_loss"] == pytest.approx(test.loss, abs=1e-8)
        assert row["test_accuracy"] == test.accuracy
        assert row["last_train_loss"] == pytest.approx(alone.history[-1].train.loss, abs=1e-8)


def test_a_shared_order_does_not_depend_on_the_group(tmp_path):
    together = train_zoo(small(order="shared", group=6), tmp_path / "together")
    alone = train_zoo(small(order="shared", group=1), tmp_path / "alone")
    own = train_zoo(small(), tmp_path / "own")
    for index in (0, 5):
        for name, tensor in together[index].items():
            torch.testing.assert_close(tensor, alone[index][name], rtol=0.0, atol=1e-12)
    assert (together[5]["layers.0.weight"] - own[5]["layers.0.weight"]).abs().max() > 1e-6


def test_images_in_a_shared_order_are_those_of_a_network_alone(tmp_path):
    given = {**CASES["images"], "order": "shared"}
    given["recipe"] = {**given["recipe"], "epochs": 2}
    together = train_zoo(given, tmp_path / "together")
    alone = train_zoo({**given, "group": 1}, tmp_path / "alone")
    for index in together.indices:
        for name, tensor in together[index].items():
            torch.testing.assert_close(tensor, alone[index][name], rtol=0.0, atol=1e-10)


class Dropping(nn.Sequential):
    """Draws, so that a network in a batch would not be the network alone."""

    def __init__(self):
        super().__init__(nn.Linear(30, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2))


def test_what_vmap_does_not_take_is_trained_by_fit(tmp_path):
    given = small(model=f"{__name__}:Dropping", options={}, seeds=2, group=1, snapshots={"epochs": [1, 2]})
    spec = ZooSpec.from_dict(given)
    zoo = train_zoo(spec, tmp_path / "zoo", workers=1)
    assert [one["path"] for one in zoo.content["architectures"]] == ["one by one"]
    data = load_data(spec.data[0], torch.float64)
    for member in members(spec):
        model = new_model(spec, {}, member.seed)
        alone = fit(model, data.train.x, data.train.y, member.recipe, seed=member.seed, show=False)
        for name, tensor in zoo[member.index].items():
            assert torch.equal(tensor, alone.params[name])
    assert torch.equal(zoo.stack([1], step=8)["0.weight"], zoo.stack([1])["0.weight"])
    assert not torch.equal(zoo.stack([1], step=4)["0.weight"], zoo.stack([1])["0.weight"])
    with pytest.raises(InputError, match="order is 'shared', and the model"):
        train_zoo({**given, "order": "shared"}, tmp_path / "shared")


def test_a_network_that_diverges_is_reported_and_leaves_others_alone(tmp_path):
    base = small({"optimizer": "sgd"}, seeds=[0, 3])
    del base["recipe"]["learning_rate"]
    zoo = train_zoo({**base, "grid": {"recipe": {"learning_rate": [1e-2, 1e200]}}}, tmp_path / "both")
    calm = train_zoo({**base, "grid": {"recipe": {"learning_rate": [1e-2, 1e-2]}}}, tmp_path / "calm")
    assert zoo.problems == {2: "training diverged", 3: "training diverged"}
    assert zoo.indices == (0, 1)
    for name, tensor in zoo.stack().items():
        torch.testing.assert_close(tensor, calm.stack([0, 1])[name], rtol=0.0, atol=1e-12)
    with pytest.raises(InputError, match=r"network 2 of .*: training diverged"):
        zoo[2]


def test_snapshots_are_the_weights_after_a_step(trained):
    from coset.zoo import open_zoo

    zoo = open_zoo(trained)
    assert zoo.snapshots == (0, 3)
    spec = ZooSpec.from_dict(zoo.content["spec"])
    fresh = new_model(spec, {}, 5).state_dict()
    for name, tensor in zoo.stack([5], step=0).items():
        assert torch.equal(tensor[0], fresh[name])
    data, seen = load_data(spec.data[0], torch.float64), {}

    def look(moment):
        if moment.step == 3 and moment.record is None:
            seen.update({name: t.detach().clone() for name, t in moment.model.state_dict().items()})

    member = members(spec)[5]
    fit(new_model(spec, {}, 5), data.train.x, data.train.y, member.recipe, seed=5, show=False, callback=look)
    for name, tensor in zoo.stack([5], step=3).items():
        torch.testing.assert_close(tensor[0], seen[name], rtol=0.0, atol=1e-12)
    with pytest.raises(InputError, match="no snapshot after step 4; it has 0, 3"):
        zoo.stack([5], step=4)


IMAGED = small({"augmentation": "shift-flip"})
BEST = small({"keep": "best"})
SINGLE = small({"batch_size": 127}, options=NORMED)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (small(snapshots={"steps": [99]}), "after step 99; the training has 8 steps"),
        (BEST, "the recipe's keep='best' expects validation data"),
        (IMAGED, "augmentation 'shift-flip' expects real images"),
        (SINGLE, "batch_size 127 leaves a batch of 1 of the 128 examples"),
        (small(data="digits"), "the model cannot be trained on digits: x: the model cannot take inputs of shape"),
        (small({"loss": "mse"}), "the model cannot be trained on breast-cancer: y has shape"),
        (small(options={"in_features": 30, "out_features": 2, "width": [4]}), "width"),
        (small(model="no_such_module:Model"), "no_such_module"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(spec, said, tmp_path):
    with pytest.raises(InputError) as error:
        train_zoo(spec, tmp_path / "zoo")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_other_data_or_another_model_than_those_of_the_beginning_are_refused(tmp_path, monkeypatch):
    from coset.zoo import _work

    spec = small(model=f"{__name__}:Dropping", options={}, seeds=2)
    monkeypatch.setattr(_work, "train_one_by_one", lambda task: pytest.fail("was trained"))
    with monkeypatch.context() as patched:
        patched.setattr(_work.Workshop, "load", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train_zoo(spec, tmp_path / "zoo", workers=1)
    with monkeypatch.context() as patched:
        patched.setattr(_work, "load_data", lambda one, dtype: load_data(replace(one, cut_seed=1, subset=64), dtype))
        with pytest.raises(InputError, match=r"the data breast-cancer are not those that .* was begun with"):
            train_zoo(spec, tmp_path / "zoo", workers=1)
    monkeypatch.setattr(_work, "described", lambda model: {})
    with pytest.raises(InputError, match=r"is not the one that .* was begun with: its tensors differ"):
        train_zoo(spec, tmp_path / "zoo", workers=1)
