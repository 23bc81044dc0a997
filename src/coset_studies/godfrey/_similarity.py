"""The four measures of Godfrey et al. 2022, section 5, between the layers of pairs of networks, with intervals.

Examples come in batches. HSIC is averaged over them, without bias, and the products of Procrustes are summed, so that a
resample of batches is a resample of both; the same one for all pairs and layers. The Procrustes distance of all images
is the least over the group; resamples are measured at the element that attains it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.represent import Interval, feature_chunks
from coset.represent.channels import channel_statistics, check_features
from coset.represent.similarity import CrossMoments, Side, added, cross_moments, made_side, procrustes_of_moments
from coset.represent.similarity.procrustes_resampling import resampled_distances, sums_by_batch
from coset.represent.similarity.resampling import percentile_interval, u_centred
from coset.represent.unit_groups import group_on
from coset.running.moments import Moments as ChannelStatistics
from coset.running.moments import merged
from coset.study import Context
from coset_studies.godfrey._zoo import Networks, drawn

GROUPS = {"G_ReLU": "permutation", "orthogonal": "orthogonal"}
"""The paper's names of the groups, and ours."""
KERNELS = {"permutation": "max", "orthogonal": "sum"}
"""Of CKA, by group: on both sides of every pair of layers, the paper's."""
CKA = {f"{name} CKA": group for name, group in GROUPS.items()}
PROCRUSTES = {f"{name} Procrustes": group for name, group in GROUPS.items()}
MEASURES = (*CKA, *PROCRUSTES)
"""All are similarities, 1 for equal features; of Procrustes 1 − d."""
SCHEMA = 2
"""Version of what is measured: to be raised where the same settings come to give other numbers."""
LEVEL = 0.95


@dataclass(frozen=True)
class Measuring:
    """On ``images`` of the test part (None: all), in batches of ``batch``, with ``draws`` resamples of batches."""

    images: int | None
    batch: int
    draws: int = 1000


@dataclass(frozen=True, eq=False)
class Similarities:
    """What was measured of all pairs.

    ``values[measure]`` (pairs, layers); ``draws[measure]`` (pairs, layers, draws) of the resamples, the same for all;
    ``matrices[measure]`` (pairs, layers of the first, layers of the second), of CKA only.
    """

    layers: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    values: Mapping[str, Tensor]
    draws: Mapping[str, Tensor]
    matrices: Mapping[str, Tensor]

    def of_pair(self, measure: str, pair: int, layer: int) -> Interval:
        """The similarity of one pair at one layer with its interval over images."""
        return percentiles(float(self.values[measure][pair, layer]), self.draws[measure][pair, layer])

    def mean(self, measure: str, layer: int) -> Interval:
        """Of all pairs, with the interval over images."""
        return percentiles(float(self.values[measure][:, layer].mean()), self.draws[measure][:, layer].mean(0))


def percentiles(value: float, draws: Tensor) -> Interval:
    """A value with the percentiles of its resamples (B,)."""
    return percentile_interval(value, draws, LEVEL)


def similarities(
    context: Context,
    networks: Networks,
    layers: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    how: Measuring,
) -> Similarities:
    """All four measures between the named ``layers`` of both networks of every pair; each pair is kept in the store."""
    part = drawn(networks.test, how.images)
    found: list[Mapping[str, Tensor]] = []
    with context.progress("similarities", len(pairs)) as bar:
        for pair in pairs:
            config = {
                "kind": "similarities",
                "schema": SCHEMA,
                "networks": [networks.names[number] for number in pair],
                "layers": list(layers),
                "fingerprint": networks.fingerprint,
                "measuring": asdict(how),
                "seed": context.seed,
            }

            def make(pair: tuple[int, int] = pair) -> Mapping[str, Tensor]:
                both = (networks.modules[pair[0]], networks.modules[pair[1]])
                return _measured(both, part.x, tuple(layers), how, context)

            found.append(context.store.get_or_make(config, make).params)
            bar.advance(note=f"{pair[0]} and {pair[1]}")
    tables = {measure: torch.stack([one[measure] for one in found]) for measure in MEASURES}
    return Similarities(
        tuple(layers),
        tuple(pairs),
        {measure: table[..., 0] for measure, table in tables.items()},
        {measure: table[..., 1:] for measure, table in tables.items()},
        {measure: torch.stack([one[f"{measure}, matrix"] for one in found]) for measure in CKA},
    )


def _measured(
    both: tuple[nn.Module, nn.Module], x: Tensor, layers: tuple[str, ...], how: Measuring, context: Context
) -> dict[str, Tensor]:
    """Of one pair: per measure (layers, 1 + draws), the value first; per kind of CKA its matrix."""
    often, counts = _resamples(x, how, context)
    sides = _sides(both, x, layers, how.batch)
    terms: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {measure: [] for measure in CKA}
    moments: dict[str, list[CrossMoments]] = {layer: [] for layer in layers}
    for first, second in _chunks(both, x, layers, how.batch):
        for measure, group in CKA.items():
            kernels = [
                _kernels(features, {layer: sides[number, group, layer] for layer in layers})
                for number, features in enumerate((first, second))
            ]
            terms[measure].append(_hsic(*kernels))
        for layer in layers:
            moments[layer].append(cross_moments([(first[layer], second[layer])]))
    found: dict[str, Tensor] = {}
    for measure in CKA:
        cross, own, other = (torch.stack(part) for part in zip(*terms[measure], strict=True))
        tables = _ratio(often * counts, cross, own, other)
        found[f"{measure}, matrix"] = tables[0]
        found[measure] = tables.diagonal(dim1=1, dim2=2).T.contiguous()
    for measure, group in PROCRUSTES.items():
        found[measure] = 1 - torch.stack([_distances(moments[layer], often, group) for layer in layers]).cpu()
    return found


def _resamples(x: Tensor, how: Measuring, context: Context) -> tuple[Tensor, Tensor]:
    """How often each batch stands in all images and in each resample, (1 + draws, batches), and how many it holds."""
    counts = torch.tensor([len(part) for part in torch.split(x, how.batch)], dtype=torch.float64)
    if len(counts) < 2 or min(counts) < 4:
        raise InputError(
            f"{len(x)} images in batches of {how.batch} leave {len(counts)} batches, the smallest of "
            f"{int(min(counts))}; expected two or more of four images at least"
        )
    chosen = torch.randint(len(counts), (how.draws, len(counts)), generator=context.generator("batches"))
    often = torch.zeros(how.draws, len(counts), dtype=torch.float64)
    often.scatter_add_(1, chosen, torch.ones_like(often))
    return torch.cat([torch.ones_like(often[:1]), often]), counts


def _chunks(
    both: tuple[nn.Module, nn.Module], x: Tensor, layers: tuple[str, ...], batch: int
) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """The features (n, C, P) of both networks, batch by batch."""
    sides = [feature_chunks(network, x, layers, batch_size=batch) for network in both]
    for pair in zip(*sides, strict=True):
        first, second = ({name: check_features(part, name) for name, part in features.items()} for features in pair)
        yield first, second


def _sides(
    both: tuple[nn.Module, nn.Module], x: Tensor, layers: tuple[str, ...], batch: int
) -> dict[tuple[int, str, str], Side]:
    """The normalisation and kernel of (network, group, layer), by statistics of all images."""
    known: dict[tuple[int, str], ChannelStatistics] = {}
    for pair in _chunks(both, x, layers, batch):
        for number, features in enumerate(pair):
            for layer, part in features.items():
                here = channel_statistics([part])
                earlier = known.get((number, layer))
                known[number, layer] = here if earlier is None else merged(earlier, here)
    return {
        (number, group, layer): _side(group, layer, found)
        for (number, layer), found in known.items()
        for group in CKA.values()
    }


def _side(group: str, layer: str, known: ChannelStatistics) -> Side:
    return made_side(group_on(group, len(known.mean), f"layer '{layer}'"), KERNELS[group], lambda: known)


def _kernels(features: Mapping[str, Tensor], sides: Mapping[str, Side]) -> Tensor:
    """The centred kernel matrix of each layer on one batch, (layers, n²)."""
    return torch.stack([u_centred(side.matrix(features[layer])).flatten() for layer, side in sides.items()])


def _hsic(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Unbiased HSIC of all layers of the first network with all of the second (L, L), and with themselves (L,)."""
    n = round(first.shape[1] ** 0.5)
    norm = n * (n - 3)
    return first @ second.T / norm, first.square().sum(1) / norm, second.square().sum(1) / norm


def _ratio(weights: Tensor, cross: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """CKA (B, L, L) from HSIC of batches (batches, L, L), (batches, L), (batches, L) with weights (B, batches)."""
    weights = weights.to(cross)
    between = torch.einsum("db,bij->dij", weights, cross)
    return (between / (weights @ own).sqrt()[:, :, None] / (weights @ other).sqrt()[:, None, :]).cpu()


def _distances(batches: Sequence[CrossMoments], often: Tensor, group: str) -> Tensor:
    """Procrustes distances (B,) of resamples in which batches stand so often, (B, batches).

    All are taken at the element of the group that all images have, as in ``procrustes_interval``.
    """
    found = procrustes_of_moments(reduce(added, batches), group)
    return resampled_distances(often, sums_by_batch(batches, found), found)
