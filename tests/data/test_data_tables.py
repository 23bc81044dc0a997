"""Text tables: blanks do not matter, mistakes are named with their line."""

import numpy as np
import pytest

from coset.data._tables import read_column, read_indices, read_numbers, read_snelson, read_uci
from coset.errors import InputError


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


def test_numbers_ignore_blanks(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("\n 1.5\t-2e3 3 \n\n\t4  5 6\r\n\n")
    assert read_numbers(path).tolist() == [[1.5, -2000.0, 3.0], [4.0, 5.0, 6.0]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no numbers, expected a table"),
        (b" \n\n", "holds no numbers, expected a table"),
        (b"1 2\n\n3\n", "line 3 has 1 numbers, expected 2 as before"),
        (b"1 2\n3 x\n", "line 2: could not convert string to float: 'x', expected numbers"),
        (b"1 2\n3 nan\n", "row 1 holds a number that is not finite"),
        (b"1 inf\n", "row 0 holds a number that is not finite"),
        (b"1 2\n\xff\xfe", "byte 4 is not text, expected a table of numbers"),
    ],
)
def test_damaged_table_is_refused(tmp_path, content, message):
    path = tmp_path / "data.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as refusal:
        read_numbers(path)
    assert str(path) in str(refusal.value)


def test_column_has_one_number_a_line(tmp_path):
    path = tmp_path / "column.dat"
    path.write_text("1 2\n")
    with pytest.raises(InputError, match=r"column.dat: has 2 numbers a line, expected 1"):
        read_column(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0\n5\n", "index 5 at position 1, expected an integer from 0 to 4"),
        ("-1\n", "index -1 at position 0, expected an integer from 0 to 4"),
        ("0\n1.5\n", "index 1.5 at position 1, expected an integer from 0 to 4"),
        ("3\n1\n3\n", "index 3 occurs more than once"),
    ],
)
def test_wrong_indices_are_refused(tmp_path, content, message):
    path = tmp_path / "index.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as refusal:
        read_indices(path, 5)
    assert str(path) in str(refusal.value)


def test_indices_may_be_written_as_floats(tmp_path):
    path = tmp_path / "index.txt"
    path.write_text("4.000e+00\n\n0\n")
    assert read_indices(path, 5).tolist() == [4, 0]


UCI = {
    "data__txt": "1 10 100\n2 20 200\n3 30 300\n4 40 400\n",
    "index_features__txt": "2\n0\n",
    "index_target__txt": "1\n",
    "index_train_3__txt": "2\n0\n3\n",
    "index_test_3__txt": "1\n",
}


def test_uci_split(tmp_path):
    raw = read_uci(write(tmp_path / "tiny", **UCI), 3)
    assert raw.x_train.tolist() == [[300, 3], [100, 1], [400, 4]]
    assert raw.y_train.tolist() == [[30], [10], [40]]
    assert raw.x_test.tolist() == [[200, 2]]
    assert raw.y_test.tolist() == [[20]]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"index_test_3__txt": "2\n"}, "index_test_3.txt: row 2 is in index_train_3.txt too"),
        ({"index_train_3__txt": "2\n0\n"}, "index_train_3.txt and index_test_3.txt name 3 rows, expected all 4"),
        (
            {"index_train_3__txt": "2\n0\n4\n"},
            "index_train_3.txt: index 4 at position 2, expected an integer from 0 to 3",
        ),
        ({"index_target__txt": "2\n"}, r"index_target.txt: holds \[2\], expected one column that is not a feature"),
        ({"index_target__txt": "1\n2\n"}, r"index_target.txt: holds \[1, 2\], expected one column"),
        (
            {"index_features__txt": "0\n3\n"},
            "index_features.txt: index 3 at position 1, expected an integer from 0 to 2",
        ),
    ],
)
def test_wrong_uci_files_are_refused(tmp_path, changed, message):
    with pytest.raises(InputError, match=message):
        read_uci(write(tmp_path / "tiny", **(UCI | changed)), 3)


def test_uci_names_the_missing_split(tmp_path):
    with pytest.raises(InputError, match=r"index_train_4.txt: no such file, compressed \(.gz\) or not"):
        read_uci(write(tmp_path / "tiny", **UCI), 4)


SNELSON = {"train_inputs__dat": "1\n2\n", "train_outputs__dat": "-1\n-2\n", "test_inputs__dat": "0\n1\n2\n"}


def test_snelson_has_no_test_targets(tmp_path):
    raw = read_snelson(write(tmp_path / "snelson", **SNELSON))
    assert raw.x_train.tolist() == [[1], [2]]
    assert raw.y_train.tolist() == [[-1], [-2]]
    assert raw.x_test.shape == raw.y_test.shape == (0, 1)
    assert raw.unlabelled is not None
    np.testing.assert_array_equal(raw.unlabelled, [[0], [1], [2]])


def test_snelson_needs_a_target_for_each_input(tmp_path):
    with pytest.raises(InputError, match=r"train_outputs.dat: holds 1 targets, expected 2, one for each input"):
        read_snelson(write(tmp_path / "snelson", **(SNELSON | {"train_outputs__dat": "1\n"})))
