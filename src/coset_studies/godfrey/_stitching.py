"""Stitching penalties of Godfrey et al. 2022, section 4: families of maps, layers, pairs of networks, with intervals.

Every stitched network is kept in the store by itself, so that an interrupted run goes on and studies share them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from coset.represent import Interval, StitchTraining, stitch
from coset.represent.stitching import Stitching, make_family, sparsity
from coset.represent.stitching.penalties import correct
from coset.store import Entry
from coset.study import Context
from coset_studies.godfrey._similarity import percentiles
from coset_studies.godfrey._zoo import Networks, answers, drawn

MAPS: Mapping[str, tuple[str, Mapping[str, float | int | bool]]] = {
    "full": ("full", {}),
    "rank 1": ("rank", {"rank": 1}),
    "rank 2": ("rank", {"rank": 2}),
    "rank 4": ("rank", {"rank": 4}),
    "G_ReLU": ("g-relu", {"alpha": 0.1}),
    "permutation": ("g-relu", {"alpha": 0.1, "scales": False}),
    "SoftSort": ("softsort", {}),
    "orthogonal": ("orthogonal", {}),
    "λ = 0.001": ("l1", {"penalty": 0.001}),
    "λ = 0.01": ("l1", {"penalty": 0.01}),
    "λ = 0.1": ("l1", {"penalty": 0.1}),
}
"""Families of maps as the figures call them: the family of ``coset.represent`` and its options."""
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "G_ReLU, random start": ("G_ReLU", {"start": "random"}),
    "G_ReLU, least squares": ("G_ReLU", {"start": "least-squares", "epochs": 0}),
}
"""Families trained in another way than told: as which of ``MAPS``, and in what the training differs."""
SCHEMA = 2
"""Version of what is stored: to be raised where the same settings come to give other maps."""
FAINT = 1e-3
DRAWS = 8000
"""Of weights of pairs and resamples of images; tails of Student's t take many."""
_AT_ONCE = 100
"""So many resamples of the images are held."""


@dataclass(frozen=True)
class Training:
    """Maps are trained on ``images`` of the train part and judged on ``held_out`` of the test part (None: all).

    Otherwise as in D.2.1: SGD with momentum 0.9, scales fixed for the first half of the epochs. ``start``: where the
    map begins, "least-squares" or "random".
    """

    images: int | None
    held_out: int | None
    epochs: int = 20
    batch_size: int = 32
    learning_rate: float = 1e-3
    start: str = "least-squares"

    @property
    def sgd(self) -> StitchTraining:
        """As the library takes it."""
        return StitchTraining(epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate)


@dataclass(frozen=True, eq=False)
class Stitched:
    """One stitched network: its right answers on the held-out images (N,), and its map.

    ``sparsity``: the share of entries of the map that are at most 0.001 (D.1).
    """

    correct: Tensor
    matrix: Tensor
    sparsity: float

    @property
    def faint(self) -> int:
        """How many outputs of the map have no entry above 0.001, though a unit below may be dead as well."""
        return int((self.matrix.abs() <= FAINT).all(1).sum())


@dataclass(frozen=True, eq=False)
class Penalties:
    """Penalties of all layers, families and pairs.

    ``lost`` (layers, families, pairs, N): what each held-out image adds. ``draws`` (layers, families, B): means over
    resamples of images, with Student's weights of pairs at once, the same for all layers and families. ``sparsity``
    and ``faint`` (layers, families, pairs), None where maps are not trained. ``accuracy``: the mean of the networks of
    all pairs.
    """

    layers: tuple[str, ...]
    families: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    lost: Tensor
    draws: Tensor
    sparsity: Tensor | None
    accuracy: float
    faint: Tensor | None = None

    @property
    def values(self) -> Tensor:
        """The penalty of each pair, (layers, families, pairs)."""
        return self.lost.mean(-1)

    def mean(self, layer: str, family: str) -> Interval:
        """The mean penalty over pairs, with its interval over pairs and images."""
        i, j = self.layers.index(layer), self.families.index(family)
        return percentiles(float(self.lost[i, j].mean()), self.draws[i, j])

    def difference(self, layer: str, family: str, other: str) -> Interval:
        """The penalty of ``family`` less that of ``other``: of the same pairs and images in every resample."""
        i, j, k = self.layers.index(layer), self.families.index(family), self.families.index(other)
        value = float((self.lost[i, j] - self.lost[i, k]).mean())
        return percentiles(value, self.draws[i, j] - self.draws[i, k])


def stitched(
    context: Context, networks: Networks, pair: tuple[int, int], layer: str, family: str, how: Training
) -> Stitched:
    """The networks of a pair (below, above), stitched at a layer by a map of a family of ``MAPS``; stored.

    Also by one of ``VARIANTS``.
    """
    base, changes = VARIANTS.get(family, (family, {}))
    name, options = MAPS[base]
    how = replace(how, **changes)
    config = {
        "kind": "stitching",
        "schema": SCHEMA,
        "family": name,
        "options": dict(options),
        "training": asdict(how),
        **place(context, networks, pair, layer),
    }

    def make() -> tuple[dict[str, Tensor], dict[str, object]]:
        train = drawn(networks.train, how.images)
        below, above = (networks.modules[number] for number in pair)
        found = stitch(
            below,
            above,
            layer,
            (train.x, train.y),
            family=make_family(name, **options),
            start=how.start,
            training=how.sgd,
            seed=context.seed,
            show=False,
        )
        return judged(networks, found, how), {"losses": list(found.losses)}

    return read_stitched(context.store.get_or_make(config, make))


def place(context: Context, networks: Networks, pair: tuple[int, int], layer: str) -> dict[str, object]:
    """What the address of anything stitched holds of where it was stitched."""
    return {
        "networks": [networks.names[number] for number in pair],
        "fingerprint": networks.fingerprint,
        "layer": layer,
        "seed": context.seed,
    }


def judged(networks: Networks, found: Stitching, how: Training) -> dict[str, Tensor]:
    """What is stored of a stitched network: its right answers on held-out images, and its map."""
    held_out = drawn(networks.test, how.held_out)
    return {"correct": correct(found, (held_out.x, held_out.y)), "matrix": found.matrix.cpu()}


def read_stitched(entry: Entry) -> Stitched:
    """What ``judged`` stored."""
    matrix = entry.params["matrix"]
    return Stitched(entry.params["correct"], matrix, sparsity(matrix))


def penalties(
    context: Context,
    networks: Networks,
    layers: Sequence[str],
    families: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    how: Training,
) -> Penalties:
    """Penalties of all ``families`` (of ``MAPS``) at all ``layers`` for all ``pairs``."""
    made: dict[tuple[int, str, str], Stitched] = {}
    # Pair after pair: what has been done when a run is stopped is whole pairs.
    with context.progress("stitching", len(pairs) * len(layers) * len(families)) as bar:
        for (number, pair), layer, family in product(enumerate(pairs), layers, families):
            made[number, layer, family] = stitched(context, networks, pair, layer, family, how)
            bar.advance(note=f"{pair[0]} and {pair[1]}, {layer}, {family}")
    return gathered(context, made, pairs, answers(context, networks, how.held_out))


def gathered(
    context: Context,
    made: Mapping[tuple[int, str, str], Stitched],
    pairs: Sequence[tuple[int, int]],
    alone: Mapping[int, Tensor],
) -> Penalties:
    """Penalties of stitched networks by (number of the pair, layer, family), all combinations of these.

    ``alone``: the right answers of each network by itself.
    """
    layers = tuple(dict.fromkeys(layer for _, layer, _ in made))
    families = tuple(dict.fromkeys(family for _, _, family in made))
    before = torch.stack([(alone[below] + alone[above]) / 2 for below, above in pairs])

    def table(read: str) -> Tensor:
        cells = [
            torch.as_tensor(getattr(made[number, layer, family], read))
            for layer, family, number in product(layers, families, range(len(pairs)))
        ]
        return torch.stack(cells).reshape(len(layers), len(families), len(pairs), *cells[0].shape)

    lost = before - table("correct")
    draws = resampled(lost, context.generator("pairs and images"), over_pairs=pair_weights)
    accuracy = float(before.mean())
    return Penalties(layers, families, tuple(pairs), lost, draws, table("sparsity"), accuracy, table("faint"))


def changed_rows(one: Stitched, other: Stitched) -> float:
    """The share of outputs that read another input in one map of a permutation than in the other."""
    return float((one.matrix.abs().argmax(1) != other.matrix.abs().argmax(1)).double().mean())


def resampled(
    values: Tensor,
    generator: torch.Generator,
    draws: int = DRAWS,
    *,
    over_pairs: Callable[[int, int, torch.Generator], Tensor],
) -> Tensor:
    """Means of values (…, pairs, N) with weights of pairs and, at once, over resamples of examples: (…, draws).

    Every draw has the same weights and examples in all rows, so that it is one of differences of rows, too.
    ``over_pairs(pairs, draws, generator)``: the weights of pairs, (draws, pairs).
    """
    *rows, pairs, n = values.shape
    flat = values.reshape(-1, n).double()
    found = []
    for start in range(0, draws, _AT_ONCE):
        count = min(_AT_ONCE, draws - start)
        by_example = (flat @ _often(n, count, generator).T).reshape(-1, pairs, count)
        found.append((by_example * over_pairs(pairs, count, generator).T).sum(1))
    return torch.cat(found, 1).reshape(*rows, draws)


ENOUGH_PAIRS = 3
"""With fewer, intervals are over examples only, of just these pairs: two say nearly nothing about others."""


def pair_weights(n: int, draws: int, generator: torch.Generator) -> Tensor:
    """``student_weights`` of pairs where there are enough of them, else equal ones."""
    if n >= ENOUGH_PAIRS:
        return student_weights(n, draws, generator)
    return torch.full((draws, n), 1 / n, dtype=torch.float64)


def student_weights(n: int, draws: int, generator: torch.Generator) -> Tensor:
    """Weights (draws, n) of n independent things under which every mean has the spread of Student's t.

    w_i = 1/n + (e_i − ē)/√(n χ²) with e normal and χ² of n − 1 degrees of freedom: Σ w_i x_i is then distributed as
    x̄ + t s/√n. For small n resamples with replacement give intervals that are too narrow. One alone has no spread.
    """
    equal = torch.full((draws, n), 1 / n, dtype=torch.float64)
    if n == 1:
        return equal
    noise = torch.randn(draws, n, generator=generator, dtype=torch.float64)
    square = torch.randn(draws, n - 1, generator=generator, dtype=torch.float64).square().sum(1, keepdim=True)
    return equal + (noise - noise.mean(1, keepdim=True)) / (n * square).sqrt()


def _often(n: int, draws: int, generator: torch.Generator) -> Tensor:
    """The share of each of n things in each resample, (draws, n)."""
    chosen = torch.randint(n, (draws, n), generator=generator)
    ones = torch.ones(draws, n, dtype=torch.float64)
    return torch.zeros(draws, n, dtype=torch.float64).scatter_add_(1, chosen, ones) / n
