"""The loop against plain PyTorch loops written out by hand, and what it promises: purity, determinism, accuracy."""

import copy
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from coset.errors import InputError
from coset.train import Moment, Recipe, evaluate, fit
from coset.train.augment import AUGMENTATIONS, draw_mixes, mix_inputs, move
from coset.train.randomness import stream, stream_seed
from coset.train.schedule import learning_rate

PLAIN = Recipe(epochs=3, batch_size=8, learning_rate=0.05)


def network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3))


def examples(count: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 6, generator=generator), torch.randint(3, (count,), generator=generator)


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def by_hand(model: nn.Module, x: Tensor, y: Tensor, recipe: Recipe, optimizer: Any, loss: Any) -> dict[str, Tensor]:
    """What fit does without augmentation and mixing, in the plainest words of PyTorch (seed 5)."""
    model = copy.deepcopy(model).train()
    optimizer = optimizer(model.parameters())
    per_epoch, step = -(-len(x) // recipe.batch_size), 0
    for epoch in range(recipe.epochs):
        torch.manual_seed(stream_seed("model", 5, epoch))
        order = torch.randperm(len(x), generator=stream("order", 5, epoch))
        for batch in order.split(recipe.batch_size):
            optimizer.param_groups[0]["lr"] = learning_rate(recipe, step, per_epoch)
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            if recipe.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            optimizer.step()
            step += 1
    return model.state_dict()


SGD = {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}


@pytest.mark.parametrize(
    ("settings", "optimizer"),
    [
        (SGD, lambda p: torch.optim.SGD(p, momentum=0.9, nesterov=True, weight_decay=1e-3, fused=True)),
        ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, fused=True)),
        ({"optimizer": "adam", "betas": (0.8, 0.9)}, lambda p: torch.optim.Adam(p, betas=(0.8, 0.9), fused=True)),
        ({"optimizer": "adamw", "weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, weight_decay=0.1, fused=True)),
    ],
)
@pytest.mark.parametrize("extra", [{}, {"schedule": "cosine", "warmup_epochs": 1, "clip": 0.1, "label_smoothing": 0.2}])
def test_same_bits_as_a_loop_by_hand(settings: dict[str, Any], optimizer: Any, extra: dict[str, Any]) -> None:
    model, (x, y) = network(dropout=0.3), examples()
    recipe = replace(PLAIN, **settings, **extra)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, label_smoothing=recipe.label_smoothing)

    assert equal(fit(model, x, y, recipe, seed=5).params, by_hand(model, x, y, recipe, optimizer, loss))


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_fused_kernels_take_the_steps_of_the_plain_ones(name: str) -> None:
    # No batch normalisation: biases before it have no gradient but rounding errors, which Adam blows up to full steps.
    torch.manual_seed(0)
    model, (x, y) = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double(), examples()
    recipe = replace(PLAIN, optimizer=name, momentum=0.9 if name == "sgd" else 0.0)
    plain = {"sgd": lambda p: torch.optim.SGD(p, momentum=0.9, foreach=False), "adam": torch.optim.Adam}[name]
    expected = by_hand(model, x.double(), y, recipe, plain, functional.cross_entropy)
    found = fit(model, x.double(), y, recipe, seed=5).params
    for key, tensor in expected.items():
        assert torch.allclose(found[key], tensor, rtol=1e-9, atol=1e-11)


def test_regression_has_the_bits_of_a_loop_by_hand() -> None:
    x, _ = examples()
    y = x[:, :3].sin()
    recipe = replace(PLAIN, loss="mse")
    expected = by_hand(network(), x, y, recipe, lambda p: torch.optim.SGD(p, lr=1, fused=True), functional.mse_loss)
    result = fit(network(), x, y, recipe, seed=5)
    assert equal(result.params, expected)
    assert all(epoch.train.rmse == pytest.approx(epoch.train.loss**0.5, rel=1e-6) for epoch in result.history)
    assert all(epoch.train.accuracy is None for epoch in result.history)


def test_binary_labels_are_learnt() -> None:
    x, _ = examples(200)
    y = (x[:, :1] > 0).int()
    model = nn.Linear(6, 1)
    result = fit(model, x, y, replace(PLAIN, loss="binary-cross-entropy", epochs=40, learning_rate=1.0), seed=0)
    metrics = evaluate(model, x, y, params=result.params, loss="binary-cross-entropy")
    assert metrics.accuracy is not None
    assert metrics.accuracy > 0.97


def test_augmentation_and_mixing_reach_the_model_as_planned() -> None:
    """The inputs the model sees, collected by a hook, are those computed from the epoch's streams."""
    seen: list[Tensor] = []

    class Watcher(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2 * 6 * 6, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            if self.training:
                seen.append(inputs.detach().clone())
            return self.linear(inputs.flatten(1))

    x = torch.randn(10, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    recipe = replace(PLAIN, epochs=2, batch_size=4, augmentation="shift-flip", mixup=0.5, cutmix=1.0)
    fit(Watcher(), x, torch.arange(10) % 3, recipe, seed=9)
    expected = []
    for epoch in range(2):
        order = torch.randperm(10, generator=stream("order", 9, epoch))
        motions = AUGMENTATIONS["shift-flip"](10, 2, stream("augmentation", 9, epoch))
        mixes = draw_mixes(3, 0.5, 1.0, (2, 6, 6), stream("mixing", 9, epoch))
        assert motions is not None
        assert mixes is not None
        for index, start in enumerate((0, 4, 8)):
            expected.append(mix_inputs(move(x[order[start : start + 4]], motions, start), mixes[index]))
    assert len(seen) == len(expected) == 6
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_mixed_labels_enter_loss_and_accuracy_by_their_weight() -> None:
    x, y = examples(8)
    model = nn.Linear(6, 3)
    recipe = replace(PLAIN, epochs=1, mixup=1.0)
    record = fit(model, x, y, recipe, seed=2).history[0].train
    order = torch.randperm(8, generator=stream("order", 2, 0))
    mixes = draw_mixes(1, 1.0, 0.0, (6,), stream("mixing", 2, 0))
    assert mixes is not None
    share, inputs, own = mixes[0].weight, x[order], y[order]
    other = own.roll(1, 0)
    outputs = model(share * inputs + (1 - share) * inputs.roll(1, 0)).detach()
    right = share * (outputs.argmax(1) == own).float() + (1 - share) * (outputs.argmax(1) == other).float()
    loss = share * functional.cross_entropy(outputs, own) + (1 - share) * functional.cross_entropy(outputs, other)
    assert record.accuracy == pytest.approx(float(right.mean()), rel=1e-6)
    assert record.loss == pytest.approx(float(loss), rel=1e-5)


def test_history_averages_over_examples_not_batches() -> None:
    x, y = examples(9)
    model = nn.Linear(6, 3)
    record = fit(model, x, y, replace(PLAIN, epochs=1, learning_rate=1e-30), seed=0).history[0]
    still = evaluate(model, x, y)
    assert record.train.loss == pytest.approx(still.loss, rel=1e-6)
    assert record.train.accuracy == pytest.approx(still.accuracy, rel=1e-12)
    assert record.train.count == 9
    assert record.validation is None


def test_the_model_and_the_global_generator_stay_as_they_were() -> None:
    model, (x, y) = network(dropout=0.5).train(), examples()
    model[1].eval()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    state = torch.get_rng_state()
    x_before = x.clone()
    result = fit(model, x, y, PLAIN, seed=0, validation=(x, y))
    assert equal(model.state_dict(), before)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, x_before)
    assert not equal(result.params, before)
    assert all(not tensor.requires_grad for tensor in result.params.values())


def test_gradients_of_the_data_are_left_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y, held_x, held_y = (torch.randn(12, 6, generator=generator).requires_grad_() for _ in range(4))
    result = fit(nn.Linear(6, 6), x, y, replace(PLAIN, loss="mse"), seed=0, validation=(held_x, held_y))
    assert result.steps == 6
    assert all(tensor.grad is None and tensor.requires_grad for tensor in (x, y, held_x, held_y))


def test_modules_in_evaluation_mode_stay_in_it() -> None:
    model, (x, y) = network(dropout=0.5), examples()
    model[1].eval().requires_grad_(False)
    model[3].eval()
    modes: list[list[bool]] = []
    result = fit(
        model,
        x,
        y,
        PLAIN,
        seed=5,
        validation=(x, y),
        callback=lambda moment: modes.append([m.training for m in moment.model]) if moment.record is None else None,
    )
    assert modes == [[True, False, True, False, True]] * 12
    statistics = ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert all(torch.equal(result.params[name], model.state_dict()[name]) for name in statistics)
    assert not torch.equal(result.params["0.weight"], model[0].weight)


def test_a_model_in_evaluation_mode_trains_as_a_whole() -> None:
    x, y = examples()
    trained = fit(network(dropout=0.5), x, y, PLAIN, seed=5).params
    assert equal(fit(network(dropout=0.5).eval(), x, y, PLAIN, seed=5).params, trained)


@pytest.mark.parametrize("augmentation", ["none", "shift", "shift-flip"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_default_device_does_not_matter(augmentation: str, optimizer: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.2), nn.Flatten(), nn.Linear(18, 3))
    x, y = torch.randn(11, 1, 5, 5, generator=torch.Generator().manual_seed(0)), torch.arange(11) % 3
    shape = {"augmentation": augmentation, "optimizer": optimizer, "schedule": "cosine"}
    recipe = replace(PLAIN, mixup=0.5, cutmix=1.0, clip=1.0, learning_rate=1e-3, **shape)  # type: ignore[arg-type]
    here = fit(model, x, y, recipe, seed=0, validation=(x, y), callback=lambda moment: None)
    with torch.device("meta"):
        there = fit(model, x, y, recipe, seed=0, validation=(x, y), callback=lambda moment: None)
    assert equal(here.params, there.params)


def test_same_seed_same_bits_other_seed_other_bits() -> None:
    model, (x, y) = network(dropout=0.5), examples()
    recipe = replace(PLAIN, mixup=0.5)
    first = fit(model, x, y, recipe, seed=3)
    torch.rand(100)
    assert equal(fit(model, x, y, recipe, seed=3).params, first.params)
    assert not equal(fit(model, x, y, recipe, seed=4).params, first.params)


def test_draws_of_a_callback_do_not_change_the_run() -> None:
    model, (x, y) = network(dropout=0.5), examples()
    undisturbed = fit(model, x, y, PLAIN, seed=3).params
    assert equal(fit(model, x, y, PLAIN, seed=3, callback=lambda moment: torch.rand(7).sum()).params, undisturbed)


def test_a_callback_that_returns_true_ends_the_run_with_its_epoch(tmp_path: Path) -> None:
    """Said at a step or at the end of an epoch; the checkpoint is written, and the same call goes on from it."""
    model, (x, y) = network(), examples()
    whole = fit(model, x, y, PLAIN, seed=3)
    for when in (lambda moment: moment.step == 6, lambda moment: moment.record is not None and moment.epoch == 1):
        path = tmp_path / "run"
        ended = fit(model, x, y, PLAIN, seed=3, checkpoint=path, checkpoint_seconds=1e9, callback=when)
        assert len(ended.history) == 2
        assert ended.steps == 2 * whole.steps // 3
        assert equal(fit(model, x, y, PLAIN, seed=3, checkpoint=path).params, whole.params)
        path.unlink()
    with pytest.raises(InputError, match="callback is a int; expected a function"):
        fit(model, x, y, PLAIN, seed=3, callback=3)  # type: ignore[arg-type]


def test_callback_hears_every_step_and_every_epoch() -> None:
    moments: list[Moment] = []
    result = fit(network(), *examples(), PLAIN, seed=0, callback=moments.append)
    heard = [(moment.epoch, moment.step, moment.record is not None) for moment in moments]
    steps = [[(e, 4 * e + i, False) for i in (1, 2, 3, 4)] + [(e, 4 * e + 4, True)] for e in range(3)]
    assert heard == [*itertools.chain.from_iterable(steps)]
    assert tuple(moment.record for moment in moments if moment.record is not None) == result.history
    assert result.steps == 12


def test_best_weights_are_those_of_the_first_best_epoch() -> None:
    x, y = examples(40)
    after: list[dict[str, Tensor]] = []

    def remember(moment: Moment) -> None:
        if moment.record is not None:
            after.append(copy.deepcopy(moment.model.state_dict()))

    recipe = replace(PLAIN, epochs=12, learning_rate=0.5, keep="best")
    result = fit(network(), x[:24], y[:24], recipe, seed=0, validation=(x[24:], y[24:]), callback=remember)
    scores = [evaluate(network(), x[24:], y[24:], params=params).accuracy for params in after]
    assert scores == [epoch.validation and epoch.validation.accuracy for epoch in result.history]
    assert result.best_epoch == scores.index(max(scores))  # type: ignore[type-var]
    assert 0 < result.best_epoch < 11, "the case must tell the best from the first and from the last"
    assert equal(result.params, after[result.best_epoch])
    last = fit(network(), x[:24], y[:24], replace(recipe, keep="last"), seed=0, validation=(x[24:], y[24:]))
    assert equal(last.params, after[-1])
    assert last.best_epoch == result.best_epoch


def test_of_equal_epochs_the_first_is_the_best() -> None:
    x, y = examples()
    recipe = replace(PLAIN, learning_rate=1e-30)
    assert fit(nn.Linear(6, 3), x, y, recipe, seed=0, validation=(x, y)).best_epoch == 0


def test_best_of_a_regression_has_the_lowest_error() -> None:
    x, _ = examples(40)
    y = x[:, :3] + torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    recipe = replace(PLAIN, epochs=30, loss="mse", keep="best")
    result = fit(network(), x[:20], y[:20], recipe, seed=0, validation=(x[20:], y[20:]))
    errors = [epoch.validation.rmse for epoch in result.history if epoch.validation is not None]
    assert result.best_epoch == errors.index(min(errors))
    assert evaluate(network(), x[20:], y[20:], params=result.params, loss="mse").rmse == pytest.approx(min(errors))


def test_a_batch_larger_than_the_data_is_one_batch() -> None:
    x, y = examples(20)
    large, exact = (fit(network(), x, y, replace(PLAIN, batch_size=size), seed=0) for size in (1000, 20))
    assert equal(large.params, exact.params)
    assert large.steps == 3


def test_fixed_parameters_stay() -> None:
    model = network()
    model[0].requires_grad_(False)
    result = fit(model, *examples(), PLAIN, seed=0)
    assert torch.equal(result.params["0.weight"], model[0].weight)
    assert not torch.equal(result.params["4.weight"], model[4].weight)


def test_shared_weights_stay_shared() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    x, y = examples()
    params = fit(model, x, y, PLAIN, seed=0).params
    assert params["0.weight"] is params["2.weight"]
    assert evaluate(model, x, y, params=params).loss < evaluate(model, x, y).loss


def test_channels_last_trains_the_same_network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).double()
    x = torch.randn(12, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    recipe = replace(PLAIN, optimizer="adam", learning_rate=1e-3)
    plain, last = (
        fit(model, x, torch.arange(12) % 3, recipe, seed=0, channels_last=flag).params for flag in (False, True)
    )
    for name, tensor in plain.items():
        assert last[name].is_contiguous()
        assert torch.allclose(last[name], tensor, rtol=1e-9, atol=1e-12)


def test_integer_inputs_train_an_embedding() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 5))
    tokens = torch.randint(5, (60, 2), generator=torch.Generator().manual_seed(0))
    result = fit(model, tokens, tokens[:, 0], replace(PLAIN, epochs=40, learning_rate=0.5), seed=0)
    assert evaluate(model, tokens, tokens[:, 0], params=result.params).accuracy == 1.0


def test_works_where_gradients_are_switched_off() -> None:
    with torch.no_grad():
        inside = fit(network(), *examples(), PLAIN, seed=0).params
    assert equal(inside, fit(network(), *examples(), PLAIN, seed=0).params)


def test_digits_are_learnt() -> None:
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    recipe = Recipe(epochs=15, batch_size=32, optimizer="adam", learning_rate=5e-3, schedule="linear")
    result = fit(model, x[train], y[train], recipe, seed=0, validation=(x[test], y[test]))
    accuracy = evaluate(model, x[test], y[test], params=result.params).accuracy
    assert accuracy is not None
    assert accuracy > 0.95
    final = result.history[-1].validation
    assert final is not None
    assert final.accuracy == accuracy


def test_progress_counts_every_step_and_names_epoch_and_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, str]] = []

    class Bar:
        def advance(self, steps: int = 1, note: str = "") -> None:
            calls.append((steps, note))

    @contextmanager
    def progress(description: str, total: int, *, show: bool | None) -> Iterator[Bar]:
        assert (description, total, show) == ("training", 12, True)
        yield Bar()

    monkeypatch.setattr("coset.train._training.progress", progress)
    fit(network(), *examples(), PLAIN, seed=0, show=True)
    assert sum(steps for steps, _ in calls) == 12
    assert calls[-1][1].startswith("epoch 3/3 loss ")
