"""Many networks at once: every one brought to a common frame, so that all pairs agree with each other."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, cast

import torch

from coset._checks import check_choice, check_count, check_seed
from coset._magnitudes import unscaled
from coset._show.progress import Ticker, progress
from coset._values import freeze
from coset.alignment._agreement import mean_agreement
from coset.alignment._result import Callback, T, Teller, carried, deviations, marginals, points
from coset.alignment.averages import mean
from coset.alignment.inputs import check_networks
from coset.alignment.matching.ascent import Clock, ascend
from coset.alignment.matching.class_places import ClassLayout, layout_of
from coset.alignment.matching.many_rotations import rotated_many
from coset.alignment.matching.products import build_terms
from coset.alignment.matching.relaxation import ascend_twice
from coset.alignment.matching.rotations import NoGauge
from coset.alignment.matching.scores import Scoring
from coset.alignment.matching.turns import unturned
from coset.alignment.matching.weights import GAUGES, untranslated, with_means
from coset.callbacks import check_callback
from coset.distribution import normalize_scales
from coset.distribution.contract import unwrapped
from coset.distribution.rescaling import common_exponent, rescaled
from coset.errors import InputError
from coset.symmetry import Element, Symmetry

STRATEGIES = {"mean": False, "universe": True}
"""Whether networks that have joined are matched again by ascent only, or with the relaxation each time."""


@dataclass(frozen=True, eq=False)
class ManyAlignment(Generic[T]):
    """Elements g_i that bring network i to a common frame, that of the first network: g_0 is the identity.

    ``aligned``: the networks g_i·θ_i. ``objective``: Σ_{i<j} ⟨g_i·θ_i | g_j·θ_j⟩ and its course in ``history``.
    ``agreement``: for every class the mean cosine between a network and the mean of all.
    """

    symmetry: Symmetry
    method: str
    elements: tuple[Element, ...]
    aligned: tuple[T, ...]
    objective: float
    history: tuple[float, ...]
    agreement: Mapping[str, float]
    seconds: Mapping[str, float]
    stopped: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        freeze(self, "agreement", "seconds")

    def between(self, i: int, j: int) -> Element:
        """g_ij = g_i⁻¹ g_j, which brings network j to network i; g_ij g_jk = g_ik exactly."""
        return self.symmetry.compose(self.symmetry.inverse(self.elements[i]), self.elements[j])

    @property
    def mean(self) -> T:
        """The mean of the aligned networks."""
        return mean(self.aligned)

    def __repr__(self) -> str:
        took = sum(self.seconds.values())
        return (
            f"ManyAlignment({len(self.elements)} networks, {self.method}: objective {self.history[0]:.6g} → "
            f"{self.objective:.6g}, {took:.2f} s)"
        )


def align_many(
    sym: Symmetry,
    networks: Sequence[T],
    *,
    method: str = "universe",
    rounds: int = 20,
    gauge: Literal["given", "normalized"] = "given",
    continuous: bool = True,
    seed: int = 0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> ManyAlignment[T]:
    """max over g_1…g_N of Σ_{i<j} ⟨g_i·θ_i | g_j·θ_j⟩ over permutations and signs, network by network in random order.

    ``continuous``: of points over the whole group where units may be mixed, in the gauge of ``rotations``; where a
    network has none, over permutations and signs, and a note says so. Translations are then removed of all for
    matching; the aligned networks keep their own. Units of points turn, too: the objective is then that of the networks
    without turns, see ``align``. ``gauge``: match the networks as given, or "normalized", without their scales.

    Each network in turn is matched to the sum of the others as they stand, which is exact coordinate ascent on the
    objective: it never falls. First each joins those before it, by ascent and by the relaxation. Then, "mean": by
    ascent from where it is (Ainsworth et al. 2023, MergeMany); "universe": also by the relaxation, with no regard
    to where it is (the cycle-consistent objective of Crisostomi et al. 2024). All pairs go through one frame, so
    they are consistent by construction. ``rounds``: at
    most so many times through all networks.
    """
    networks = [unwrapped(network) for network in networks]
    check_choice("method", method, STRATEGIES)
    if len(networks) < 2:
        raise InputError(f"{len(networks)} networks are given; expected two or more to align")
    check_choice("gauge", gauge, GAUGES)
    check_count("rounds", rounds)
    check_seed(seed)
    check_callback(callback)
    check_networks(sym, networks, correlated=True)
    single = continuous and not any(deviations(network) for network in networks)
    if single and sym.turns:
        options: dict[str, Any] = {"method": method, "rounds": rounds, "gauge": gauge, "seed": seed, "show": show}
        return _over_turns(sym, networks, {**options, "callback": callback})
    notes: tuple[str, ...] = ()
    if single and sym.continuous:
        try:
            return _over_all(sym, networks, method, rounds, gauge == "normalized", seed, callback)
        except NoGauge as error:
            notes = (f"{error}: permutations and signs alone were matched",)
    matched = [marginals(network) for network in networks]
    if gauge == "normalized":
        matched = [normalize_scales(sym.monomial, network)[0] for network in matched]
    # Of which products are numbers; pairs are then worth 4⁻ᵉ of what they are.
    by = common_exponent(*matched)
    matched = [rescaled(network, by) for network in matched]
    session = _Session(sym.restrict(scales=False), matched, STRATEGIES[method], seed, callback, unit=2 * by)
    with progress(f"aligning {len(networks)} networks", 1 + rounds, show=show) as bar:
        session.run(rounds, bar)
    first, *others = (sym.element(g.permutations, signs=g.signs) for g in session.elements)
    home = sym.inverse(first)
    elements = (sym.identity(), *(sym.compose(home, g) for g in others))
    aligned = tuple(carried(sym, g, network) for g, network in zip(elements, networks, strict=True))
    placed = [points(network) for network in aligned]
    return ManyAlignment(
        sym,
        method,
        elements,
        aligned,
        unscaled(session.objective, 2 * by),
        tuple(unscaled(value, 2 * by) for value in session.history),
        mean_agreement(sym, mean(placed), placed),
        session.clock.seconds,
        session.tell.stopped,
        notes,
    )


def _over_turns(sym: Symmetry, networks: Sequence[T], options: Mapping[str, Any]) -> ManyAlignment[T]:
    """The same where units turn: the networks without turns are matched, see ``turns``."""
    still = unturned(sym, [points(network) for network in networks])
    found = align_many(still.symmetry, still.networks, **options)
    elements = tuple(still.restored(g, number) for number, g in enumerate(found.elements))
    aligned = tuple(carried(sym, g, network) for g, network in zip(elements, networks, strict=True))
    placed = [points(network) for network in aligned]
    return replace(
        cast(ManyAlignment[Any], found),
        symmetry=sym,
        elements=elements,
        aligned=aligned,
        agreement=mean_agreement(sym, mean(placed), placed),
    )


def _over_all(
    sym: Symmetry,
    networks: Sequence[T],
    method: str,
    rounds: int,
    normalized: bool,
    seed: int,
    callback: Callback | None,
) -> ManyAlignment[T]:
    """The same over permutations, signs and matrices."""
    clock, since, tell = Clock(), time.perf_counter(), Teller(callback)
    given = [points(network) for network in networks]
    plain = [untranslated(sym, network) for network in given]
    found = rotated_many(
        sym, plain, rounds=rounds, relax=STRATEGIES[method], normalized=normalized, seed=seed, report=tell
    )
    first, *others = found.elements
    if sym.translations:
        others = [with_means(sym, g, given[0], network) for g, network in zip(others, given[1:], strict=True)]
    elements = (first, *others)
    aligned = tuple(carried(sym, g, network) for g, network in zip(elements, networks, strict=True))
    clock.add("rotations", since)
    placed, course = [points(network) for network in aligned], found.history
    likeness = mean_agreement(sym, mean(placed), placed)
    return ManyAlignment(
        sym, method, elements, aligned, course[-1], tuple(course), likeness, clock.seconds, tell.stopped
    )


class _Session(Generic[T]):
    """The networks as they stand, and the objective of all pairs, in units of 2 to ``unit``."""

    def __init__(
        self,
        finite: Symmetry,
        networks: Sequence[T],
        thorough: bool,
        seed: int,
        callback: Callback | None,
        unit: int = 0,
    ) -> None:
        self.finite = finite
        self.layout: ClassLayout = layout_of(finite)
        self.networks = networks
        self.thorough = thorough
        self.generator = torch.Generator().manual_seed(seed)
        self.tell = Teller(callback, unit)
        self.unit = unit
        self.elements = [finite.identity() for _ in networks]
        self.moved = list(networks)
        self.clock = Clock()
        self.objective = sum(self._agreement(i) for i in range(len(networks))) / 2
        self.history = [self.objective]

    def run(self, rounds: int, bar: Ticker) -> None:
        """First every network joins those before it, then all are matched again until none moves."""
        for i in range(1, len(self.networks)):
            self._rematch(i, self.moved[:i], thorough=True)
            if self.tell.stopped:
                return
        bar.advance(note=f"objective {unscaled(self.objective, self.unit):.6g}")
        for _ in range(rounds):
            improved = False
            for i in torch.randperm(len(self.networks), generator=self.generator).tolist():
                others = [network for j, network in enumerate(self.moved) if j != i]
                improved |= self._rematch(i, others, self.thorough)
                if self.tell.stopped:
                    return
            bar.advance(note=f"objective {unscaled(self.objective, self.unit):.6g}")
            if not improved:
                return

    def _rematch(self, i: int, others: Sequence[T], thorough: bool) -> bool:
        """Match network i to the mean of ``others``; keep it if the objective of all pairs rises."""
        scoring = Scoring(self.layout, build_terms(self.finite, mean(others), self.networks[i]))

        def tell(_objective: float, what: str) -> bool:
            """A step within the matching of network i; the objective of all pairs as it stood."""
            return self.tell(self.objective, f"network {i}: {what}")

        search = ascend_twice if thorough else ascend
        climb = search(scoring, self.elements[i], self.generator, report=tell, clock=self.clock)
        if climb.element == self.elements[i]:
            return False
        since = time.perf_counter()
        before, element, moved = self._agreement(i), self.elements[i], self.moved[i]
        self.elements[i], self.moved[i] = climb.element, carried(self.finite, climb.element, self.networks[i])
        gain = self._agreement(i) - before
        self.clock.add("action", since)
        if gain <= 1e-9 * abs(self.objective):
            self.elements[i], self.moved[i] = element, moved
            return False
        self.objective += gain
        self.history.append(self.objective)
        return True

    def _agreement(self, i: int) -> float:
        """Σ_{j≠i} ⟨g_i·θ_i | g_j·θ_j⟩."""
        others: list[Any] = [network for j, network in enumerate(self.moved) if j != i]
        scoring = Scoring(self.layout, build_terms(self.finite, mean(others), self.moved[i]))
        return len(others) * scoring.objective(self.finite.identity())
