"""``"activations"``: match units by what they compute on data (Li et al. 2016; Ainsworth et al. 2023, section 3.1)."""

import time
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor, nn

from coset._batches import BATCH_SIZE, Inputs, count_batches, input_batches
from coset._checks import check_choice
from coset._show.progress import progress
from coset.alignment._agreement import agreement
from coset.alignment._result import Alignment, Callback, Params, T, Teller, carried, deviations, points
from coset.alignment.inputs import check_pair
from coset.alignment.matching.ascent import Clock
from coset.alignment.matching.feature_assignment import Scores, objective
from coset.alignment.matching.feature_hidden_signs import settle_signs
from coset.alignment.matching.feature_likeness import STATISTICS, Pair, Places, Session
from coset.alignment.matching.feature_places import common_families, find_features, unseen
from coset.alignment.matching.feature_rotations import carried_scores, turn_features, turn_on_weights, unturned
from coset.alignment.matching.rotations import NoGauge, matching_gauge
from coset.alignment.matching.turns import unturned as unturned_networks
from coset.alignment.matching.weights import ascend_classes, untranslated, with_means
from coset.errors import InputError
from coset.symmetry import Element, Symmetry

_ROUNDS = 3
"""So often, what features do not show is turned and permuted in turn."""


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
    Translations are removed of both for matching, as on weights; the aligned network keeps its own.
    Units of points turn, see ``turns``: reflections show as signs, and half-turns are those that the weights tell.

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
    single = continuous and not deviations(reference) and not deviations(other)
    plain, notes = _untranslated(sym, reference, other, single)
    turnless = unturned_networks(sym, plain) if single and sym.turns else None
    whole, sym = sym, sym if turnless is None else turnless.symmetry
    gauges, more = _gauges(sym, reference, other, continuous)
    notes = (*notes, *more)
    networks = plain if turnless is None else Pair(*turnless.gauged)
    weights = networks if turnless is None else Pair(*turnless.networks)
    if gauges is not None:
        networks, weights = (Pair(*map(sym.act, gauges, pair)) for pair in (networks, weights))
    batches = input_batches(data, batch_size)
    first = _checked(next(batches), 0)
    clock, since = Clock(), time.perf_counter()
    rest = (_checked(batch, number) for number, batch in enumerate(batches, start=1))
    with progress("matching activations", total=1 + (count_batches(data, batch_size) or 0), show=show) as bar:
        places = find_features(whole, model, first)
        bar.advance(note="classes found")
        since = clock.add("sites", since)
        mixing = () if gauges is None else tuple(sym.continuous)
        session = Session(sym, model, networks, weights, places, statistic, Teller(callback), mixing)
        if turnless is not None:
            session.reflect(whole, turnless.flips, first)
        session.watch(chain([first], rest), bar)
    since = clock.add("features", since)
    scores = session.scores()
    still = _constant(scores)
    scores = {name: parts for name, parts in scores.items() if name not in still}
    found = _matched(session, scores)
    since = clock.add("assignment", since)
    g = found.element
    if not session.stopped_at_class:
        shown = {name: seen for name, seen in session.places.items() if name not in still}
        g, more = _rest(session, found, shown, seed)
        notes = (*notes, *(f"the units of '{name}' do not vary on these data" for name in still), *more)
        clock.add("weights", since)
    if gauges is not None:
        g = sym.compose(sym.inverse(gauges[0]), sym.compose(g, gauges[1]))
    g = g if turnless is None else turnless.restored(g, 1)
    if single and whole.translations:
        g = with_means(whole, g, points(reference), points(other))
    aligned = carried(whole, g, other)
    return Alignment(
        whole, "activations", g, aligned, found.history[-1], tuple(found.history),
        agreement(whole, points(reference), points(aligned)), agreement(whole, points(reference), points(other)),
        clock.seconds, session.tell.stopped, notes,
    )  # fmt: skip


def _untranslated(sym: Symmetry, reference: T, other: T, single: bool) -> tuple[Pair, tuple[str, ...]]:
    """The networks without translations, which weights show; what to tell if they have to keep them."""
    pair = Pair(points(reference), points(other))
    if not (single and sym.translations):
        return pair, ()
    try:
        return Pair(*(untranslated(sym, params) for params in pair)), ()
    except NoGauge as error:
        return pair, (f"{error}: translations were kept",)


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


def _matched(session: "Session", scores: Scores) -> _Found:
    """Rotations first, on which no permutation of other units depends, then permutations class by class."""
    sym = session.sym
    history = [objective(sym, scores, sym.identity())]
    if not session.mixing:
        return _Found(session.matched(sym, scores, history), sym, history)
    turned, value = turn_features(sym, scores, *session.weights)
    part = unturned(sym, scores)
    rest = carried_scores(sym, turned, scores, part)
    values = [objective(part, rest, part.identity())]
    g = session.matched(part, rest, values)
    flipped = {key: int(g.signs[key].reshape(-1)[0]) for key in common_families(part)}
    turned, value = turn_features(sym, scores, *session.weights, later=flipped)
    return _Found(_lifted(sym, g, turned), part, [*history, *(value + one for one in values)])


def _rest(session: "Session", found: _Found, places: Places, seed: int) -> tuple[Element, tuple[str, ...]]:
    """What features do not show, on the weights."""
    sym, g, part = session.sym, found.element, found.part
    reference, other = session.weights
    hidden = [name for name in session.mixing if not places.get(name)]
    notes = [f"no contraction shows the units of '{name}': they were turned on the weights" for name in hidden]
    told: tuple[str, ...] = ()
    # First on what features have settled: beside units in a wrong order rotations fit these, and hold them there.
    loose = {*hidden, *unseen(part, places)}
    settled: list[str] | None = [name for name in sym.classes if name not in loose]
    for _ in range(_ROUNDS if hidden else 1):
        g = sym.compose(turn_on_weights(sym, reference, sym.act(g, other), hidden, settled), g) if hidden else g
        settled = None
        moved = reference, sym.act(g, other)
        own = {name: places[name] for name in places if name in part.permuting}
        h, told = _on_weights(part, moved, part.identity(), own if session.mixing else places, seed)
        g = _lifted(sym, h, g)
    return g, (*notes, *told)


def _lifted(sym: Symmetry, h: Element, g: Element) -> Element:
    """h, an element of a part of the symmetry, after g."""
    return sym.compose(sym.element(h.permutations, signs=h.signs), g)


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
    places: Places,
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
