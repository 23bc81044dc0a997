"""Two networks from files, the layers in which they are compared, and the groups that act there."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coset.cli.examples import Choice, load_inputs
from coset.cli.networks import Networks, Source, read_networks
from coset.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from coset.checkpoints import Checkpoint
    from coset.represent import NetworkComparison, UnitGroup


@dataclass(frozen=True, eq=False)
class Sides:
    """Two networks and the inputs that both are run on; of one model they are the two networks of ``first``."""

    first: Networks
    second: Networks
    inputs: tuple["Tensor", "Tensor"]

    @property
    def checkpoints(self) -> tuple["Checkpoint", "Checkpoint"]:
        """The files of A and B."""
        return self.first.checkpoints[0], self.second.checkpoints[-1]


def read_sides(files: tuple[Path, Path], source: Source, other: Source | None, choice: Choice) -> Sides:
    """Read and check files, models and data; ``other``: the model of B, None if it is that of A."""
    if other is None:
        read = read_networks(files, source)
        x = load_inputs(choice, read.inputs, read.dtype)
        return Sides(read, read, (x, x))
    first, second = read_networks(files[:1], source), read_networks(files[1:], other)
    x, y = (load_inputs(choice, side.inputs, side.dtype) for side in (first, second))
    return Sides(first, second, (x, y))


Groups = tuple[dict[str, "UnitGroup"], dict[str, "UnitGroup"]]
"""The layers of A and of B that are compared, with the group of each."""


def find_layers(sides: Sides, layers: str | None, layers_b: str | None) -> tuple[Groups, list[str]]:
    """The layers to compare, checked by a run of the networks, and then their groups by the symmetry of the models.

    ``layers``, ``layers_b``: names separated by commas. Layers that nobody named are left out, with a note,
    if they have no group.
    """
    from coset.represent import layer_groups
    from coset.represent.layer_choice import groups_of_comparable

    ends = ((sides.first, layers, sides.inputs[0]), (sides.second, layers_b or layers, sides.inputs[1]))
    names = [_chosen(*end) for end in ends[: 1 if sides.first is sides.second else 2]]
    if len(names[0]) != len(names[-1]):
        raise InputError(
            f"{len(names[0])} layers of A and {len(names[-1])} of B are named ({', '.join(names[0])}; "
            f"{', '.join(names[-1])}); expected pairs: say which with --layers and --layers-b"
        )
    groups, refused = [], []
    for (side, text, inputs), own in zip(ends, names, strict=False):
        sym = side.symmetry
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
    return ({x: groups[0][x] for x, _ in kept}, {y: groups[-1][y] for _, y in kept}), notes


def _chosen(side: Networks, text: str | None, inputs: "Tensor") -> tuple[str, ...]:
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


def measure(sides: Sides, groups: Groups, *, seed: int, draws: int) -> "NetworkComparison":
    """Run both networks and compare them in the layers of ``groups``."""
    from coset.represent import compare_networks

    return compare_networks(
        sides.first.model,
        sides.second.model,
        sides.inputs[0],
        *groups,
        inputs_y=sides.inputs[1],
        params_x=sides.first.params[0],
        params_y=sides.second.params[-1],
        seed=seed,
        draws=draws,
        called=("A", "B"),
    )


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
