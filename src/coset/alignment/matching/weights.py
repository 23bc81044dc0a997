"""Matching on the weights themselves: coordinate ascent, restarts, and a relaxation for better optima."""

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch

from coset._checks import check_choice, check_count
from coset._magnitudes import unscaled
from coset._show.progress import progress
from coset.alignment._agreement import agreement
from coset.alignment._result import (
    Alignment,
    Callback,
    T,
    Teller,
    Weights,
    carried,
    deviations,
    marginals,
    points,
)
from coset.alignment.inputs import check_start
from coset.alignment.matching.ascent import Climb, Clock, ascend
from coset.alignment.matching.class_places import ClassMove, layout_of
from coset.alignment.matching.products import build_terms, ordinary_pair
from coset.alignment.matching.relaxation import relax as relax_all
from coset.alignment.matching.rotations import NoGauge, Params, mean_flips
from coset.alignment.matching.scale_fit import fit_scales
from coset.alignment.matching.scores import Scoring
from coset.alignment.matching.turns import unturned
from coset.alignment.matching.unit_groups import unit_matcher
from coset.alignment.matching.weightings import WEIGHTINGS
from coset.alignment.matching.whole_group import rotated
from coset.distribution import normalize_scales
from coset.errors import InputError
from coset.symmetry import Element, Symmetry

GAUGES = ("given", "normalized")

_NEARER = 1e-9
"""What is nearer by less than this part is not nearer."""


def match_weights(
    sym: Symmetry,
    reference: T,
    other: T,
    *,
    divergence: str = "wasserstein",
    gauge: Literal["given", "normalized"] = "given",
    scales: bool = False,
    relax: bool = True,
    restarts: int = 0,
    start: Element | None = None,
    buffers: bool = False,
    continuous: bool = True,
    weighting: Literal["auto", "plain", "even", "directed"] = "auto",
    seed: int = 0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Alignment[T]:
    """max over g of Σ ⟨θ₀ | g·θ₁⟩ over permutations and signs (Rossi et al. 2023, eq. 19; Git Re-Basin for points).

    ``continuous``: over the whole group where units may be mixed and both networks are points (Theus et al. 2025), see
    ``rotations``: gains are then folded and GL(n) balanced for matching, and restored; the element has the scales for
    that whatever ``scales`` says. Units of points turn, too, see ``turns``: the objective is then that of the networks
    without turns. Translations are removed of both for matching; the aligned network keeps its own. Where a network has
    no such gauge (a gain of 0, heads without full rank) matrices are left out, with a note; with ``buffers``, too.
    ``weighting``: over the whole group every parameter counts as it is ("plain"), or entries of all count alike and
    those that tell how streams turn more ("even"), or besides directions by how much they are written and read
    ("directed", the default there; see ``weighed``); the objective is weighted so. Permutations alone are not weighted.

    ``divergence``: "wasserstein" or, for posteriors, "kl" or "kl-means", see ``DIVERGENCES``. ``gauge``: match the
    networks as given, or "normalized", without their scales: then nothing depends on how each was scaled. ``scales``:
    return scales too, where the group has them: those that give the other network the reference's norms (normalized),
    or that minimise ‖θ₀ − g·θ₁‖² given the permutation (given). The objective is that of the permutations and signs, in
    the gauge in which they are matched. ``relax``: besides the ascent from the start, one from the end of a
    relaxation that moves all classes together; ``restarts``: further ascents from random elements; the best is
    returned, so never less than the plain ascent. ``start``: where to begin (default: the identity); its scales are
    kept, and over the whole group nothing else is tried but ``restarts``. ``buffers``: match running statistics, too.
    Weights of any size are matched: products that would under- or overflow are taken of the networks multiplied by
    powers of two; only the objective that is reported may be 0 or infinite then. A Gaussian or LowRank is matched by
    its means and marginal
    deviations, and its covariance carried along.
    """
    check_choice("gauge", gauge, GAUGES)
    check_choice("weighting", weighting, WEIGHTINGS)
    check_count("restarts", restarts, 0)
    if start is not None:
        check_start(sym, start)
    clock, since = Clock(), time.perf_counter()
    notes: tuple[str, ...] = ()
    whole = continuous and not deviations(reference) and not deviations(other)
    if whole and sym.turns:
        options: dict[str, Any] = {
            "divergence": divergence, "gauge": gauge, "scales": scales, "relax": relax, "restarts": restarts,
            "buffers": buffers, "weighting": weighting, "seed": seed, "callback": callback, "show": show,
        }  # fmt: skip
        return _over_turns(sym, reference, other, start, options)
    if whole and sym.continuous and buffers:
        notes = ("with buffers matrices are left out: permutations and signs alone were matched",)
    elif whole and sym.continuous:
        try:
            how = "directed" if weighting == "auto" else weighting
            return _over_all(
                sym, reference, other, start, relax, restarts, seed, callback,
                normalized=gauge == "normalized", weighting=how,
            )  # fmt: skip
        except NoGauge as error:
            notes = (f"{error}: permutations and signs alone were matched",)
    if weighting not in ("auto", "plain"):
        notes = (*notes, "parameters were not weighted: that is done over the whole group alone")
    left: Any = marginals(reference)
    right: Any = marginals(other if start is None else carried(sym, start, other))
    undo: tuple[Element, Element] | None = None
    if gauge == "normalized":
        left, undo_left = normalize_scales(sym, left)
        right, undo_right = normalize_scales(sym, right)
        undo = (undo_left, undo_right)
    finite = sym.restrict(scales=False)
    left, right, unit = ordinary_pair(left, right, divergence)
    scoring = Scoring(layout_of(finite), build_terms(finite, left, right, divergence, buffers))
    clock.add("preparation", since)
    search = _Search(scoring, unit, seed, callback, show)
    climb = search.run(finite.identity(), relax, restarts, clock)
    since = time.perf_counter()
    element = sym.element(climb.element.permutations, signs=climb.element.signs)
    if scales and undo is not None:
        element = sym.compose(undo[0], sym.compose(element, sym.inverse(undo[1])))
    elif scales:
        begun = other if start is None else carried(sym, start, other)
        element = fit_scales(sym, points(reference), points(begun), element)
    element = element if start is None else sym.compose(element, start)
    aligned = carried(sym, element, other)
    clock.add("action", since)
    return Alignment(
        symmetry=sym,
        method="weights",
        element=element,
        aligned=aligned,
        objective=unscaled(climb.objective, unit),
        history=tuple(unscaled(value, unit) for value in search.history),
        agreement=agreement(sym, points(reference), points(aligned)),
        before=agreement(sym, points(reference), points(other)),
        seconds=clock.seconds,
        stopped=climb.stopped,
        notes=notes,
    )


def _over_turns(
    sym: Symmetry, reference: T, other: T, start: Element | None, options: Mapping[str, Any]
) -> Alignment[T]:
    """The same where units turn: both networks without turns are matched, see ``turns``."""
    begun = points(other) if start is None else sym.act(start, points(other))
    pair = unturned(sym, (points(reference), begun))
    identity = None if start is None else pair.symmetry.identity()
    found = match_weights(pair.symmetry, *pair.networks, start=identity, **options)
    element = pair.restored(found.element, 1)
    element = element if start is None else sym.compose(element, start)
    aligned = carried(sym, element, other)
    return Alignment(
        sym, "weights", element, aligned, found.objective, found.history,
        agreement(sym, points(reference), points(aligned)), agreement(sym, points(reference), points(other)),
        found.seconds, found.stopped, notes=found.notes,
    )  # fmt: skip


def _over_all(
    sym: Symmetry,
    reference: T,
    other: T,
    start: Element | None,
    relax: bool,
    restarts: int,
    seed: int,
    callback: Callback | None,
    *,
    normalized: bool,
    weighting: str,
) -> Alignment[T]:
    """The same over permutations, signs and matrices."""
    clock, since = Clock(), time.perf_counter()
    tell, units = Teller(callback), unit_matcher(sym, relax, seed)
    begun = points(other) if start is None else sym.act(start, points(other))
    found = rotated(
        sym,
        untranslated(sym, points(reference)),
        lambda: untranslated(sym, begun),
        units,
        normalized=normalized,
        weighting=weighting,
        begun=start is not None,
        restarts=restarts,
        seed=seed,
        report=tell,
    )
    element = with_means(sym, found.element, points(reference), begun) if sym.translations else found.element
    element = element if start is None else sym.compose(element, start)
    clock.add("rotations", since)
    since = time.perf_counter()
    aligned = carried(sym, element, other)
    clock.add("action", since)
    return Alignment(
        sym, "weights", element, aligned, found.history[-1], tuple(found.history),
        agreement(sym, points(reference), points(aligned)), agreement(sym, points(reference), points(other)),
        clock.seconds, tell.stopped,
    )  # fmt: skip


def untranslated(sym: Symmetry, params: Params) -> Params:
    """Without what may be added to weights freely, which says nothing of how near two networks are."""
    if not sym.translations:
        return params
    try:
        return sym.without_translations(params)
    except InputError as error:
        raise NoGauge(str(error)) from error


def with_means(sym: Symmetry, g: Element, reference: Params, other: Params) -> Element:
    """``g`` with the means of streams turned around, which translations hide, where that is nearer as it is."""
    nearest = _distance(reference, sym.act(g, other))
    for flip in mean_flips(sym):
        h = sym.compose(flip, g)
        distance = _distance(reference, sym.act(h, other))
        g, nearest = (h, distance) if distance < nearest * (1 - _NEARER) else (g, nearest)
    return g


def _distance(one: Params, two: Params) -> float:
    """Σ ‖θ₀ − θ₁‖² over parameters."""
    pairs = ((tensor, two[name].to(tensor)) for name, tensor in one.items() if tensor.is_floating_point())
    return sum(float((a - b).double().square().sum()) for a, b in pairs)


class _Search:
    """Ascents from several starts, reported as one run; the best is kept. Objectives are in units of 2 to ``unit``."""

    def __init__(self, scoring: Scoring, unit: int, seed: int, callback: Callback | None, show: bool | None) -> None:
        self.scoring = scoring
        self.unit = unit
        self.generator = torch.Generator().manual_seed(seed)
        self.tell = Teller(callback, unit)
        self.show = show
        self.history: list[float] = []

    def run(self, start: Element, relax: bool, restarts: int, clock: Clock) -> Climb:
        with progress("aligning", 1 + relax + restarts, show=self.show) as bar:
            self.history = [self.scoring.objective(start)]
            best = self._climb(start, clock)
            bar.advance(note=f"objective {unscaled(best.objective, self.unit):.6g}")
            if relax and not best.stopped:
                relaxed = relax_all(self.scoring, report=self.tell, clock=clock)
                best = replace(best, stopped=True) if relaxed.stopped else self._better(best, relaxed.element, clock)
                bar.advance(note=f"objective {unscaled(best.objective, self.unit):.6g}")
            for _ in range(restarts):
                if best.stopped:
                    break
                best = self._better(best, self.scoring.layout.sym.random(self.generator), clock)
                bar.advance(note=f"objective {unscaled(best.objective, self.unit):.6g}")
        return best

    def _climb(self, start: Element, clock: Clock) -> Climb:
        climb = ascend(self.scoring, start, self.generator, report=self.tell, clock=clock)
        # Of a course that began elsewhere, what lies above all that was reached before.
        self.history += [value for value in climb.history if value > self.history[-1]]
        return climb

    def _better(self, best: Climb, start: Element, clock: Clock) -> Climb:
        """The best so far, or the end of another ascent if that is higher."""
        self.scoring.changed(list(self.scoring.layout.sym.classes))
        found = self._climb(start, clock)
        return replace(found if found.objective > best.objective else best, stopped=found.stopped)


def ascend_classes(
    sym: Symmetry, reference: Weights, other: Weights, start: Element, names: Collection[str], seed: int = 0
) -> Element:
    """Match only some classes on the weights, by coordinate ascent from ``start``, all others as they are there."""
    finite = sym.restrict(scales=False)
    layout = layout_of(finite)
    left, right, _ = ordinary_pair(marginals(reference), marginals(carried(sym, start, other)), "wasserstein")
    scoring = Scoring(layout, build_terms(finite, left, right))
    moves = dict.fromkeys(ClassMove(move.root, move.active & set(names)) for move in layout.moves)
    wanted = [move for move in moves if move.active]
    climb = ascend(scoring, finite.identity(), torch.Generator().manual_seed(seed), moves=wanted)
    return sym.compose(sym.element(climb.element.permutations, signs=climb.element.signs), start)
