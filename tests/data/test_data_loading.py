"""Loading: shapes, types, options, where files are looked for, and the fingerprint."""

from pathlib import Path

import numpy as np
import pytest
import torch

from coset._files.atomic import cache_folder
from coset.data import NAMES, Normalization, load, search_folders, split
from coset.errors import InputError


@pytest.fixture
def nowhere(tmp_path, monkeypatch) -> Path:
    """No data but what is inside scikit-learn."""
    monkeypatch.delenv("COSET_DATA", raising=False)
    monkeypatch.setenv("COSET_CACHE", str(tmp_path / "cache"))
    return tmp_path


def write_yacht(folder: Path) -> np.ndarray:
    """A dataset of 40 rows in the layout of the UCI sets; column 2 is constant, the target is column 3."""
    folder.mkdir(parents=True)
    table = np.random.default_rng(0).normal(5.0, 3.0, (40, 4))
    table[:, 2] = 0.1
    np.savetxt(folder / "data.txt", table, fmt="%.17g")
    (folder / "index_features.txt").write_text("0\n1\n2\n")
    (folder / "index_target.txt").write_text("3\n")
    for number in range(20):
        order = np.random.default_rng(number).permutation(40)
        np.savetxt(folder / f"index_train_{number}.txt", order[:36], fmt="%d")
        np.savetxt(folder / f"index_test_{number}.txt", order[36:], fmt="%d")
    return table


@pytest.mark.parametrize(
    ("name", "train", "test", "shape", "classes"),
    [("digits", 1438, 359, (1, 8, 8), 10), ("breast-cancer", 455, 114, (30,), 2)],
)
def test_embedded_datasets(nowhere, name, train, test, shape, classes):
    data = load(name)
    assert (len(data.train), len(data.test), data.shape) == (train, test, shape)
    assert data.task == "classification"
    assert data.outputs == len(data.classes) == classes
    assert data.y_normalization is None
    assert data.unlabelled is None
    assert data.train.x.dtype == torch.float32
    assert data.train.y.dtype == data.test.y.dtype == torch.int64
    flat = data.train.x.flatten(2) if len(shape) == 3 else data.train.x[:, :, None]
    assert flat.mean(dim=(0, 2)).abs().max() < 1e-5
    # Stratified: the share of each label in the test part is within one example of its share in all.
    both = torch.cat([data.train.y, data.test.y])
    for label in range(classes):
        exact = (both == label).sum() * test / (train + test)
        assert abs((data.test.y == label).sum() - exact) < 1


def test_digits_equal_scikit_learn(nowhere):
    from sklearn.datasets import load_digits

    bunch = load_digits()
    data = load("digits", normalize=False, dtype=torch.float64)
    assert data.x_normalization.mean == (0.0,)
    pictures = {
        (tuple(image.ravel().tolist()), int(label)) for image, label in zip(bunch.images, bunch.target, strict=True)
    }
    found = torch.cat([data.train.x, data.test.x]).flatten(1) * 16, torch.cat([data.train.y, data.test.y])
    assert {(tuple(x.tolist()), int(y)) for x, y in zip(*found, strict=True)} == pictures
    assert data.train.x.min() == 0.0
    assert data.train.x.max() == 1.0


def test_seed_decides_the_cut(nowhere):
    first, again, other = (load("breast-cancer", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.test.x, again.test.x)
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint
    assert not torch.equal(first.test.y, other.test.y)


def test_normalization_is_fitted_to_the_train_part_and_undone(nowhere):
    plain = load("breast-cancer", normalize=False, dtype=torch.float64)
    data = load("breast-cancer", dtype=torch.float64)
    np.testing.assert_allclose(data.x_normalization.mean, plain.train.x.mean(dim=0), rtol=1e-12)
    np.testing.assert_allclose(data.x_normalization.std, plain.train.x.std(dim=0, correction=0), rtol=1e-12)
    torch.testing.assert_close(data.x_normalization.undo(data.test.x), plain.test.x, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(data.x_normalization.apply(plain.test.x), data.test.x, rtol=1e-12, atol=1e-12)


def test_flatten_and_types(nowhere):
    data, flat = load("digits"), load("digits", flatten=True)
    assert flat.shape == (64,)
    assert torch.equal(flat.train.x, data.train.x.flatten(1))
    torch.testing.assert_close(
        flat.x_normalization.undo(flat.train.x), load("digits", normalize=False, flatten=True).train.x
    )
    half = load("digits", dtype=torch.bfloat16)
    assert torch.equal(half.train.x, data.train.x.to(torch.bfloat16))


def test_fingerprint_tells_contents_apart(nowhere):
    folder = nowhere / "root" / "uci" / "yacht"
    write_yacht(folder)

    def fingerprint(**options) -> str:
        return load("uci/yacht", root=nowhere / "root", verify=False, **options).fingerprint

    first = fingerprint()
    options = [{"split": 1}, {"normalize": False}, {"flatten": True}, {"dtype": torch.float64}]
    assert len({first, *(fingerprint(**option) for option in options)}) == 5
    assert fingerprint(device=torch.device("cpu")) == first
    text = (folder / "index_train_0.txt").read_text()
    (folder / "index_train_0.txt").write_text(text.replace("\n", "\n\n") + "\n")
    assert fingerprint() == first
    text = (folder / "data.txt").read_text()
    (folder / "data.txt").write_text("1.25" + text[text.index(" ") :])
    assert fingerprint() != first


def test_regression_table(nowhere):
    table = write_yacht(nowhere / "root" / "uci" / "yacht")
    data = load("uci/yacht", split=7, root=nowhere / "root", dtype=torch.float64, verify=False)
    order = np.random.default_rng(7).permutation(40)
    assert data.task == "regression"
    assert data.classes == ()
    assert data.outputs == 1
    assert data.train.y.shape == (36, 1)
    assert data.y_normalization is not None
    np.testing.assert_allclose(data.x_normalization.undo(data.test.x), table[order[36:], :3], rtol=1e-12)
    np.testing.assert_allclose(data.y_normalization.undo(data.train.y), table[order[:36], 3:], rtol=1e-12)
    np.testing.assert_allclose(data.y_normalization.mean[0], table[order[:36], 3].mean(), rtol=1e-12)
    assert data.x_normalization.std[2] == 1.0
    assert (data.train.x[:, 2] == 0).all()
    plain = load("uci/yacht", split=7, root=nowhere / "root", dtype=torch.float64, normalize=False, verify=False)
    assert plain.y_normalization is not None
    assert plain.y_normalization.std == (1.0,)
    np.testing.assert_array_equal(plain.test.y, table[order[36:], 3:])


def test_snelson_keeps_its_unlabelled_inputs(nowhere):
    folder = nowhere / "root" / "snelson"
    folder.mkdir(parents=True)
    (folder / "train_inputs.dat").write_text("1\n2\n3\n")
    (folder / "train_outputs.dat").write_text("4\n6\n8\n")
    (folder / "test_inputs.dat").write_text("2\n5\n")
    data = load("snelson", root=nowhere / "root", dtype=torch.float64, verify=False)
    assert len(data.test) == 0
    assert data.unlabelled is not None
    torch.testing.assert_close(data.x_normalization.undo(data.unlabelled), torch.tensor([[2.0], [5.0]]).double())
    assert data.unlabelled[0] == 0


def test_missing_data_names_the_command(nowhere, monkeypatch):
    cache = nowhere / "cache" / "data"
    with pytest.raises(InputError) as refusal:
        load("mnist")
    assert str(refusal.value) == f"mnist is not in {cache}; run: coset data fetch mnist"
    monkeypatch.setenv("COSET_DATA", str(nowhere / "mine"))
    with pytest.raises(InputError) as refusal:
        load("cifar100")
    assert str(refusal.value) == f"cifar100 is not in {nowhere / 'mine'}, {cache}; run: coset data fetch cifar100"
    write_yacht(nowhere / "mine" / "uci" / "yacht")
    (nowhere / "mine" / "uci" / "yacht" / "index_test_4.txt").unlink()
    with pytest.raises(InputError, match=r"; .*mine lacks uci/yacht/index_test_4.txt; run: coset data fetch uci/yacht"):
        load("uci/yacht")


def test_folders_are_searched_in_order(nowhere, monkeypatch):
    mine, cache = nowhere / "mine", nowhere / "cache" / "data"
    monkeypatch.setenv("COSET_DATA", str(mine))
    assert search_folders() == (mine, cache)
    write_yacht(cache / "uci" / "yacht")
    in_cache = load("uci/yacht", verify=False)
    table = write_yacht(mine / "uci" / "yacht")
    np.savetxt(mine / "uci" / "yacht" / "data.txt", table + 1)
    in_mine = load("uci/yacht", verify=False)
    assert in_mine.fingerprint != in_cache.fingerprint
    monkeypatch.delenv("COSET_DATA")
    assert search_folders() == (cache,)
    assert load("uci/yacht", verify=False).fingerprint == in_cache.fingerprint


def test_cache_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("COSET_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder() == Path.home() / ".cache" / "coset"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "coset"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == Path.home() / "Library" / "Caches" / "coset"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_folder() == tmp_path / "local" / "coset"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("minst", {}, "dataset is 'minst'; expected one of digits, breast-cancer, mnist"),
        ("digits", {"dtype": torch.int64}, "dtype is torch.int64, expected a floating point type"),
        ("digits", {"device": "abacus"}, "device is 'abacus', expected one that torch can use here: "),
        ("digits", {"dtype": "float32"}, "dtype is 'float32', expected a floating point type"),
        ("digits", {"device": 1.5}, "device is '1.5', expected one that torch can use here"),
        ("digits", {"seed": 2**70}, r"seed is 1180591620717411303424, expected an integer from 0 to 2\^63 - 1"),
        ("digits", {"seed": "a"}, "seed is 'a', expected an integer"),
        ("digits", {"seed": True}, "seed is True, expected an integer"),
        ("digits", {"seed": -1}, "seed is -1, expected an integer"),
        ("uci/yacht", {"split": "a"}, "split is 'a', expected 0 to 19 for uci/yacht"),
        ("digits", {"split": 1}, "split is 1, but digits has no canonical splits: choose a seed instead"),
        ("mnist", {"split": 1}, "split is 1, expected 0 to 0 for mnist"),
        ("mnist", {"seed": 1}, "seed is 1, but the test part of mnist is fixed: leave seed at 0"),
        ("uci/yacht", {"split": 20}, "split is 20, expected 0 to 19 for uci/yacht"),
        ("uci/yacht", {"split": -1}, "split is -1, expected 0 to 19 for uci/yacht"),
    ],
)
def test_wrong_choices_are_refused(nowhere, name, options, message):
    with pytest.raises(InputError, match=message):
        load(name, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_device_that_is_not_here_is_refused_in_one_line(nowhere):
    with pytest.raises(InputError, match="device is 'cuda', expected one that torch can use here: ") as refusal:
        load("digits", device="cuda")
    assert len(str(refusal.value).splitlines()) == 1


def test_default_device_does_not_matter(nowhere):
    expected = load("digits")
    with torch.device("meta"):
        data = load("digits")
        validation = split(data.train, 0.2, seed=0, stratify=True)[1]
    assert data.train.x.device.type == "cpu"
    assert torch.equal(data.train.x, expected.train.x)
    assert torch.equal(data.test.y, expected.test.y)
    assert torch.equal(validation.x, split(expected.train, 0.2, seed=0, stratify=True)[1].x)


def test_validation_part_can_be_kept_out_of_the_normalization(nowhere):
    plain = load("breast-cancer", normalize=False, dtype=torch.float64)
    train, validation = split(plain.train, 0.2, seed=0)
    fitted = Normalization.fit(train.x)
    z = fitted.apply(train.x)
    assert z.mean(dim=0).abs().max() < 1e-12
    assert (z.std(dim=0, correction=0) - 1).abs().max() < 1e-12
    whole = load("breast-cancer", dtype=torch.float64).x_normalization
    assert fitted.mean != whole.mean
    by_hand = (validation.x - train.x.mean(dim=0)) / train.x.std(dim=0, correction=0)
    torch.testing.assert_close(fitted.apply(validation.x), by_hand)


def test_names():
    assert len(NAMES) == len(set(NAMES)) == 14
