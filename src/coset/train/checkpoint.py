"""Checkpoints of a run: one safetensors file, written atomically at the end of an epoch.

Tensors: ``model.<name>`` (parameters and all buffers), ``optimizer.<index>.<name>``, ``best.<name>`` where the best
weights are kept, and ``identity.outputs``. Metadata, as JSON under ``coset.train``: the settings of the run (see
``identity``), the history, a checksum of every tensor, and the versions that wrote the file; the checksum of that text
under ``coset.train.checksum``. Random states are not needed (see ``randomness``).
"""

import json
import platform
import tempfile
import zlib
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from coset.errors import InputError
from coset.files import atomic_path
from coset.train.identity import Identity, checksum, differences
from coset.train.metrics import Metrics
from coset.train.result import Epoch

FORMAT = 2
KEY = "coset.train"
CHECKSUM = "coset.train.checksum"
OUTPUTS = "identity.outputs"


@dataclass
class State:
    """A run between two epochs: the one thing that training changes."""

    model: nn.Module
    optimizer: Optimizer
    history: list[Epoch] = field(default_factory=list)
    best_epoch: int | None = None
    best: dict[str, Tensor] | None = None


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the model's ``state_dict``; names that share a tensor share its copy."""
    copies: dict[int, Tensor] = {}
    taken = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach().clone(memory_format=torch.contiguous_format)
        taken[name] = copies[id(tensor)]
    return taken


def check_writable(path: Path) -> None:
    """Refuse at once a path to which no checkpoint could be written; its folder is made if there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", suffix=".part", dir=path.parent):
            pass
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"checkpoint {path} cannot be written: {reason}; expected a path in a folder to write to"
        ) from error


def save_checkpoint(path: Path, identity: Identity, state: State) -> None:
    """Write the state of a run, replacing an earlier checkpoint only once the new one is whole."""
    tensors = {f"model.{name}": tensor for name, tensor in _tensors(state.model).items()}
    for index, entries in state.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in entries.items() if value is not None}
    tensors |= {f"best.{name}": tensor for name, tensor in (state.best or {}).items()}
    tensors[OUTPUTS] = identity.outputs
    # Copies, because safetensors takes neither shared memory nor other strides.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    content = {
        "format": FORMAT,
        "run": identity.settings,
        "history": [asdict(epoch) for epoch in state.history],
        "best_epoch": state.best_epoch,
        "tensors": {name: checksum(tensor) for name, tensor in copies.items()},
        "versions": {"coset": version("coset"), "torch": torch.__version__, "python": platform.python_version()},
    }
    text = json.dumps(content)
    with atomic_path(path) as part:
        save_file(copies, part, {KEY: text, CHECKSUM: _text_checksum(text)})


def load_checkpoint(path: Path, identity: Identity, state: State) -> None:
    """Put a fresh state where the checkpoint left off; raise if the file is damaged or belongs to another run."""
    tensors, content = _read(path)
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


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.is_file():
        raise InputError(f"checkpoint {path} is not a file, expected a checkpoint or a new path")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(f"checkpoint {path} is damaged or not a safetensors file: {error}") from error
    if KEY not in metadata:
        raise InputError(
            f"checkpoint {path} is a safetensors file without {KEY!r} in its metadata, expected a checkpoint"
        )
    try:
        content = json.loads(metadata[KEY])
    except json.JSONDecodeError as error:
        raise InputError(f"checkpoint {path} is damaged: its metadata is not JSON: {error}") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise InputError(f"checkpoint {path} has format {found!r}, expected {FORMAT}")
    if metadata.get(CHECKSUM) != _text_checksum(metadata[KEY]):
        raise InputError(f"checkpoint {path} is damaged: its metadata does not have the checksum it was written with")
    _check_tensors(path, tensors, content["tensors"])
    return tensors, content


def _check_tensors(path: Path, tensors: dict[str, Tensor], written: dict[str, int]) -> None:
    """The tensors of the file must be those that were written, bit by bit."""
    for name, expected in written.items():
        if name not in tensors:
            raise InputError(f"checkpoint {path} is damaged: it lacks {name}")
        if checksum(tensors[name]) != expected:
            raise InputError(f"checkpoint {path} is damaged: {name} does not have the checksum it was written with")
    for name in tensors.keys() - written.keys():
        raise InputError(f"checkpoint {path} is damaged: it has {name}, which was not written")


def _text_checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _epoch(entry: dict[str, Any]) -> Epoch:
    validation = entry["validation"]
    return Epoch(
        train=Metrics(**entry["train"]),
        validation=None if validation is None else Metrics(**validation),
        learning_rate=entry["learning_rate"],
        seconds=entry["seconds"],
    )
