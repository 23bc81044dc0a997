"""Training of readers: planted functions of weights are found, runs resume, mistakes are named."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

import coset
from coset.errors import InputError
from coset.metanet._baselines import FlatReader
from coset.metanet._training import fit_reader
from coset.symmetry.stacks import act_stack, random_stack
from coset.train import DivergenceError, Recipe

RECIPE = Recipe(epochs=3, batch_size=16, learning_rate=3e-3, optimizer="adamw", loss="mse", schedule="cosine")


@cache
def architecture(width):
    model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2)).double()
    return coset.discover(model, torch.randn(2, 4, dtype=torch.float64)), model.state_dict()


def random_networks(width, count, seed=0):
    sym, shapes = architecture(width)
    generator = torch.Generator().manual_seed(seed)
    stack = {name: torch.randn(count, *t.shape, generator=generator, dtype=t.dtype) for name, t in shapes.items()}
    # Invariant under the group: the sizes of paths through the units.
    paths = torch.einsum("noh,nhi->n", stack["2.weight"].abs(), stack["0.weight"].abs()) / width
    return sym, stack, (paths / 8).log()


class Paths(nn.Module):
    """Reads the planted function but for a factor and a summand; it is told of networks when it is calibrated."""

    def __init__(self):
        super().__init__()
        self.factor, self.summand = (nn.Parameter(torch.zeros((), dtype=torch.float64)) for _ in range(2))
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.calls = []

    def sizes(self, stack):
        return torch.einsum("noh,nhi->n", stack["2.weight"].abs(), stack["0.weight"].abs()).log()

    def calibrate(self, stack, *, sym):
        self.mean.copy_(self.sizes(stack).mean())

    def forward(self, stack, *, sym):
        assert sym in [architecture(width)[0] for width in (3, 5)]
        assert stack["0.weight"].shape[1] == next(iter(sym.classes.values())).size
        return (self.factor * (self.sizes(stack) - self.mean) + self.summand)[:, None]


def test_networks_of_several_architectures_are_read_together():
    groups = [random_networks(3, 60), random_networks(5, 40)]
    recipe = replace(RECIPE, epochs=30, learning_rate=0.05)
    fitted = fit_reader(Paths(), groups, recipe, seed=0, show=False)
    assert float(fitted.reader.mean) != 0
    assert not fitted.reader.training
    for sym, stack, targets in groups:
        width = stack["0.weight"].shape[1]
        own = targets - Paths().sizes(stack)
        torch.testing.assert_close(own, torch.full_like(own, -torch.tensor(8.0 * width).log()))
        predicted = fitted.predict(sym, stack, at_once=7)
        assert predicted.shape == targets.shape
        assert float(torch.corrcoef(torch.stack([predicted, targets]))[0, 1]) > 1 - 1e-9
    one = {name: tensor[0] for name, tensor in stack.items()}
    torch.testing.assert_close(fitted.predict(sym, one), predicted[0])


def test_the_reader_itself_is_left_alone_and_the_seed_decides():
    group, reader = random_networks(3, 40), Paths()
    first, again, other = (fit_reader(reader, group, RECIPE, seed=seed, show=False) for seed in (0, 0, 1))
    assert float(reader.factor.detach()) == float(reader.mean) == 0
    assert torch.equal(first.reader.factor, again.reader.factor)
    assert not torch.equal(first.reader.factor, other.reader.factor)


def test_what_a_reader_has_read_once_gives_the_same_as_reading_in_every_step():
    group = random_networks(3, 40)
    reader = FlatReader(group[0], hidden=(6,)).double()

    class Unread(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = reader

        def calibrate(self, stack, *, sym):
            self.inner.calibrate(stack, sym=sym)

        def forward(self, stack, *, sym):
            assert isinstance(stack, dict)
            return self.inner(stack, sym=sym)

    once = fit_reader(reader, group, RECIPE, seed=0, show=False)
    each = fit_reader(Unread(), group, RECIPE, seed=0, show=False)
    assert torch.equal(once.predict(*group[:2]), each.predict(*group[:2]))


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(tmp_path):
    group = random_networks(3, 40)
    reader = FlatReader(group[0], hidden=(6,)).double()
    given = {"seed": 3, "augment": True, "show": False}
    whole = fit_reader(reader, group, RECIPE, **given)
    path = tmp_path / "run.safetensors"
    stopped = fit_reader(reader, group, RECIPE, **given, checkpoint=path, callback=lambda moment: moment.epoch == 0)
    assert len(stopped.history) == 1
    again = fit_reader(reader, group, RECIPE, **given, checkpoint=path)
    assert torch.equal(whole.predict(*group[:2]), again.predict(*group[:2]))
    with pytest.raises(InputError, match="model structure"):
        fit_reader(reader, random_networks(3, 40, seed=1), RECIPE, **given, checkpoint=path)


def test_augmentation_moves_networks_in_training_only():
    sym, stack, targets = random_networks(3, 64)
    seen = []

    class Looking(Paths):
        def forward(self, stack, *, sym):
            seen.append((self.training, stack))
            return super().forward(stack, sym=sym)

    fitted = fit_reader(Looking(), (sym, stack, targets), replace(RECIPE, epochs=1), seed=0, augment=True, show=False)
    fitted.predict(sym, stack)
    first = {tuple(row.flatten().tolist()) for row in stack["0.weight"]}
    for training, weights in seen:
        own = {tuple(row.flatten().tolist()) for row in weights["0.weight"]}
        assert own.isdisjoint(first) if training else own <= first
    moved = act_stack(sym, random_stack(sym, 64, torch.Generator().manual_seed(0)), stack)
    torch.testing.assert_close(fitted.predict(sym, moved), fitted.predict(sym, stack))


def test_labels_shares_and_rows_of_values():
    sym, stack, targets = random_networks(3, 40)
    labels = (targets > targets.median()).long()
    scores = fit_reader(
        FlatReader(sym, 2), (sym, stack, labels), replace(RECIPE, loss="cross-entropy"), seed=0, show=False
    ).predict(sym, stack)
    assert scores.shape == (40, 2)
    shares = fit_reader(
        FlatReader(sym), (sym, stack, targets.sigmoid()), replace(RECIPE, loss="shares"), seed=0, show=False
    ).predict(sym, stack)
    assert shares.shape == (40,)
    assert 0 < float(shares.min()) < float(shares.max()) < 1
    rows = torch.stack([targets, -targets], 1)
    assert fit_reader(FlatReader(sym, 2), (sym, stack, rows), RECIPE, seed=0, show=False).predict(sym, stack).shape == (
        40,
        2,
    )


def test_validation_is_a_share_or_groups_and_ends_the_run():
    sym, stack, _ = random_networks(3, 60)
    noise = torch.randn(60, generator=torch.Generator().manual_seed(1))
    recipe = replace(RECIPE, epochs=60, learning_rate=0.05, keep="best")
    fitted = fit_reader(FlatReader(sym), (sym, stack, noise), recipe, seed=0, validation=0.25, patience=3, show=False)
    assert fitted.history[0].validation.count == 15
    assert len(fitted.history) == fitted.best_epoch + 4 < 60
    own = fit_reader(
        FlatReader(sym),
        (sym, stack, noise),
        replace(RECIPE, epochs=1),
        seed=0,
        validation=[random_networks(3, 9)],
        show=False,
    )
    assert own.history[0].validation.count == 9
    assert own.history[0].train.count == 60


def test_a_loss_that_is_no_number_is_one_line():
    sym, stack, targets = random_networks(3, 40)

    class Broken(Paths):
        def forward(self, stack, *, sym):
            outputs = super().forward(stack, sym=sym)
            return outputs / 0 if self.training and float(self.factor.detach()) != 0 else outputs

    with pytest.raises(DivergenceError) as error:
        fit_reader(Broken(), (sym, stack, targets), RECIPE, seed=0, show=False)
    assert "epoch 1, step 2" in str(error.value)
    assert "the last finite one was" in str(error.value)
    assert "\n" not in str(error.value)


def test_bad_input_is_named():
    sym, stack, targets = random_networks(3, 12)
    reader = FlatReader(sym)

    def said(match, groups=(sym, stack, targets), recipe=RECIPE, **given):
        with pytest.raises(InputError, match=match) as error:
            fit_reader(given.pop("reader", reader), groups, recipe, **{"seed": 0, "show": False, **given})
        assert "\n" not in str(error.value)

    said("groups holds no networks", [])
    said("group 1 is a int; expected a triple", [(sym, stack, targets), 3])
    said("group 0 holds Symmetry, dict, list", (sym, stack, [1.0]))
    said("group 0 has 12 networks and targets of shape", (sym, stack, targets[:5]))
    said("group 0 is a single network|of group 0 is a single network", (sym, architecture(3)[1], targets))
    broken = {name: tensor.clone() for name, tensor in stack.items()}
    broken["2.bias"][7, 0] = torch.nan
    said("group 0: 2.bias of network 7 is not finite", (sym, broken, targets))
    said("validation is 1.5; expected a share", validation=1.5)
    said("too few to validate", [tuple(x[:1] if x is targets else x for x in random_networks(3, 1))], validation=0.5)
    said("the recipe moves or mixes images", recipe=replace(RECIPE, mixup=0.2))
    said("reader is a function", reader=lambda stack: stack)
    said("expects numbers from 0 to 1", (sym, stack, targets - 9), recipe=replace(RECIPE, loss="shares"))
    said("have another architecture", random_networks(5, 12))
