"""Checkpoints of a run, and what makes two runs the same run: one safetensors file, written at the end of an epoch.

Tensors: ``model.<name>`` (parameters and all buffers), ``optimizer.<index>.<name>``, ``best.<name>`` where the best
weights are kept, and ``identity.outputs``. Metadata, as JSON under ``coset.train``: the settings of the run (see
``identity``), the history, and what ``coset._files.sealed`` adds. Random states are not needed (see ``randomness``).
"""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from coset._files.sealed import checksum, kind, read_sealed, write_sealed
from coset.errors import InputError, one_line
from coset.train._recipe import Recipe
from coset.train._result import Epoch
from coset.train.metrics import Metrics

FORMAT = 2
KEY = "coset.train"
OUTPUTS = "identity.outputs"

# Equal outputs of two processes may differ by rounding, which varies with the number of threads: this many times ε.
ROUNDING = 100


@dataclass(frozen=True)
class Identity:
    """A run before its first step: plain ``settings``, and the ``outputs`` of the untrained model for a few inputs.

    The outputs tell apart models that differ in nothing but what they compute, such as the heads of an attention.
    """

    settings: dict[str, Any]
    outputs: Tensor


def identify(
    model: nn.Module,
    outputs: Tensor,
    data: Mapping[str, Tensor],
    recipe: Recipe,
    *,
    seed: int,
    channels_last: bool,
    still: Sequence[str],
    patience: int | None = None,
) -> Identity:
    """Everything that decides the bits of a run's result, apart from the machine and the versions of its software.

    Data, initial weights and all buffers enter by a checksum: resuming with others would give what no uninterrupted
    run gives. ``still`` are the modules that stay in evaluation mode.
    """
    settings: dict[str, Any] = {f"recipe {name}": value for name, value in recipe.to_dict().items()}
    settings |= {"seed": seed, "channels_last": channels_last}
    if patience is not None:
        settings["patience"] = patience
    # Addresses in the text of lambdas and the like change from one process to the next.
    structure = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(model))
    settings["model structure"] = f"{zlib.crc32(structure.encode()):08x}"
    total = 0
    # Buffers again, for those outside the state_dict.
    for name, tensor in {**model.state_dict(keep_vars=True), **dict(model.named_buffers())}.items():
        use = "trained" if tensor.requires_grad else "fixed"
        settings[f"model {name}"] = f"{kind(tensor)} {use}"
        total = checksum(tensor, total)
    settings["model initial weights"] = f"checksum {total:08x}"
    settings["model modules in evaluation mode"] = list(still)
    settings |= {f"data {name}": f"{kind(tensor)} checksum {checksum(tensor):08x}" for name, tensor in data.items()}
    settings["model outputs"] = kind(outputs)
    return Identity(settings, outputs.detach())


def differences(found: Identity, expected: Identity) -> list[str]:
    """One phrase for each thing that differs between the run of a checkpoint and this one."""
    there, here = found.settings, expected.settings
    names = [*here, *(name for name in there if name not in here)]
    absent = "absent"
    phrases = [
        f"{name} is {there.get(name, absent)!r} there and {here.get(name, absent)!r} here"
        for name in names
        if there.get(name, absent) != here.get(name, absent)
    ]
    if found.outputs.shape == expected.outputs.shape:
        a, b = found.outputs.double().cpu(), expected.outputs.double().cpu()
        allowed = ROUNDING * torch.finfo(expected.outputs.dtype).eps * float(b.abs().nan_to_num(0.0, 0.0).max())
        if not torch.allclose(a, b, rtol=0.0, atol=allowed, equal_nan=True):
            phrases.append(
                f"the outputs of the untrained model for the first {len(b)} examples differ "
                f"by up to {float((a - b).abs().max()):.1e}, more than rounding"
            )
    return phrases


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
        raise InputError(
            f"checkpoint {path} is not one of a run: {one_line(repr(error), 200)} in its content"
        ) from error


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
