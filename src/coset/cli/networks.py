"""What commands on networks begin with: a model by its name, files and a symmetry that fit it."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coset._checks import check_choice, keyword_options
from coset.cli.examples import Choice
from coset.cli.options import parse_pairs
from coset.errors import InputError, one_line

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from coset.checkpoints import Checkpoint
    from coset.symmetry import Element, Symmetry

NETWORK = "network"

LARGEST = 2**28
"""Entries of an example input: a gigabyte in single precision."""


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
    """Files that fit one architecture: dicts of weights under the model's names, or posteriors of one class.

    ``params`` are the weights in one floating point type ``dtype``; of a posterior they are one draw. ``model``, in
    evaluation mode, and ``inputs`` to run it on are of that type, too. ``known``: the symmetry that --symmetry names.
    """

    checkpoints: tuple["Checkpoint", ...]
    values: tuple[Any, ...]
    params: tuple[dict[str, "Tensor"], ...]
    model: "nn.Module"
    dtype: "torch.dtype"
    inputs: tuple["Tensor", ...]
    known: "Symmetry | None"
    source: Source

    @cached_property
    def symmetry(self) -> "Symmetry":
        """The symmetry that is known, checked by forward passes; or the one of the model, which takes a while."""
        from coset.symmetry import check_preserves, discover

        if self.known is None:
            return discover(self.model, self.inputs)
        try:
            check_preserves(self.known, self.model, self.inputs)
        except InputError as error:
            raise InputError(f"{self.source.symmetry} does not fit the model {self.source.model}: {error}") from error
        return self.known


def read_networks(files: Sequence[Path], source: Source, *, posteriors: bool = False) -> Networks:
    """Read files and match them to a model, before anything long is computed; ``posteriors`` only if they may be some.

    Computed with float64 if one of the files has it, else with float32: half precision is for storing.
    """
    import torch

    from coset.alignment.inputs import check_network
    from coset.checkpoints import read_checkpoint
    from coset.symmetry import Symmetry

    known = None if source.symmetry is None else Symmetry.load(source.symmetry)
    checkpoints = tuple(read_checkpoint(file, key=source.key, strip_prefix=source.strip_prefix) for file in files)
    values = [_value(checkpoint, source, known, posteriors) for checkpoint in checkpoints]
    kinds = [kind_of(value) for value in values]
    if len(set(kinds)) > 1:
        raise InputError(f"{files[0]} is a {kinds[0]} and {files[1]} a {kinds[1]}; expected two of one kind")
    model, inputs = build_model(source.model, source.options, source.shapes)
    what = f"the model {source.model}"
    names = getattr(model, "saved_names", {})
    if names:
        checkpoints = tuple(_named(checkpoint, names) for checkpoint in checkpoints)
        values = [_value(checkpoint, source, known, posteriors) for checkpoint in checkpoints]
    params = [_matched(*pair, model, what) for pair in zip(checkpoints, values, strict=True)]
    types = {tensor.dtype for tensors in params for tensor in tensors.values()}
    dtype = torch.float64 if torch.float64 in types else torch.float32
    if kinds[0] == NETWORK:
        values = params = [converted(tensors, dtype) for tensors in params]
    if known is not None:
        try:
            check_network(known, params[0], what)
        except InputError as error:
            raise InputError(f"{source.symmetry} does not fit: {error}") from error
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    return Networks(checkpoints, tuple(values), tuple(params), model.to(dtype), dtype, inputs, known, source)


def _named(checkpoint: "Checkpoint", names: Mapping[str, str]) -> "Checkpoint":
    """A checkpoint under the model's names, if it has those of its files."""
    return checkpoint.renamed(names) if names.keys() & checkpoint.params.keys() else checkpoint


def build_model(
    name: str, options: Sequence[str] | None, shapes: Sequence[str] | None
) -> tuple["nn.Module", tuple["Tensor", ...]]:
    """The model in evaluation mode, and random inputs: of the ``shapes``, or of the one the model is made for."""
    from coset.models import build, example_input

    inputs = tuple(_example(shape) for shape in shapes or ())
    chosen = parse_pairs("--option", options)
    with _blamed_on(name):
        model = build(name, seed=0, **chosen).eval()
        if not inputs and getattr(model, "input_shape", None) is None:
            raise InputError(
                f"the model {name} has no attribute input_shape; give the shape of its inputs with --input"
            )
        return model, inputs or (example_input(model),)


@contextmanager
def _blamed_on(name: str) -> Iterator[None]:
    """Whatever a factory does but return a model, such as to raise or to exit, is said in one line."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(
            f"the model {name} could not be built: {type(error).__name__}: {one_line(error, 300)}"
        ) from error


def _example(text: str) -> "Tensor":
    """A random tensor of a shape written as 2,3,32,32, or of whole numbers as i:2,16:1000."""
    import torch

    whole = text.startswith("i:")
    words, _, limit = text.removeprefix("i:").partition(":")
    try:
        shape = [int(word) for word in words.split(",")]
        high = int(limit) if limit else 2
        if min(shape) < 1 or not 1 <= high < 2**63:
            raise ValueError(text)
    except ValueError as error:
        raise InputError(f"--input takes a shape such as 2,3,32,32 or i:2,16:1000, found '{text[:60]}'") from error
    if math.prod(shape) > LARGEST:
        raise InputError(f"--input {text[:60]} is too large; expected at most {LARGEST:,} entries")
    generator = torch.Generator().manual_seed(0)
    if whole:
        return torch.randint(0, high, shape, generator=generator)
    return torch.randn(shape, generator=generator)


def kind_of(value: Any) -> str:
    """A network, or which posterior."""
    return NETWORK if isinstance(value, Mapping) else f"posterior of class {type(value).__name__}"


def _value(checkpoint: "Checkpoint", source: Source, known: "Symmetry | None", posteriors: bool) -> Any:
    """What a file holds: a dict of weights, also where they were saved as a ``Delta``, or a posterior.

    A posterior that was saved with another symmetry than the one that is ``known`` is refused.
    """
    from coset.distribution import Delta, load_distribution
    from coset.distribution.files import KEY

    if KEY not in checkpoint.metadata:
        return checkpoint.params
    file = checkpoint.where
    if not posteriors:
        raise InputError(f"{file} is a distribution over weights; expected the weights of one network")
    for option, text in (("--key", source.key), ("--strip-prefix", source.strip_prefix)):
        if text:
            raise InputError(f"{option} is {text!r} and {file} a distribution, read as it is; expected no {option}")
    q = load_distribution(file, sym=known)
    return q.params if isinstance(q, Delta) else q


def _matched(checkpoint: "Checkpoint", value: Any, model: "nn.Module", what: str) -> dict[str, "Tensor"]:
    """The weights, or one draw of a posterior, under the model's names; raises unless they fit it, name by name."""
    import torch

    from coset.checkpoints import Checkpoint, match_checkpoint

    state = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}
    params = value
    if not isinstance(value, Mapping):
        params = {name: drawn[0] for name, drawn in value.sample(1, torch.Generator().manual_seed(0)).items()}
        # Posteriors may leave out what is only counted.
        state = {name: tensor for name, tensor in state.items() if name in params or tensor.is_floating_point()}
    return match_checkpoint(Checkpoint(params, {}, checkpoint.where, checkpoint.sha256), state, what)


def converted(params: Mapping[str, "Tensor"], dtype: "torch.dtype") -> dict[str, "Tensor"]:
    """Floating point tensors in ``dtype``; names that share a tensor share it again."""
    made = {id(tensor): tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in params.values()}
    return {name: made[id(tensor)] for name, tensor in params.items()}


_GIVEN_OTHERWISE = frozenset({"model", "data", "seed", "callback", "show", "start"})
"""Options of methods that have a place of their own on the command line, or none."""


def method_options(
    method: str, settings: Mapping[str, Any], choice: Choice | None, *, align: bool = True, many: bool = False
) -> set[str]:
    """The options that a method of alignment has; ``settings`` must be among them, and data if it needs them.

    None unless ``align``. ``many``: of aligning more than two networks at once, the method "weights" in another form.
    """
    from coset.alignment import METHODS

    # With --no-align, too, a method that is not there is a mistake.
    check_choice("--method", method, METHODS)
    if not align:
        if settings:
            raise InputError(f"with --no-align there is no alignment that could have the setting '{min(settings)}'")
        return set()
    function: Callable[..., Any] = METHODS[method]
    if many and method == "weights":
        from coset.alignment import align_many

        function = align_many
    known = keyword_options(function)
    for name in settings:
        if name not in known.keys() - _GIVEN_OTHERWISE:
            had = ", ".join(sorted(known.keys() - _GIVEN_OTHERWISE)) or "none"
            whom = f"the method {method}{' for more than two networks' if many else ''}"
            raise InputError(f"{whom} has no setting '{name}'; it has {had}")
    if known.get("data") and choice is None:
        raise InputError(f"the method {method} runs the networks on inputs: say on which with --data")
    return set(known)


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
