"""Specifications of small zoos that tests train."""

import pytest

from coset.zoo import train_zoo

SMALL = {
    "model": "mlp",
    "options": {"in_features": 30, "out_features": 2, "widths": [4, 3]},
    "data": {"name": "breast-cancer", "subset": 128},
    "recipe": {"epochs": 2, "batch_size": 32, "learning_rate": 0.01, "optimizer": "adam"},
    "seeds": 6,
    "group": 4,
    "dtype": "float64",
}


def small(recipe=None, **changed):
    return {**SMALL, **changed, "recipe": {**SMALL["recipe"], **(recipe or {})}}


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a small zoo; to be copied by tests that change it."""
    folder = tmp_path_factory.mktemp("zoo") / "zoo"
    train_zoo(small(snapshots={"steps": [0, 3]}), folder)
    return folder


def files(folder):
    """The bytes of all files of a folder, by name."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
