"""Training a group whose model ``vmap`` does not take: by ``coset.train.fit``, one network after the other."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset._files.sealed import read_sealed, write_sealed
from coset.train import DivergenceError, Moment, evaluate, fit
from coset.zoo._group import DIVERGED, Task, Trained, plain
from coset.zoo._members import Member
from coset.zoo._stacked import Tensors

KEY = "coset.zoo.member"
FORMAT = 1
LAST = "last"


def train_one_by_one(task: Task) -> Trained:
    """Train the networks of a group; those that an earlier call finished are read, and not trained again."""
    finished: list[tuple[dict[str, Tensors], dict[str, Any]]] = []
    for member, model in zip(task.members, task.models(), strict=True):
        done = task.checkpoint.with_suffix(f".{member.index}.done")
        if done.is_file():
            tensors, content = read_sealed(done, KEY, FORMAT)
            finished.append((_unflattened(tensors), content["record"]))
            task.bar.advance(task.steps_per_epoch * member.recipe.epochs)
            continue
        weights, record = _train(task, member, model, task.checkpoint.with_suffix(f".{member.index}.part"))
        flat = {f"{when}/{name}": tensor for when, one in weights.items() for name, tensor in one.items()}
        write_sealed(done, KEY, FORMAT, flat, {"record": record})
        finished.append((weights, record))
    for step in task.snapshots:
        task.keep(step, _together([weights[str(step)] for weights, _ in finished]))
    return Trained(_together([weights[LAST] for weights, _ in finished]), [record for _, record in finished])


def _train(task: Task, member: Member, model: nn.Module, checkpoint: Path) -> tuple[dict[str, Tensors], dict[str, Any]]:
    """The weights of one network, by the step after which they were taken, and what is known of it."""
    snapshots = task.snapshots
    taken = {"0": _state(model.state_dict())} if 0 in snapshots else {}

    def look(moment: Moment) -> None:
        if moment.record is None:
            task.bar.advance(1)
            task.stop()
            if moment.step in snapshots:
                taken[str(moment.step)] = _state(moment.model.state_dict())

    train, held_out = task.data.train, task.data.parts.get("validation")
    try:
        # With snapshots there is no way back into the middle: a checkpoint has none of them.
        found = fit(
            model,
            train.x,
            train.y,
            member.recipe,
            seed=member.seed,
            validation=None if held_out is None else (held_out.x, held_out.y),
            checkpoint=None if snapshots else checkpoint,
            checkpoint_seconds=task.checkpoint_seconds,
            show=False,
            callback=look,
        )
    except DivergenceError:
        lost = {name: _nowhere(tensor) for name, tensor in model.state_dict().items()}
        taken = {str(step): taken.get(str(step), lost) for step in snapshots}
        return {**taken, LAST: lost}, {"problem": DIVERGED, "losses": [], "metrics": {}}
    metrics = {
        name: asdict(evaluate(model, part.x, part.y, params=found.params, loss=member.recipe.loss))
        for name, part in task.data.parts.items()
        if name != "train"
    }
    record = {"problem": None, "losses": [epoch.train.loss for epoch in found.history], "metrics": metrics}
    return {**taken, LAST: found.params}, plain(record)


def _nowhere(tensor: Tensor) -> Tensor:
    """NaN in place of numbers that training has lost."""
    return torch.full_like(tensor, math.nan) if tensor.is_floating_point() else tensor.clone()


def _state(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _unflattened(tensors: Mapping[str, Tensor]) -> dict[str, Tensors]:
    found: dict[str, Tensors] = {}
    for key, tensor in tensors.items():
        when, _, name = key.partition("/")
        found.setdefault(when, {})[name] = tensor
    return found


def _together(networks: list[Tensors]) -> Tensors:
    return {name: torch.stack([one[name] for one in networks]) for name in networks[0]}
