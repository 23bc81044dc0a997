"""Texts: characters as numbers, the next one as the label, windows that do not overlap."""

import hashlib

import numpy as np
import pytest
import torch

from coset.data import available, load
from coset.data._text import DRAWN, SHAKESPEARE, draw, encode, read_text, successive, windows
from coset.errors import InputError


def test_a_text_is_cut_once_and_every_character_has_the_next_as_its_label(tmp_path):
    path = tmp_path / "text"
    path.write_text("abacabadab" * 4)
    raw = read_text(path, tuple("abcd"))
    ids = ["abcd".index(character) for character in "abacabadab" * 4]
    assert raw.x_train.tolist() == ids[:35]
    assert raw.y_train.tolist() == ids[1:36]
    assert raw.x_test.tolist() == ids[36:39]
    assert raw.y_test.tolist() == ids[37:40]


def test_windows_lie_one_behind_the_other():
    cut = windows(np.arange(11, dtype=np.uint8), 3, "the text")
    assert cut.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert cut.dtype == np.int64


def test_what_is_no_text_is_refused(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"abc\xff")
    with pytest.raises(InputError, match="byte 3 is not text"):
        read_text(path, tuple("abc"))
    with pytest.raises(InputError, match="book: character 'd' at position 3, expected one of 'abc'"):
        encode("abcd", tuple("abc"), "book")
    with pytest.raises(InputError, match="the test part of the text has 1 characters"):
        successive(np.zeros(2, np.uint8), np.zeros(1, np.uint8))
    with pytest.raises(InputError, match="window is 4, and the text has 3 characters"):
        windows(np.zeros(3, np.uint8), 4, "the text")


def test_images_are_drawn_row_by_row():
    image = np.array([[[0, 4], [8, 16]], [[3, 7], [11, 12]]])
    assert "".join(DRAWN[number] for number in draw(image, 16.0)) == " .\no#\n\n .\no#\n\n"


def test_windows_of_drawn_digits():
    data, whole = load("digits-text", window=73), load("digits", normalize=False)
    # A window is an image: eight rows of eight characters, and an empty row.
    assert data.train.x.shape == (1437, 73)
    assert data.test.x.shape == (358, 73)
    assert (data.classes, data.outputs, data.shape, data.task) == (DRAWN, 5, (73,), "classification")
    rows = data.train.x[:, :72].reshape(-1, 8, 9)
    assert bool((rows[..., 8] == 4).all())
    assert torch.equal(rows[..., :8], (whole.train.x[:-1, 0] * 4).floor().clamp(max=3).long())
    assert torch.equal(data.train.y[:, :-1], data.train.x[:, 1:])
    assert torch.equal(data.train.y[:-1, -1], data.train.x[1:, 0])
    assert load("digits-text", window=73, seed=1).fingerprint != data.fingerprint
    assert load("digits-text").shape == (128,)
    assert load("digits-text").fingerprint != data.fingerprint


@pytest.mark.parametrize(
    ("name", "window", "message"),
    [
        ("digits", 5, "window is 5, but digits is no text"),
        ("digits-text", 0, "window is 0, expected a whole number of at least 1"),
        ("digits-text", 2.5, "window is 2.5, expected a whole number"),
        ("digits-text", 10**6, "the train part of digits-text has 104973 characters"),
    ],
)
def test_windows_that_cannot_be_are_refused(name, window, message):
    with pytest.raises(InputError, match=message):
        load(name, window=window)


def test_tinyshakespeare(data_folder):
    if next(row for row in available(data_folder) if row.name == "tinyshakespeare").found is None:
        pytest.skip("tinyshakespeare is not in COSET_DATA")
    data = load("tinyshakespeare", window=100, root=data_folder)
    assert (len(data.train), len(data.test), data.outputs) == (10_038, 1_115, 65)
    text = "".join(data.classes[number] for number in data.train.x[0])
    assert text.startswith("First Citizen:\nBefore we proceed any further, hear me speak.\n")
    assert list(SHAKESPEARE) == sorted(SHAKESPEARE)
    # The two parts and the characters between them are the published file.
    whole = (data_folder / "tinyshakespeare" / "input.txt").read_bytes()
    assert hashlib.sha256(whole).hexdigest().startswith("86c4e6aa")
    cut = int(0.9 * len(whole))
    assert "".join(data.classes[number] for number in data.test.x.flatten()) == whole[cut : cut + 111_500].decode()
