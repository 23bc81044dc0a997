"""What units of two networks compute on data, side by side, and how alike they are."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coset._show.progress import Ticker
from coset.alignment._result import Params, Teller
from coset.alignment.matching.feature_assignment import Scores, assign, objective
from coset.alignment.matching.feature_places import FeaturePlacement, Key, Watch, run, units_by_samples
from coset.alignment.matching.feature_rotations import alike
from coset.errors import InputError
from coset.running import whole_weights
from coset.running.moments import PairMoments, merged_pairs, pair_moments_of
from coset.symmetry import Element, Symmetry


def covariance(of: PairMoments) -> Tensor:
    """Cov(x_i, y_j), (N, N)."""
    return of.cross / of.count


def correlation(of: PairMoments) -> Tensor:
    """Cov(x_i, y_j)/(σ_i σ_j), (N, N); 0 for dead units, which do not vary by more than rounding."""
    deviation = (of.squares / of.count).sqrt()
    alive = deviation > of.rounding * of.mean.abs()
    inverse = torch.where(alive, 1 / torch.where(alive, deviation, 1), 0)
    return inverse[0][:, None] * (of.cross / of.count) * inverse[1]


STATISTICS: dict[str, Callable[[PairMoments], Tensor]] = {"correlation": correlation, "covariance": covariance}
"""How alike unit i of one network and unit j of another are, from their moments."""


class Pair(NamedTuple):
    """The weights of the two networks."""

    reference: Params
    other: Params


Places = Mapping[str, tuple[FeaturePlacement, ...]]


@dataclass
class Session:
    """One run: what has been seen so far, and whether somebody asked to stop.

    ``networks`` are run; ``weights`` are matched where features do not show something.
    """

    sym: Symmetry
    model: nn.Module
    networks: Pair
    weights: Pair
    places: Places
    statistic: str
    tell: Teller
    mixing: tuple[str, ...] = ()
    gathered: dict[tuple[object, ...], PairMoments] = field(default_factory=dict)
    stopped_at_class: bool = False

    def watch(self, batches: Iterator[Tensor], bar: Ticker) -> None:
        """Run both networks on every batch and gather the moments of what they compute."""
        fit = tuple(whole_weights(self.model, params) for params in self.networks)
        for number, batch in enumerate(batches):
            x, y = (self._features(params, batch) for params in fit)
            for place in list(x):
                mine = x.pop(place)
                found = pair_moments_of(mine, y.pop(place).to(mine.device))
                _check_finite(found, place, number)
                key = self._key(place)
                self.gathered[key] = merged_pairs(self.gathered[key], found) if key in self.gathered else found
            bar.advance(note=f"batch {number + 1}")
            if self.tell.callback is not None:
                here = objective(self.sym, self.scores(), self.sym.identity())
                if self.tell(here, f"batch {number + 1}"):
                    return

    def reflect(self, whole: Symmetry, flips: Mapping[str, str], batch: Tensor) -> None:
        """Give features that a reflection of their units flips its sign: y → e − y is one, up to a constant.

        Which do is seen on a batch: a norm behind the function may have taken the sign up.
        """
        plain = self.networks.reference
        for key, family in flips.items():
            owner = whole.turns[key].owner
            turned = whole.act(whole.element(turns={key: torch.ones(whole.shape(owner), dtype=torch.long)}), plain)
            seen = [self._features(whole_weights(self.model, params), batch) for params in (plain, turned)]
            self.places = {
                **self.places,
                owner: tuple(
                    replace(place, flips=place.flips | {family}) if _opposed(*(one[place] for one in seen)) else place
                    for place in self.places.get(owner, ())
                ),
            }

    def _features(self, params: Params, batch: Tensor) -> dict[FeaturePlacement, Tensor]:
        """What one network computes on a batch, at every place: (units, samples)."""
        wanted: dict[Key, list[FeaturePlacement]] = {}
        for place in chain(*self.places.values()):
            wanted.setdefault(place.site.key, []).append(place)
        features: dict[FeaturePlacement, Tensor] = {}

        def see(call: int, argument: int, name: str, tensor: Tensor) -> None:
            for place in wanted.get((call, argument), ()):
                if name == place.site.operation:
                    features[place] = units_by_samples(self.sym, place, tensor)

        run(self.model, params, batch, Watch(see))
        for place in chain(*self.places.values()):
            if place not in features:
                raise InputError(
                    f"call {place.site.call} ({place.site.operation}) of {type(self.model).__name__} is not made on "
                    f"inputs of shape {tuple(batch.shape)}: the model's control flow follows its data"
                )
        return features

    def _key(self, place: FeaturePlacement) -> tuple[object, ...]:
        """Which features are pooled: places are normalised one by one for correlations, and are samples of one
        population for covariances, as far as they show the same signs.
        """
        return (place,) if self.statistic == "correlation" else (place.owner, place.flips)

    def scores(self) -> Scores:
        """How alike units are by what was seen so far."""
        result: dict[str, dict[frozenset[str], Tensor]] = {name: {} for name in self.places}
        done: set[tuple[object, ...]] = set()
        for place in chain(*self.places.values()):
            key = self._key(place)
            if key not in done:
                done.add(key)
                score = self._alike(place.owner, self.gathered[key]).cpu()
                parts = result[place.owner]
                parts[place.flips] = parts[place.flips] + score if place.flips in parts else score
        return result

    def _alike(self, owner: str, moments: PairMoments) -> Tensor:
        return alike(moments, self.statistic) if owner in self.mixing else STATISTICS[self.statistic](moments)

    def matched(self, sym: Symmetry, scores: Scores, history: list[float]) -> Element:
        """The best element of a part of the group, class by class; its objective after each is added to ``history``."""
        g = sym.identity()
        asks = not self.tell.stopped
        for name, g in assign(sym, scores):
            history.append(objective(sym, scores, g))
            if asks and self.tell(history[-1], f"class {name}"):
                self.stopped_at_class = True
                break
        return g


def _opposed(x: Tensor, y: Tensor) -> bool:
    """Whether units (n, samples) vary against each other."""
    return float(((x - x.mean(1, keepdim=True)) * (y - y.mean(1, keepdim=True))).sum()) < 0


def _check_finite(found: PairMoments, place: FeaturePlacement, number: int) -> None:
    fine = torch.isfinite(found.squares).all(1).tolist()
    if not all(fine):
        whose = "the other network" if fine[0] else "the reference"
        raise InputError(
            f"activations of '{place.owner}' in {whose}, as call {place.site.call} ({place.site.operation}) reads them "
            f"on batch {number} of data, are NaN, infinite, too small or too large to be squared"
        )
