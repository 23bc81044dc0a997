"""``"activations"``: match units by what they compute on data (Li et al. 2016; Ainsworth et al. 2023, section 3.1)."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor, nn

from coset._batches import BATCH_SIZE, Inputs, count_batches, input_batches
from coset._checks import check_choice
from coset._show.progress import Ticker, progress
from coset.alignment._agreement import agreement
from coset.alignment._result import Alignment, Callback, Params, T, Teller, carried, deviations, left_out, points
from coset.alignment.inputs import check_pair
from coset.alignment.matching.ascent import Clock
from coset.alignment.matching.feature_assignment import Scores, assign, objective
from coset.alignment.matching.feature_hidden_signs import settle_signs
from coset.alignment.matching.feature_places import (
    FeaturePlacement,
    Key,
    Watch,
    common_families,
    find_features,
    run,
    units_by_samples,
    unseen,
)
from coset.alignment.matching.feature_rotations import (
    alike,
    carried_scores,
    turn_features,
    turn_on_weights,
    unturned,
)
from coset.alignment.matching.rotations import NoGauge, matching_gauge
from coset.alignment.matching.weights import ascend_classes
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


_ROUNDS = 3
"""So often, what features do not show is turned and permuted in turn."""

STATISTICS: dict[str, Callable[[PairMoments], Tensor]] = {"correlation": correlation, "covariance": covariance}
"""How alike unit i of one network and unit j of another are, from their moments."""


def match_activations(
    sym: Symmetry,
    reference: T,
    other: T,
    *,
    model: nn.Module,
    data: Inputs,
    statistic: str = "correlation",
    batch_size: int = BATCH_SIZE,
    continuous: bool = True,
    seed: int = 0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Alignment[T]:
    """Permutations (and signs, where the group has them) under which units are most alike on ``data``.

    max Σ_i s_i·stat(x_i, y_p(i)) for every class, x_i and y_j the activations of unit i of the reference and j of the
    other network wherever a contraction reads them (see ``features``), every position and token a sample.
    ``statistic``: "correlation", taken at each place a class is seen and summed, or "covariance" over all of them; unit
    j counts with either sign where a family of signs shows. Blocks (heads, groups) are matched with the best matching
    of what is nested in them. Of posteriors the means are run.

    ``continuous``: points are matched over the whole group where units may be mixed, in the gauge of ``rotations``:
    streams turn by orthogonal Procrustes, max ⟨A, Σ x·yᵀ⟩ over all places, heads in pairs by the nuclear norms of the
    same, and the gauge of the reference is restored. Where there is no such gauge, units are permuted; a note says so.

    One pass over ``data``: a tensor, cut into batches of ``batch_size``, or a loader. Memory: the features of a batch,
    and (units)² a place. What no contraction shows (classes, families of signs) is then matched on the weights, and
    ``notes`` say so. ``callback`` is called after every batch, with the objective of leaving all units where they are,
    and after every class; stopped among the batches, units are matched by what was seen till then. ``seed`` is that of
    matching on the weights.
    """
    check_pair(sym, reference, other)
    check_choice("statistic", statistic, STATISTICS)
    if not any(sym.classes[name].size > 1 for name in sym.permuting):
        raise InputError("no units of this symmetry permute; there is nothing to match")
    gauges, notes = _gauges(sym, reference, other, continuous)
    if continuous and not deviations(reference) and not deviations(other):
        notes = (*notes, *left_out(sym))
    networks = (points(reference), points(other))
    if gauges is not None:
        networks = (sym.act(gauges[0], networks[0]), sym.act(gauges[1], networks[1]))
    batches = input_batches(data, batch_size)
    first = _checked(next(batches), 0)
    clock, since = Clock(), time.perf_counter()
    rest = (_checked(batch, number) for number, batch in enumerate(batches, start=1))
    with progress("matching activations", total=1 + (count_batches(data, batch_size) or 0), show=show) as bar:
        places = find_features(sym, model, first)
        bar.advance(note="classes found")
        since = clock.add("sites", since)
        mixing = () if gauges is None else tuple(sym.continuous)
        session = _Session(sym, model, networks, places, statistic, Teller(callback), mixing)
        session.watch(chain([first], rest), bar)
    since = clock.add("features", since)
    scores = session.scores()
    still = _constant(scores)
    scores = {name: parts for name, parts in scores.items() if name not in still}
    found = _matched(session, scores)
    since = clock.add("assignment", since)
    g = found.element
    if not session.stopped_at_class:
        shown = {name: places[name] for name in places if name not in still}
        g, more = _rest(session, found, shown, seed)
        notes = (*notes, *(f"the units of '{name}' do not vary on these data" for name in still), *more)
        clock.add("weights", since)
    if gauges is not None:
        g = sym.compose(sym.inverse(gauges[0]), sym.compose(g, gauges[1]))
    aligned = carried(sym, g, other)
    return Alignment(
        sym, "activations", g, aligned, found.history[-1], tuple(found.history),
        agreement(sym, points(reference), points(aligned)), agreement(sym, points(reference), points(other)),
        clock.seconds, session.tell.stopped, notes,
    )  # fmt: skip


def _gauges(
    sym: Symmetry, reference: T, other: T, continuous: bool
) -> tuple[tuple[Element, Element] | None, tuple[str, ...]]:
    """What brings both networks into the gauge in which rotations are matched, if they are; what to tell if not."""
    if not (continuous and sym.continuous) or deviations(reference) or deviations(other):
        return None, ()
    try:
        return (matching_gauge(sym, points(reference)), matching_gauge(sym, points(other))), ()
    except NoGauge as error:
        return None, (f"{error}: units were permuted",)


@dataclass(frozen=True)
class _Found:
    """The ``element`` that features tell, the symmetry ``part`` of units that were permuted, and how likeness rose."""

    element: Element
    part: Symmetry
    history: list[float]


def _matched(session: "_Session", scores: Scores) -> _Found:
    """Rotations first, on which no permutation of other units depends, then permutations class by class."""
    sym = session.sym
    history = [objective(sym, scores, sym.identity())]
    if not session.mixing:
        return _Found(session.matched(sym, scores, history), sym, history)
    turned, value = turn_features(sym, scores, *session.networks)
    part = unturned(sym, scores)
    rest = carried_scores(sym, turned, scores, part)
    values = [objective(part, rest, part.identity())]
    g = session.matched(part, rest, values)
    flipped = {key: int(g.signs[key].reshape(-1)[0]) for key in common_families(part)}
    turned, value = turn_features(sym, scores, *session.networks, later=flipped)
    return _Found(_lifted(sym, g, turned), part, [*history, *(value + one for one in values)])


def _rest(
    session: "_Session", found: _Found, places: Mapping[str, tuple[FeaturePlacement, ...]], seed: int
) -> tuple[Element, tuple[str, ...]]:
    """What features do not show, on the weights."""
    sym, g, part = session.sym, found.element, found.part
    reference, other = session.networks
    hidden = [name for name in session.mixing if not places.get(name)]
    notes = [f"no contraction shows the units of '{name}': they were turned on the weights" for name in hidden]
    told: tuple[str, ...] = ()
    for _ in range(_ROUNDS if hidden else 1):
        g = sym.compose(turn_on_weights(sym, reference, sym.act(g, other), hidden), g) if hidden else g
        moved = reference, sym.act(g, other)
        own = {name: places[name] for name in places if name in part.permuting}
        h, told = _on_weights(part, moved, part.identity(), own if session.mixing else places, seed)
        g = _lifted(sym, h, g)
    return g, (*notes, *told)


def _lifted(sym: Symmetry, h: Element, g: Element) -> Element:
    """h, an element of a part of the symmetry, after g."""
    return sym.compose(sym.element(h.permutations, signs=h.signs), g)


@dataclass
class _Session:
    """One run: what has been seen so far, and whether somebody asked to stop."""

    sym: Symmetry
    model: nn.Module
    networks: tuple[Params, Params]
    places: Mapping[str, tuple[FeaturePlacement, ...]]
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


def _constant(scores: Scores) -> tuple[str, ...]:
    """The classes of which no unit varies: among these there is no more and less alike. Raises where none varies."""
    seen = {name: parts for name, parts in scores.items() if parts and len(next(iter(parts.values()))) > 1}
    still = tuple(name for name, parts in seen.items() if not any(bool(part.any()) for part in parts.values()))
    if still and len(still) == len(seen):
        raise InputError(
            f"the statistics of '{still[0]}' are singular: on these data none of its units varies in both networks; "
            f"expected several inputs that differ"
        )
    if not any(parts for parts in scores.values()):
        raise InputError("no contraction shows the units of any class on these data; expected inputs that differ")
    return still


def _on_weights(
    sym: Symmetry,
    networks: tuple[Params, Params],
    g: Element,
    places: Mapping[str, tuple[FeaturePlacement, ...]],
    seed: int,
) -> tuple[Element, tuple[str, ...]]:
    """Match what features do not show on the weights, given all the rest; and what to tell the user of it."""
    unread = unseen(sym, places)
    shown = {key for place in chain(*places.values()) for key in place.flips}
    hidden = [key for key in sym.flipping if key not in shown]
    notes = [f"no contraction shows the units of '{name}': they were matched on the weights" for name in unread]
    if unread:
        g = sym.compose(_matched_on_weights(sym, networks[0], sym.act(g, networks[1]), unread, seed), g)
    if hidden:
        listed = ", ".join(f"'{key}'" for key in hidden)
        notes.append(f"features do not show the signs of {listed}: they were chosen on the weights")
    products = {name: {place.flips for place in found} for name, found in places.items() if found}
    h = settle_signs(sym, networks[0], sym.act(g, networks[1]), products)
    return sym.compose(h, g), tuple(notes)


def _matched_on_weights(sym: Symmetry, reference: Params, other: Params, names: tuple[str, ...], seed: int) -> Element:
    """The permutations and signs of some classes that bring the weights closest, all others left as they are."""
    classes = {name: replace(item, permutes=name in names) for name, item in sym.classes.items()}
    families = {key: replace(sym.families[key], scales=False) for key in sym.flipping}
    part = replace(sym, classes=classes, families={k: item for k, item in families.items() if item.owner in names})
    h = ascend_classes(part, reference, other, part.identity(), names, seed)
    return sym.element(h.permutations, signs=h.signs)


def _checked(batch: Tensor, number: int) -> Tensor:
    if batch.ndim == 0 or len(batch) == 0:
        raise InputError(f"batch {number} of data has shape {tuple(batch.shape)}; expected at least one input")
    if batch.is_floating_point() and not bool(torch.isfinite(batch).all()):
        raise InputError(f"batch {number} of data has entries that are NaN or infinite")
    return batch


def _check_finite(found: PairMoments, place: FeaturePlacement, number: int) -> None:
    fine = torch.isfinite(found.squares).all(1).tolist()
    if not all(fine):
        whose = "the other network" if fine[0] else "the reference"
        raise InputError(
            f"activations of '{place.owner}' in {whose}, as call {place.site.call} ({place.site.operation}) reads them "
            f"on batch {number} of data, are NaN, infinite, too small or too large to be squared"
        )
