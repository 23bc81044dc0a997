"""The beginning of a zoo: its index before any training, and what cannot be trained is refused."""

from pathlib import Path

import torch
from torch import nn

from coset._files.locks import locked
from coset.errors import InputError, one_line
from coset.train import Recipe
from coset.train.check import check_last_batch, check_recipe, probe
from coset.train.loss import LOSSES
from coset.train.metrics import evaluation_mode
from coset.zoo._data import Data, load_data
from coset.zoo._group import snapshot_steps
from coset.zoo._index import FORMAT, INDEX, Content, read_index, write_index
from coset.zoo._members import (
    ONE_BY_ONE,
    STACKED,
    architectures,
    described,
    group_size,
    grouped,
    members,
    new_model,
)
from coset.zoo._spec import ZooSpec
from coset.zoo._stacked import takes_a_stack


def prepared(spec: ZooSpec, folder: Path) -> Content:
    """The index of the folder, made if there is none; a zoo of another specification is refused."""
    with locked(folder / ".coset-zoo.lock", f"the zoo {folder}"):
        if not (folder / INDEX).exists():
            if any(path.name != ".coset-zoo.lock" and not path.name.endswith(".part") for path in folder.iterdir()):
                raise InputError(f"{folder} is not empty and has no {INDEX}; expected a new folder, or a zoo")
            write_index(folder, _fresh(spec))
        content = read_index(folder)
    there = content.get("spec")
    here = spec.to_dict()
    if there is None or content["made"]["by"] != "train":
        raise InputError(f"{folder} is a zoo made by {content['made']['by']}; expected a new one, or one in training")
    differing = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    if differing:
        name = differing[0]
        raise InputError(
            f"{folder} is a zoo of another specification: its {name} is {one_line(there.get(name), 80)} there and "
            f"{one_line(here.get(name), 80)} here"
        )
    return content


def _fresh(spec: ZooSpec) -> Content:
    """The index of a zoo before any training; whatever cannot be trained is refused here."""
    everyone, dtype = members(spec), getattr(torch, spec.dtype)
    data = [load_data(one, dtype) for one in spec.data]
    kinds, sizes = [], {}
    for number, options in enumerate(architectures(spec)):
        paths = set()
        models = [new_model(spec, options, seed) for seed in (0, 1)]
        for which, one in enumerate(data):
            chosen = [member for member in everyone if (member.data, member.architecture) == (which, number)]
            # One of every group: what its members differ in does not matter here.
            for first, *_ in grouped(chosen, {(which, number): len(chosen)}):
                paths.add(_path(spec, models, one, everyone[first].recipe, spec.data[which].name))
            sizes[which, number] = spec.group or group_size(models[0], one.train.x, chosen[0].recipe.batch_size)
        path = STACKED if paths == {STACKED} else ONE_BY_ONE
        if path == ONE_BY_ONE and spec.order == "shared":
            raise InputError(
                f"order is 'shared', and the model {spec.model} cannot be trained side by side: vmap does not take it; "
                f"expected order 'own'"
            )
        kinds.append({"options": dict(options), "path": path, "tensors": described(models[0])})
    return {
        "format": FORMAT,
        "spec": spec.to_dict(),
        "made": {"by": "train"},
        "model": {
            "name": spec.model,
            "options": spec.to_dict()["options"],
            "dtype": spec.dtype,
            "input": list(data[0].train.x.shape[1:]),
            **_tokens(data),
        },
        "data": [one.describe() for one in data],
        "architectures": kinds,
        "members": [member.describe() for member in everyone],
        "groups": [{"members": list(group), "file": None} for group in grouped(everyone, sizes)],
    }


def _tokens(data: list[Data]) -> dict[str, int]:
    """How many tokens there are, if inputs are whole numbers."""
    x = [part.x for one in data for part in one.parts.values()]
    return {} if x[0].is_floating_point() else {"tokens": 1 + max(int(inputs.max()) for inputs in x)}


def _path(spec: ZooSpec, models: list[nn.Module], data: Data, recipe: Recipe, name: str) -> str:
    """How a model is trained on data, after a look whether it can be."""
    x, y = data.train.x, data.train.y
    try:
        check_recipe(recipe, x, validated="validation" in data.parts)
        check_last_batch(models[0], x, recipe.batch_size, ())
        with evaluation_mode(models[0]):
            outputs = probe(models[0], x[:4], "x")
        targets = LOSSES[recipe.loss].fit_targets(y, outputs, "y")
        snapshot_steps(spec, recipe, len(x))
    except InputError as error:
        raise InputError(f"the model cannot be trained on {name}: {error}") from error
    return STACKED if takes_a_stack(models, x[:4], targets[:4], LOSSES[recipe.loss]) else ONE_BY_ONE
