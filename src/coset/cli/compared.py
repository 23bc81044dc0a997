"""Two networks from files, the layers in which they are compared, and the groups that act there."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coset.cli.examples import Choice
from coset.cli.input_files import load_inputs
from coset.cli.networks import Source, Weights, read_weights
from coset.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from coset.checkpoints import Checkpoint
    from coset.represent import NetworkComparison, UnitGroup


@dataclass(frozen=True, eq=False)
class Sides:
    """Two networks and the inputs that both are run on; of one model they are the two networks of ``first``."""

    first: Weights
    second: Weights
    inputs: tuple["Tensor", "Tensor"]

    @property
    def one_model(self) -> bool:
        """Whether both are of one model."""
        return self.first is self.second

    @property
    def checkpoints(self) -> tuple["Checkpoint", "Checkpoint"]:
        """The files of A and B."""
        return self.first.checkpoints[0], self.second.checkpoints[-1]


def read_sides(files: tuple[Path, Path], source: Source, other: Source | None, choice: Choice) -> Sides:
    """Read and check files, models and data; ``other``: the model of B, None if it is that of A."""
    if other is None:
        read = read_weights(files, source)
        x = load_inputs(choice, read.inputs, read.dtype)
        return Sides(read, read, (x, x))
    first, second = read_weights(files[:1], source), read_weights(files[1:], other)
    return Sides(
        first,
        second,
        (load_inputs(choice, first.inputs, first.dtype), load_inputs(choice, second.inputs, second.dtype)),
    )


@dataclass(frozen=True, eq=False)
class Compared:
    """What is compared: the layers of A and of B with their groups; ``notes``: what was left out, and why."""

    sides: Sides
    groups: tuple[dict[str, "UnitGroup"], dict[str, "UnitGroup"]]
    notes: tuple[str, ...]

    def measure(self, *, seed: int, draws: int) -> "NetworkComparison":
        """Run both networks and compare."""
        from coset.represent import compare_networks

        first, second = self.sides.first, self.sides.second
        return compare_networks(
            first.model.to(first.dtype),
            second.model.to(second.dtype),
            self.sides.inputs[0],
            *self.groups,
            inputs_y=self.sides.inputs[1],
            params_x=first.params[0],
            params_y=second.params[-1],
            seed=seed,
            draws=draws,
            called=("A", "B"),
        )


def find_layers(sides: Sides, layers: str | None, layers_b: str | None) -> Compared:
    """The layers to compare, checked by a run of the networks, and then their groups by the symmetry of the models.

    ``layers``, ``layers_b``: names separated by commas. Layers that nobody named are left out if they have no group.
    """
    from coset.represent import layer_groups
    from coset.represent.layer_choice import groups_of_comparable

    ends = ((sides.first, layers, sides.inputs[0]), (sides.second, layers_b or layers, sides.inputs[1]))
    names = [_chosen(*end) for end in ends[: 1 if sides.one_model else 2]]
    if len(names[0]) != len(names[-1]):
        raise InputError(
            f"{len(names[0])} layers of A and {len(names[-1])} of B are named ({', '.join(names[0])}; "
            f"{', '.join(names[-1])}); expected pairs: say which with --layers and --layers-b"
        )
    groups, refused = [], []
    for (side, text, inputs), own in zip(ends, names, strict=False):
        sym = side.symmetry()
        if text is None:
            found, why = groups_of_comparable(sym, side.model, own, inputs)
        else:
            found, why = layer_groups(sym, side.model, own, inputs), {}
        groups.append(found)
        refused.append(why)
    pairs = list(zip(names[0], names[-1], strict=True))
    kept = [(x, y) for x, y in pairs if x in groups[0] and y in groups[-1]]
    if not kept:
        raise InputError("no pair of layers has a group in both networks; say which with --layers and --layers-b")
    notes = [f"left out: {reason}" for why in refused for reason in why.values()]
    return Compared(
        sides,
        ({x: groups[0][x] for x, _ in kept}, {y: groups[-1][y] for _, y in kept}),
        tuple(notes),
    )


def _chosen(side: Weights, text: str | None, inputs: "Tensor") -> tuple[str, ...]:
    """The layers that are named, or those before weights; raises unless a pass calls each of them once."""
    from coset.represent import features, layers_before_weights
    from coset.represent.layer_choice import matching_layers

    if text is None:
        return layers_before_weights(side.model, side.inputs[0])
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise InputError(f"--layers is '{text}'; expected names of layers separated by commas")
    names = matching_layers(side.model, words, side.inputs[0])
    features(side.model, inputs[:2], names, params=side.params[0], show=False)
    return names


def lines_of(found: "NetworkComparison") -> str:
    """A line of CSV for each layer of A with each of B; more is known of those that were compared one by one."""
    matrices = found.matrices
    known: dict[tuple[str, str], dict[str, float]] = {}
    for pair in found.pairs:
        row = known.setdefault((pair.layer_x, pair.layer_y), {})
        for measure, intervals in (("CKA", pair.cka), ("Procrustes", pair.procrustes)):
            for way, one in intervals.items():
                if one is not None:
                    ends = {"": one.value, ", low": one.low, ", high": one.high}
                    row |= {f"{measure}, {way}{end}": value for end, value in ends.items()}
    columns = dict.fromkeys(name for way in matrices for name in (f"CKA, {way}", f"CKA, {way}, kernel"))
    columns |= dict.fromkeys(name for row in known.values() for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, ["layer of A", "layer of B", *columns], lineterminator="\n")
    writer.writeheader()
    for i, x in enumerate(matrices["own"].layers_x):
        for j, y in enumerate(matrices["own"].layers_y):
            values: dict[str, float | str] = {}
            for way, matrix in matrices.items():
                assert matrix.kernels is not None
                values |= {f"CKA, {way}": float(matrix.similarity[i, j]), f"CKA, {way}, kernel": matrix.kernels[i][j]}
            writer.writerow({"layer of A": x, "layer of B": y, **values, **known.get((x, y), {})})
    return text.getvalue()
