"""Parts of the studies of residual networks: the images, what copies count, planted pairs, the store, the words."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coset.data import Dataset
from coset.data.cifar import read_cifar100
from coset.distribution import MeanField
from coset.errors import InputError
from coset.landscape import Profile, Profiles
from coset.posterior import Fit, Trace, predictive_log_likelihood
from coset.posterior.inference.negative_elbo import NegativeELBO
from coset.posterior.problem import pose
from coset.store import Store
from coset.study import Context, run_study
from coset.study.images import Images, generated_images, load_images
from coset.study.posteriors import network_of
from coset.symmetry import discover
from coset_studies.rossi._pairs import Inference, Measure, Network, Pair, aligned_pair, barriers
from coset_studies.rossi._report import Compared, left_of

TINY = Network(stages=(3, 4), blocks=1)
HOW = Inference(epochs=1, rate=1e-2, point_epochs=1, point_rate=1e-2, batch_size=50)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(0, torch.device("cpu"), Store(tmp_path / "store"), show=False)


@pytest.fixture
def digits(context: Context) -> Dataset:
    return load_images(context, Images("digits", train=100, test=50))


def test_images_are_drawn_pooled_and_normalised(context: Context) -> None:
    raw = context.data("digits", normalize=False)
    pooled = load_images(context, Images("digits", pool=2))
    squares = raw.test.x.unfold(2, 2, 2).unfold(3, 2, 2).mean((-2, -1))
    torch.testing.assert_close(pooled.x_normalization.undo(pooled.test.x), squares)
    torch.testing.assert_close(pooled.train.x.mean(), torch.zeros(()), atol=1e-5, rtol=0)
    torch.testing.assert_close(pooled.train.x.std(), torch.ones(()), atol=1e-3, rtol=0)
    few = load_images(context, Images("digits", train=100, test=50))
    assert (len(few.train), len(few.test)) == (100, 50)
    assert few.train.y.bincount().tolist() == pytest.approx([10] * 10, abs=1)


def test_images_of_other_choices_have_other_fingerprints(context: Context) -> None:
    choices = [Images("digits"), Images("digits", pool=2), Images("digits", train=99), Images("digits", copies=2)]
    prints = [load_images(context, choice).fingerprint for choice in (*choices, choices[0])]
    assert len(set(prints)) == len(choices)
    assert prints[0] == prints[-1]


def test_images_that_do_not_divide_are_refused(context: Context) -> None:
    with pytest.raises(InputError, match=r"shape \(1, 8, 8\).* divide by 3"):
        load_images(context, Images("digits", pool=3))


def test_copies_are_the_images_moved(context: Context) -> None:
    plain = load_images(context, Images("digits"))
    moved = load_images(context, Images("digits", copies=2, augmentation="shift"))
    assert torch.equal(moved.test.x, plain.test.x)
    assert torch.equal(moved.train.y, torch.cat([plain.train.y, plain.train.y]))
    padded = torch.nn.functional.pad(plain.train.x, (2, 2, 2, 2))
    windows = padded.unfold(2, 8, 1).unfold(3, 8, 1).flatten(2, 3)
    for copy in moved.train.x.split(len(plain.train)):
        same = (windows == copy.unsqueeze(2)).flatten(3).all(3).any(2)
        assert bool(same.all())
    assert not torch.equal(*moved.train.x.split(len(plain.train)))


def test_generated_images_are_in_the_format_of_cifar100(tmp_path: Path) -> None:
    data = generated_images(train=300, test=100)
    for name, part in (("train", data.train), ("test", data.test)):
        labels = torch.stack([part.y // 5, part.y], 1)
        records = torch.cat([labels, (255 * part.x).round().long().flatten(1)], 1).to(torch.uint8)
        (tmp_path / f"{name}.bin").write_bytes(records.numpy().tobytes())
    raw = read_cifar100(tmp_path, train=300, test=100)
    assert torch.equal(torch.from_numpy(raw.y_train).long(), data.train.y)
    torch.testing.assert_close(torch.from_numpy(raw.x_test).float() / raw.scale, data.test.x)
    assert data.outputs == 100
    assert len(data.train.y.unique()) == 100


def test_cifar100_is_asked_for_by_the_loader(context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COSET_DATA", raising=False)
    monkeypatch.setenv("COSET_CACHE", str(tmp_path / "cache"))
    with pytest.raises(InputError, match="cifar100"):
        run_study("rossi-cifar100", "small", tmp_path / "out", store=context.store, show=False)
    assert not (tmp_path / "out" / "rossi-cifar100.md").exists()


def _gradient(data: Dataset, copies: int) -> Tensor:
    settings = HOW.settings(1, 1e-2, copies)
    model = network_of("resnet", TINY.options(data), seed=0).double()
    x = data.train.x.double()
    problem = pose(model, (x, data.train.y), "categorical", settings["prior"], settings["temperature"])
    values = torch.stack([problem.start, torch.full_like(problem.start, -3.0)])
    gradient = torch.empty_like(values)
    objective = NegativeELBO(problem, 1, "closed")
    objective.write_gradient(values, x, data.train.y, torch.Generator().manual_seed(0), gradient)
    return gradient


def test_copies_count_once(context: Context) -> None:
    """Of copies that are all alike the tempered ELBO must be that of the images themselves."""
    once = load_images(context, Images("digits", train=40))
    thrice = load_images(context, Images("digits", train=40, copies=3, augmentation="none"))
    assert len(thrice.train) == 3 * len(once.train)
    torch.testing.assert_close(_gradient(thrice, 3), _gradient(once, 1), rtol=1e-9, atol=1e-12)


def _fits(data: Dataset, *, planted: bool) -> tuple[Fit[MeanField], Fit[MeanField]]:
    """Two random posteriors of one network; planted: the second is the first, moved by an element of the group."""
    generator = torch.Generator().manual_seed(1)

    def one(seed: int) -> MeanField:
        model = network_of("resnet", TINY.options(data), seed=seed)
        state, trained = model.state_dict(), dict(model.named_parameters())
        mean = {
            name: tensor + 0.3 * torch.randn(tensor.shape, generator=generator) if name in trained else tensor
            for name, tensor in state.items()
        }
        return MeanField(
            mean, {name: 0.01 + 0.05 * torch.rand(mean[name].shape, generator=generator) for name in trained}
        )

    first = one(0)
    sym = discover(network_of("resnet", TINY.options(data), seed=0).eval(), data.train.x[:2]).restrict(scales=False)
    second = sym.act(sym.random(generator), first) if planted else one(1)
    trace = Trace([{"elbo": 0.0, "kl": 0.0, "seconds": 0.0}])
    return Fit(first, trace, "planted", 0.0, ()), Fit(second, trace, "planted", 0.0, ())


def test_a_planted_pair_has_no_barrier_after_alignment(context: Context, digits: Dataset) -> None:
    model = network_of("resnet", TINY.options(digits), seed=0)
    pair = aligned_pair(context, model, digits, _fits(digits, planted=True))
    for name, mean in pair.first.mean.items():
        torch.testing.assert_close(pair.aligned.mean[name], mean)
    measure = Measure(points=50, taus=5, samples=4)
    found = Compared(pair, barriers(context, digits, pair, measure))
    assert found.barrier("aligned", "train") == pytest.approx(0, abs=1e-5)
    # Halfway to the moved copy there is another network.
    assert abs(found.profiles["naive"]["train log-likelihood"].midpoint.excess) > 1e-2


def test_paths_are_measured_once_and_end_at_the_posteriors(context: Context, digits: Dataset) -> None:
    model = network_of("resnet", TINY.options(digits), seed=0)
    pair = aligned_pair(context, model, digits, _fits(digits, planted=False))
    measure = Measure(points=30, taus=3, samples=4)
    found = barriers(context, digits, pair, measure)
    assert len(context.store.entries()) == 2
    assert barriers(context, digits, pair, measure) == found
    assert len(context.store.entries()) == 2
    assert barriers(context, digits, pair, replace(measure, samples=5)) != found
    x, y = digits.test.x[:30], digits.test.y[:30]
    for path, end in (("naive", pair.second), ("aligned", pair.aligned)):
        expected = predictive_log_likelihood(pair.model, end, x, y, samples=4, seed=0, show=False).mean
        assert found[path]["test log-likelihood"].values[-1] == pytest.approx(expected, abs=1e-6)


def _compared(pair: Pair, naive: float, aligned: float) -> Compared:
    def profiles(drop: float) -> Profiles:
        values = (-1.0, -1.0 - drop, -1.0)
        names = [f"{split} log-likelihood" for split in ("train", "test")]
        return Profiles({name: Profile(name, (0.0, 0.5, 1.0), values, "higher") for name in names})

    return Compared(pair, {"naive": profiles(naive), "aligned": profiles(aligned)})


def test_what_is_left_of_a_barrier(context: Context, digits: Dataset) -> None:
    model = network_of("resnet", TINY.options(digits), seed=0)
    pair = aligned_pair(context, model, digits, _fits(digits, planted=False))
    assert left_of(_compared(pair, 2.0, 0.5)) == 0.25
    # Where there is none to begin with, none is taken away.
    assert left_of(_compared(pair, 0.0, 0.0)) == 1.0
