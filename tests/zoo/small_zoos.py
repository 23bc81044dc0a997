"""Specifications of small zoos that tests train, and the bytes of their folders."""

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


def files(folder):
    """The bytes of all files of a folder, by name."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
