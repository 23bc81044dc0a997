"""What the start of G_ReLU maps does: the least-squares permutation, what training makes of it, units that are dead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from coset.represent import Interval, feature_chunks
from coset.study import Context, Scalar, Table
from coset_studies.godfrey._penalties import average, contrast, minus, points
from coset_studies.godfrey._stitching import VARIANTS, Penalties, Training, changed_rows, penalties, stitched
from coset_studies.godfrey._zoo import Networks, drawn, of_each

AT_RANDOM, UNTRAINED = VARIANTS
FAMILY = "G_ReLU"
SCHEMA = 1
"""Version of what is stored here."""


@dataclass(frozen=True, eq=False)
class Starts:
    """Maps as they begin and as they end.

    ``found``: G_ReLU and its least-squares start at all layers; ``random``: G_ReLU and the same from a random start, at
    some layers. By layer and pair: ``moved``, the share of units to which training gave another partner, and ``dead``,
    how many units of the trained map have a partner that is dead or are dead themselves. ``units``: of all maps.
    """

    found: Penalties
    random: Penalties
    moved: Tensor
    dead: Tensor
    units: int

    @property
    def gain(self) -> Interval:
        """The mean penalty of the trained maps less that of their starts."""
        return _difference(self.found, UNTRAINED)

    @property
    def random_loss(self) -> Interval:
        """The mean penalty from the least-squares start less that from a random one."""
        return _difference(self.random, AT_RANDOM)


def _difference(found: Penalties, other: str) -> Interval:
    return contrast(found, minus(average(found.layers, FAMILY), average(found.layers, other)))


def starts_of(
    context: Context,
    networks: Networks,
    layers: Sequence[str],
    at_random: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    how: Training,
) -> Starts:
    """Starts of the maps of all ``pairs`` at all ``layers``, and random ones at some, ``at_random``."""
    found = penalties(context, networks, layers, (FAMILY, UNTRAINED), pairs, how)
    random = penalties(context, networks, at_random, (FAMILY, AT_RANDOM), pairs, how)
    silent = dead_units(context, networks, layers, how.images)
    moved = torch.zeros(len(layers), len(pairs), dtype=torch.float64)
    dead, units = torch.zeros(len(layers), len(pairs), dtype=torch.int64), 0
    for (i, layer), (j, pair) in product(enumerate(layers), enumerate(pairs)):
        trained, start = (stitched(context, networks, pair, layer, family, how) for family in (FAMILY, UNTRAINED))
        moved[i, j] = changed_rows(trained, start)
        dead[i, j] = matched_to_dead(trained.matrix, silent[pair[0]][layer], silent[pair[1]][layer])
        units += len(trained.matrix)
    return Starts(found, random, moved, dead, units)


def matched_to_dead(matrix: Tensor, below: Tensor, above: Tensor) -> int:
    """How many outputs of a map of a permutation (C, C) are dead, or read an input that is; dead or not: (C,) each."""
    return int((above | below[matrix.abs().argmax(1)]).sum())


def dead_units(
    context: Context, networks: Networks, layers: Sequence[str], images: int | None
) -> dict[int, Mapping[str, Tensor]]:
    """For each network and layer, which units (C,) are 0 on all train images of the maps, at all positions; stored."""
    part = drawn(networks.train, images)

    def make(module: nn.Module) -> dict[str, Tensor]:
        dead: dict[str, Tensor] = {}
        for chunk in feature_chunks(module, part.x, layers):
            for layer, features in chunk.items():
                here = (features == 0).transpose(0, 1).flatten(1).all(1).cpu()
                dead[layer] = here & dead.get(layer, here)
        return dead

    address = {"kind": "dead units", "schema": SCHEMA, "layers": list(layers), "images": images}
    return of_each(context, networks, address, make)


def start_numbers(starts: Starts) -> dict[str, Scalar]:
    """In percent, points and counts."""
    return {
        "moved": 100 * float(starts.moved.mean()),
        "units": starts.units,
        "dead": int(starts.dead.sum()),
        "faint": _faint(starts.found, FAMILY),
        "faint_start": _faint(starts.found, UNTRAINED),
        **points("start", contrast(starts.found, average(starts.found.layers, UNTRAINED))),
        **points("gain", starts.gain),
        **points("random", contrast(starts.random, average(starts.random.layers, AT_RANDOM))),
        **points("random_loss", starts.random_loss),
    }


def _faint(found: Penalties, family: str) -> int:
    """How many units of all maps of a family have a scale of at most 0.001."""
    assert found.faint is not None
    return int(found.faint[:, found.families.index(family)].sum())


def start_table(starts: Starts, labels: Mapping[str, str]) -> Table:
    """A row for each layer."""
    rows: list[list[Scalar]] = []
    found, faint = starts.found, starts.found.faint
    assert faint is not None
    for i, layer in enumerate(found.layers):
        change = found.difference(layer, FAMILY, UNTRAINED)
        cells: list[Scalar] = [100 * found.mean(layer, family).value for family in (UNTRAINED, FAMILY)]
        cells += [100 * end for end in (change.value, change.low, change.high)]
        cells += [100 * float(starts.moved[i].mean()), int(starts.dead[i].sum()), int(faint[i, 0].sum())]
        known = layer in starts.random.layers
        cells.append(100 * starts.random.mean(layer, AT_RANDOM).value if known else None)
        rows.append([labels.get(layer, layer), *cells])
    columns = ("layer", "least squares", "trained", "difference", "low", "high", "moved, %", "dead", "faint", "random")
    return Table(
        columns,
        rows,
        "Penalties of G_ReLU maps in points: at their start and trained, with the 95 % interval of the difference, and "
        "from a random start. Moved: units to which training gave another partner. Dead, faint: units of all pairs "
        "that are dead or have a dead partner, and that have a scale of at most 0.001.",
    )
