"""What alignment and merging begin with: files, model, symmetry and data that fit each other."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coset.cli.examples import Choice, load_examples
from coset.cli.models import build_model
from coset.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from coset.checkpoints import Checkpoint
    from coset.symmetry import Element, Symmetry


@dataclass(frozen=True)
class Source:
    """What the command line says about the architecture and about the form of the files."""

    model: str
    options: Sequence[str] | None
    shapes: Sequence[str] | None
    symmetry: Path | None
    key: str | None
    strip_prefix: str


@dataclass(frozen=True, eq=False)
class Networks:
    """Networks of one architecture: the files, and their weights under the model's names, in one floating point type.

    ``model`` is of that type, too, in evaluation mode; ``examples``, inputs and targets, are None without data.
    """

    checkpoints: tuple["Checkpoint", ...]
    params: tuple[dict[str, "Tensor"], ...]
    model: "nn.Module"
    symmetry: "Symmetry"
    examples: tuple["Tensor", "Tensor"] | None


@dataclass(frozen=True, eq=False)
class Weights:
    """Files that fit one architecture, before anything long is computed: see ``Networks``.

    ``inputs``: what the model is run on to find its symmetry, unless that is ``known``.
    """

    checkpoints: tuple["Checkpoint", ...]
    params: tuple[dict[str, "Tensor"], ...]
    model: "nn.Module"
    dtype: "torch.dtype"
    inputs: tuple["Tensor", ...]
    known: "Symmetry | None"
    source: Source

    def symmetry(self) -> "Symmetry":
        """The symmetry that is known, or the one of the model, which takes a while."""
        return proven_symmetry(self.known, self.model, self.inputs, self.source)


def read_weights(files: Sequence[Path], source: Source) -> Weights:
    """Read files and match them to a model.

    Computed with float64 if one of the files has it, else with float32: half precision is for storing.
    """
    import torch

    from coset.checkpoints import match_checkpoint, read_checkpoint
    from coset.distribution.files import KEY

    known = read_symmetry(source)
    checkpoints = tuple(read_checkpoint(file, key=source.key, strip_prefix=source.strip_prefix) for file in files)
    for checkpoint in checkpoints:
        if KEY in checkpoint.metadata:
            raise InputError(f"{checkpoint.where} is a distribution over weights; expected the weights of one network")
    model, inputs = build_model(source.model, source.options, source.shapes)
    state = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}
    matched = [match_checkpoint(checkpoint, state, f"the model {source.model}") for checkpoint in checkpoints]
    types = {tensor.dtype for params in matched for tensor in params.values()}
    dtype = torch.float64 if torch.float64 in types else torch.float32
    params = tuple(converted(tensors, dtype) for tensors in matched)
    check_symmetry(known, params[0], source)
    return Weights(checkpoints, params, model, dtype, inputs, known, source)


def read_symmetry(source: Source) -> "Symmetry | None":
    """The symmetry that --symmetry names; None without."""
    from coset.symmetry import Symmetry

    return None if source.symmetry is None else Symmetry.load(source.symmetry)


def check_symmetry(known: "Symmetry | None", params: Mapping[str, "Tensor"], source: Source) -> None:
    """Raise unless weights of the model are such as the symmetry that was read expects."""
    from coset.alignment.inputs import check_network

    if known is None:
        return
    try:
        check_network(known, params, f"the model {source.model}")
    except InputError as error:
        raise InputError(f"{source.symmetry} does not fit: {error}") from error


def proven_symmetry(
    known: "Symmetry | None", model: "nn.Module", inputs: tuple["Tensor", ...], source: Source
) -> "Symmetry":
    """The symmetry that was read, checked by forward passes of the model; or the model's own, without one."""
    from coset.symmetry import check_preserves, discover

    if known is None:
        return discover(model, inputs)
    try:
        check_preserves(known, model, inputs)
    except InputError as error:
        raise InputError(f"{source.symmetry} does not fit the model {source.model}: {error}") from error
    return known


def read_networks(files: Sequence[Path], source: Source, choice: Choice | None) -> Networks:
    """Read and check everything before anything long is computed; the symmetry is discovered last."""
    read = read_weights(files, source)
    examples = None if choice is None else load_examples(choice, read.inputs, read.dtype)
    sym = read.symmetry()
    return Networks(read.checkpoints, read.params, read.model.to(read.dtype), sym, examples)


def converted(params: Mapping[str, "Tensor"], dtype: "torch.dtype") -> dict[str, "Tensor"]:
    """Floating point tensors in ``dtype``; names that share a tensor share it again."""
    made = {id(tensor): tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in params.values()}
    return {name: made[id(tensor)] for name, tensor in params.items()}


_GIVEN_OTHERWISE = frozenset({"model", "data", "seed", "callback", "show", "start"})
"""Options of methods that have a place of their own on the command line, or none."""


def method_options(method: str, settings: Mapping[str, Any], choice: Choice | None, *, many: bool = False) -> set[str]:
    """The options that a method of alignment has; ``settings`` must be among them, and data if it needs them.

    ``many``: of aligning more than two networks at once, which is the method "weights" in another form.
    """
    from coset.alignment import METHODS

    if method not in METHODS:
        raise InputError(f"--method is '{method}', expected one of {', '.join(METHODS)}")
    function: Callable[..., Any] = METHODS[method]
    if many and method == "weights":
        from coset.alignment import align_many

        function = align_many
    parameters = inspect.signature(function).parameters
    known = {name for name, part in parameters.items() if part.kind is part.KEYWORD_ONLY}
    for name in settings:
        if name not in known - _GIVEN_OTHERWISE:
            had = ", ".join(sorted(known - _GIVEN_OTHERWISE)) or "none"
            whom = f"the method {method}{' for more than two networks' if many else ''}"
            raise InputError(f"{whom} has no setting '{name}'; it has {had}")
    if "data" in known and choice is None and parameters["data"].default is inspect.Parameter.empty:
        raise InputError(f"the method {method} runs the networks on inputs: say on which with --data")
    return known


def moved_units(g: "Element") -> dict[str, int]:
    """For every class that permutes, how many of its units are not where they were."""
    import torch

    return {name: int((p != torch.arange(p.shape[-1], device=p.device)).sum()) for name, p in g.permutations.items()}


def written_by(command: str, networks: Networks, entries: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a file that a command writes: how it came about, and from which files."""
    files = networks.checkpoints
    return {
        "coset.version": version("coset"),
        "coset.command": command,
        "coset.inputs": json.dumps([checkpoint.where.name for checkpoint in files]),
        "coset.inputs.sha256": json.dumps([checkpoint.sha256 for checkpoint in files]),
        "coset.symmetry": networks.symmetry.fingerprint,
        **{f"coset.{name}": text for name, text in entries.items()},
    }
