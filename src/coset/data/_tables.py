"""Regression tables as text: the UCI sets with their canonical splits, and Snelson's curve."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coset.data._plain import Raw, Read, read_plain, require_file
from coset.errors import InputError

SPLITS = 20


def read_numbers(path: Path, read: Read = read_plain) -> NDArray[np.float64]:
    """Numbers separated by blanks, one row a line, as (rows, columns); blank lines are ignored."""
    try:
        lines = read(path).decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not text, expected a table of numbers") from error
    rows: list[list[float]] = []
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields:
            continue
        if rows and len(fields) != len(rows[0]):
            raise InputError(f"{path}: line {number} has {len(fields)} numbers, expected {len(rows[0])} as before")
        try:
            rows.append([float(field) for field in fields])
        except ValueError as error:
            raise InputError(f"{path}: line {number}: {error}, expected numbers") from error
    if not rows:
        raise InputError(f"{path}: holds no numbers, expected a table")
    table = np.array(rows)
    if not np.isfinite(table).all():
        raise InputError(f"{path}: row {int(np.argwhere(~np.isfinite(table))[0, 0])} holds a number that is not finite")
    return table


def read_column(path: Path, read: Read = read_plain) -> NDArray[np.float64]:
    """A table with one number a line, as (rows, 1)."""
    table = read_numbers(path, read)
    if table.shape[1] != 1:
        raise InputError(f"{path}: has {table.shape[1]} numbers a line, expected 1")
    return table


def read_indices(path: Path, below: int, read: Read = read_plain) -> NDArray[np.int64]:
    """Distinct integers in 0 .. below − 1, one a line."""
    column = read_column(path, read)[:, 0]
    wrong = np.flatnonzero((column != np.round(column)) | (column < 0) | (column >= below))
    if len(wrong):
        raise InputError(
            f"{path}: index {column[wrong[0]]:g} at position {int(wrong[0])}, expected an integer from 0 to {below - 1}"
        )
    indices = column.astype(np.int64)
    values, counts = np.unique(indices, return_counts=True)
    if (counts > 1).any():
        raise InputError(f"{path}: index {int(values[counts > 1][0])} occurs more than once")
    return indices


def read_uci(folder: Path, split: int, *, read: Read = read_plain) -> Raw:
    """One of the 20 train/test splits of Hernández-Lobato and Adams (2015), arXiv:1502.05336."""
    table = read_numbers(require_file(folder, "data.txt"), read)
    rows, columns = table.shape
    features = read_indices(require_file(folder, "index_features.txt"), columns, read)
    target_file = require_file(folder, "index_target.txt")
    target = read_indices(target_file, columns, read)
    if len(target) != 1 or target[0] in features:
        raise InputError(f"{target_file}: holds {target.tolist()}, expected one column that is not a feature")
    train_file = require_file(folder, f"index_train_{split}.txt")
    test_file = require_file(folder, f"index_test_{split}.txt")
    train, test = read_indices(train_file, rows, read), read_indices(test_file, rows, read)
    both = np.intersect1d(train, test)
    if len(both):
        raise InputError(f"{test_file}: row {int(both[0])} is in {train_file.name} too")
    if len(train) + len(test) != rows:
        raise InputError(f"{train_file} and {test_file.name} name {len(train) + len(test)} rows, expected all {rows}")
    x, y = table[:, features], table[:, target]
    return Raw(x[train], y[train], x[test], y[test])


def read_snelson(folder: Path, *, read: Read = read_plain) -> Raw:
    """The curve of Snelson and Ghahramani (2005): points to train on, and inputs whose targets were not published."""
    inputs = read_column(require_file(folder, "train_inputs.dat"), read)
    target_file = require_file(folder, "train_outputs.dat")
    targets = read_column(target_file, read)
    if len(inputs) != len(targets):
        raise InputError(f"{target_file}: holds {len(targets)} targets, expected {len(inputs)}, one for each input")
    unlabelled = read_column(require_file(folder, "test_inputs.dat"), read)
    nothing = np.empty((0, 1))
    return Raw(inputs, targets, nothing, nothing, unlabelled=unlabelled)
