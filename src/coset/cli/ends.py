"""The two ends of a path from files: networks or posteriors, and the model, symmetry and data that they are for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coset.cli.examples import Choice, load_examples
from coset.cli.models import build_model
from coset.cli.networks import Source, check_symmetry, converted, proven_symmetry, read_symmetry
from coset.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from coset.checkpoints import Checkpoint
    from coset.posterior.likelihoods import Likelihood
    from coset.symmetry import Symmetry


@dataclass(frozen=True, eq=False)
class Ends:
    """Two ``networks``, dicts of weights or posteriors of one class, with what a path between them is measured with.

    ``splits``: inputs and targets of each part of the data that has examples; ``symmetry``: None if nobody needs it.
    """

    checkpoints: tuple["Checkpoint", "Checkpoint"]
    networks: tuple[Any, Any]
    model: "nn.Module"
    splits: dict[str, tuple["Tensor", "Tensor"]]
    likelihood: "Likelihood"
    symmetry: "Symmetry | None"

    @property
    def kind(self) -> str:
        """What the ends are, for people."""
        return kind_of(self.networks[0])


def read_ends(
    files: tuple[Path, Path],
    source: Source,
    choice: Choice,
    likelihood: str | None,
    check: Callable[[Any, Any], object],
    *,
    symmetric: bool,
) -> Ends:
    """Read and check everything before anything long is computed; ``check`` raises unless it can join the two ends.

    The symmetry is read or discovered if ``symmetric``, and last.
    """
    chosen = _likelihood(likelihood, choice)
    known = read_symmetry(source)
    read = [_read(file, source, known) for file in files]
    kinds = [kind_of(network) for _, network in read]
    if kinds[0] != kinds[1]:
        raise InputError(f"{files[0]} is a {kinds[0]} and {files[1]} a {kinds[1]}; expected two of one kind")
    model, inputs = build_model(source.model, source.options, source.shapes)
    drawn, networks = zip(*(_fitted(*pair, model, f"the model {source.model}") for pair in read), strict=True)
    dtype = _precision(drawn)
    if kinds[0] == NETWORK:
        networks = drawn = tuple(converted(network, dtype) for network in networks)
    model = model.to(dtype)
    check_symmetry(known, drawn[0], source)
    try:
        check(*networks)
    except InputError as error:
        raise InputError(f"no path from {files[0]} to {files[1]}: {error}") from error
    splits = _splits(choice, inputs, dtype)
    _check_outputs(model, drawn[0], splits, chosen, f"--data {choice.name} does not suit the model {source.model}")
    sym = proven_symmetry(known, model, inputs, source) if symmetric else None
    return Ends((read[0][0], read[1][0]), (networks[0], networks[1]), model, splits, chosen, sym)


NETWORK = "network"


def kind_of(network: Any) -> str:
    """A network, or which posterior."""
    return NETWORK if isinstance(network, Mapping) else f"posterior of class {type(network).__name__}"


def _read(file: Path, source: Source, known: "Symmetry | None") -> tuple["Checkpoint", Any]:
    """The file, and what it holds: a dict of weights, also where they were saved as a ``Delta``, or a posterior.

    A posterior that was saved with another symmetry than the one that is ``known`` is refused.
    """
    from coset.checkpoints import read_checkpoint
    from coset.distribution import Delta, load_distribution
    from coset.distribution.files import KEY

    found = read_checkpoint(file, key=source.key, strip_prefix=source.strip_prefix)
    if KEY not in found.metadata:
        return found, found.params
    for option, value in (("--key", source.key), ("--strip-prefix", source.strip_prefix)):
        if value:
            raise InputError(f"{option} is {value!r} and {file} a distribution, read as it is; expected no {option}")
    q = load_distribution(file, sym=known)
    return found, q.params if isinstance(q, Delta) else q


def _fitted(checkpoint: "Checkpoint", network: Any, model: "nn.Module", what: str) -> tuple[dict[str, "Tensor"], Any]:
    """One draw, and the network under the model's names; raises unless it fits the model, name by name."""
    import torch

    from coset.checkpoints import Checkpoint, match_checkpoint

    state = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}
    point = isinstance(network, Mapping)
    if not point:
        sample = network.sample(1, torch.Generator().manual_seed(0))
        draw = {name: tensor[0] for name, tensor in sample.items()}
        # Posteriors may leave out what is only counted.
        state = {name: tensor for name, tensor in state.items() if name in draw or tensor.is_floating_point()}
    else:
        draw = dict(network)
    matched = match_checkpoint(Checkpoint(draw, {}, checkpoint.where, checkpoint.sha256), state, what)
    return matched, matched if point else network


def _precision(drawn: tuple[dict[str, "Tensor"], ...]) -> Any:
    """float64 if one of the networks has it, else float32: half precision is for storing."""
    import torch

    types = {tensor.dtype for params in drawn for tensor in params.values()}
    return torch.float64 if torch.float64 in types else torch.float32


def _splits(choice: Choice, inputs: tuple["Tensor", ...], dtype: Any) -> dict[str, tuple["Tensor", "Tensor"]]:
    from dataclasses import replace

    from coset.data.catalog import lookup

    entry = lookup(choice.name)
    parts = [part for part, count in (("train", entry.train), ("test", entry.test)) if count]
    return {part: load_examples(replace(choice, part=part), inputs, dtype) for part in parts}


def _likelihood(name: str | None, choice: Choice) -> "Likelihood":
    """By its name, or Gaussian noise of a given deviation; None: what the data ask for."""
    from coset.data.catalog import lookup
    from coset.posterior.likelihoods import LIKELIHOODS, GaussianNoise

    task = lookup(choice.name).task
    if name is None:
        name = "categorical" if task == "classification" else "learned-noise"
    try:
        found = LIKELIHOODS[name] if name in LIKELIHOODS else GaussianNoise(float(name))
    except (ValueError, InputError) as error:
        expected = f"{', '.join(LIKELIHOODS)}, or the deviation of Gaussian noise, a number > 0"
        raise InputError(f"--likelihood is '{name}'; expected {expected}") from error
    if found.task != task:
        raise InputError(f"--likelihood {name} is for {found.task}; --data {choice.name} is for {task}")
    return found


def _check_outputs(
    model: "nn.Module",
    params: Mapping[str, "Tensor"],
    splits: Mapping[str, tuple["Tensor", "Tensor"]],
    likelihood: "Likelihood",
    complaint: str,
) -> None:
    """Raise unless the outputs of the model suit the targets."""
    import torch

    from coset.running import suited, whole_weights, with_weights

    weights = whole_weights(model, params)
    for part, (x, y) in splits.items():
        with torch.no_grad():
            outputs = with_weights(model, weights, lambda network, x=x: network(suited(x[:2], weights)))  # type: ignore[misc]
        try:
            likelihood.fit_targets(y, outputs, f"the {part} part")
        except InputError as error:
            raise InputError(f"{complaint}: {error}") from error
