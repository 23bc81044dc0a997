"""Checkpoints of a run: one safetensors file, written atomically at the end of an epoch.

Tensors: ``model.<name>`` (parameters and all buffers), ``optimizer.<index>.<name>``, ``best.<name>`` where the best
weights are kept, and ``identity.outputs``. Metadata, as JSON under ``coset.train``: the settings of the run (see
``identity``), the history, and what ``coset._files.sealed`` adds. Random states are not needed (see ``randomness``).
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from coset._files.sealed import read_sealed, write_sealed
from coset.errors import InputError
from coset.train._identity import Identity, differences
from coset.train._result import Epoch
from coset.train.metrics import Metrics

FORMAT = 2
KEY = "coset.train"
OUTPUTS = "identity.outputs"


@dataclass
class State:
    """A run between two epochs: the one thing that training changes."""

    model: nn.Module
    optimizer: Optimizer
    history: list[Epoch] = field(default_factory=list)
    best_epoch: int | None = None
    best: dict[str, Tensor] | None = None
    ended: bool = False
    """The callback wants no further epoch."""


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the model's ``state_dict``; names that share a tensor share its copy."""
    copies: dict[int, Tensor] = {}
    taken = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach().clone(memory_format=torch.contiguous_format)
        taken[name] = copies[id(tensor)]
    return taken


def save_checkpoint(path: Path, identity: Identity, state: State) -> None:
    """Write the state of a run, replacing an earlier checkpoint only once the new one is whole."""
    tensors = {f"model.{name}": tensor for name, tensor in _tensors(state.model).items()}
    for index, entries in state.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in entries.items() if value is not None}
    tensors |= {f"best.{name}": tensor for name, tensor in (state.best or {}).items()}
    tensors[OUTPUTS] = identity.outputs
    content = {
        "run": identity.settings,
        "history": [asdict(epoch) for epoch in state.history],
        "best_epoch": state.best_epoch,
    }
    write_sealed(path, KEY, FORMAT, tensors, content)


def load_checkpoint(path: Path, identity: Identity, state: State) -> None:
    """Put a fresh state where the checkpoint left off; raise if the file is damaged or belongs to another run."""
    tensors, content = read_sealed(path, KEY, FORMAT)
    try:
        _restore(path, tensors, content, identity, state)
    except InputError:
        raise
    # With right checksums, but not as it would be written here: a part is missing or of another kind.
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, OverflowError) as error:
        told = " ".join(repr(error).split())
        raise InputError(f"checkpoint {path} is not one of a run: {told[:200]} in its content") from error


def _restore(path: Path, tensors: dict[str, Tensor], content: dict[str, Any], identity: Identity, state: State) -> None:
    wrong = differences(Identity(content["run"], tensors[OUTPUTS]), identity)
    if wrong:
        more = f", and {len(wrong) - 3} more differences" if len(wrong) > 3 else ""
        raise InputError(f"checkpoint {path} belongs to another run: {'; '.join(wrong[:3])}{more}")
    state.history = [_epoch(entry) for entry in content["history"]]
    state.best_epoch = content["best_epoch"]
    if any(name.startswith("best.") for name in tensors):
        # Through the model, so that names that share a tensor share it again.
        _copy_into(state.model.state_dict(keep_vars=True), tensors, "best.")
        state.best = snapshot(state.model)
    _copy_into(_tensors(state.model), tensors, "model.")
    _load_optimizer(state.optimizer, tensors)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor that training may change once, buffers outside the ``state_dict`` included."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _copy_into(targets: dict[str, Tensor], tensors: dict[str, Tensor], prefix: str) -> None:
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(tensors[prefix + name])


def _load_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        kind, _, rest = key.partition(".")
        if kind != "optimizer":
            continue
        index, _, name = rest.partition(".")
        parameter = parameters[int(index)]
        if tensor.shape == parameter.shape and tensor.dtype == parameter.dtype:
            # Fused kernels walk through memory: the state must have the strides of its parameter.
            tensor = torch.empty_like(parameter, requires_grad=False).copy_(tensor)
        entries.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})


def _epoch(entry: dict[str, Any]) -> Epoch:
    validation = entry["validation"]
    return Epoch(
        train=Metrics(**entry["train"]),
        validation=None if validation is None else Metrics(**validation),
        learning_rate=entry["learning_rate"],
        seconds=entry["seconds"],
    )
