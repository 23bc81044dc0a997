"""Draws of a posterior in one gauge: each brought to the mean of the others, so that weights can be compared."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coset._checks import check_choice, check_count, check_seed
from coset._magnitudes import unscaled
from coset._show.progress import Ticker, progress
from coset._values import freeze
from coset.alignment._agreement import mean_agreement
from coset.alignment._result import Callback, Params, Teller
from coset.alignment.inputs import check_network
from coset.alignment.matching.ascent import Clock, ascend
from coset.alignment.matching.class_places import layout_of
from coset.alignment.matching.products import build_terms, matched_names
from coset.alignment.matching.relaxation import ascend_twice
from coset.alignment.matching.scores import Scoring
from coset.alignment.matching.weights import GAUGES
from coset.callbacks import check_callback
from coset.distribution import Samples, act_each, normalize_scales
from coset.distribution.contract import require
from coset.distribution.rescaling import common_exponent, rescaled
from coset.symmetry import Element, Symmetry


@dataclass(frozen=True, eq=False)
class SamplesAlignment:
    """Elements g_i that bring draw i to a common gauge, in which the last draw of the first chain stays as it is.

    ``elements`` are in the order of the draws, one chain after the other; ``aligned`` are the draws g_i·θ_i.
    ``objective``: ‖m‖², m the mean of the aligned draws over the trained parameters that move; the spread of the draws
    about m is a constant minus that. ``history``: its course, every time it rose. ``agreement``: for every class the
    mean cosine between a draw and m. ``settled``: whether the last round moved no draw.
    """

    symmetry: Symmetry
    gauge: str
    elements: tuple[Element, ...]
    aligned: Samples
    objective: float
    history: tuple[float, ...]
    agreement: Mapping[str, float]
    seconds: Mapping[str, float]
    settled: bool
    stopped: bool = False

    def __post_init__(self) -> None:
        freeze(self, "agreement", "seconds")

    def __repr__(self) -> str:
        took = sum(self.seconds.values())
        return (
            f"SamplesAlignment({self.aligned.chains} chains of {self.aligned.draws} draws: objective "
            f"{self.history[0]:.6g} → {self.objective:.6g}, {took:.2f} s)"
        )


def align_samples(
    sym: Symmetry,
    samples: Samples,
    *,
    gauge: Literal["given", "normalized"] = "given",
    relax: bool = True,
    rounds: int = 20,
    seed: int = 0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> SamplesAlignment:
    """max over g_1…g_N of ‖(1/N) Σ g_i·θ_i‖² over permutations and signs: draws as close to their mean as can be.

    From the last draw of the first chain backwards, each draw joins the mean of those that have joined: by ascent from
    the element of the draw before it (neighbours in a chain are close) and, with ``relax``, by a relaxation that does
    not depend on a start. Then, up to ``rounds`` times or until none moves, each is matched by ascent to the mean of
    the others, which is coordinate ascent on the objective (generalised Procrustes analysis modulo the group).

    ``gauge``: "given" leaves scales as they are, also where the group has them (ReLU): a Gaussian prior is invariant
    under permutations and signs and not under scales, so that the posterior does not repeat itself along them.
    "normalized" first removes the scales of every draw, and the elements have them: draws of one function become equal
    however they are scaled; the weights of the last layer then carry the products of all norms, and count most.
    ``callback`` is told of every pass through the draws and may stop after it.
    """
    require(samples, Samples, "samples", "Samples")
    check_choice("gauge", gauge, GAUGES)
    check_count("rounds", rounds, 0)
    check_seed(seed)
    check_callback(callback)
    for number, draw in enumerate(samples):
        check_network(sym, draw, f"draw {number % samples.draws} of chain {number // samples.draws}")
    clock, since = Clock(), time.perf_counter()
    free = gauge == "normalized" and bool(sym.scaling)
    plain = [normalize_scales(sym, draw) if free else (draw, sym.identity()) for draw in samples]
    draws = [draw for draw, _ in plain]
    by = common_exponent(*draws)
    clock.add("preparation", since)
    session = _Session(sym.restrict(scales=False), [rescaled(draw, by) for draw in draws], seed, clock, unit=2 * by)
    with progress(f"aligning {len(samples)} draws", (1 + rounds) * len(samples), show=show) as bar:
        session.run(samples.draws - 1, relax, rounds, Teller(callback, 2 * by), bar)
    since = time.perf_counter()
    home = session.finite.inverse(session.elements[samples.draws - 1])
    elements = []
    for h, (_, undo) in zip(session.elements, plain, strict=True):
        g = session.finite.compose(home, h)
        whole = sym.element(g.permutations, signs=g.signs)
        elements.append(sym.compose(whole, sym.inverse(undo)) if free else whole)
    aligned = act_each(sym, elements, samples)
    agreements = mean_agreement(sym, aligned.mean, aligned)
    clock.add("action", since)
    return SamplesAlignment(
        symmetry=sym,
        gauge=gauge,
        elements=tuple(elements),
        aligned=aligned,
        objective=unscaled(session.history[-1], 2 * by),
        history=tuple(unscaled(value, 2 * by) for value in session.history),
        agreement=agreements,
        seconds=clock.seconds,
        settled=session.settled,
        stopped=session.stopped,
    )


class _Session:
    """The draws, where each of them stands, and their sum. Objectives are in units of 2 to ``unit``."""

    def __init__(self, finite: Symmetry, draws: Sequence[Params], seed: int, clock: Clock, unit: int = 0) -> None:
        self.unit = unit
        self.finite = finite
        self.layout = layout_of(finite)
        self.draws = draws
        self.clock = clock
        self.generator = torch.Generator().manual_seed(seed)
        # Tied in one draw may be chance, such as biases that are all 0; tied in all of them is not.
        self.matched = matched_names(finite, draws, buffers=False)
        self.elements = [finite.identity() for _ in draws]
        self.moved: list[Params] = list(draws)
        self.total = _sum(self.moved)
        self.history = [self._objective()]
        self.settled = len(draws) == 1
        self.stopped = False

    def run(self, last: int, relax: bool, rounds: int, tell: Teller, bar: Ticker) -> None:
        """Let all join, then match them again until none moves; ``last``: the draw to begin with."""
        if self.settled:
            return
        self._join([*range(last, -1, -1), *range(len(self.draws) - 1, last, -1)], relax, bar)
        for number in range(rounds + 1):
            self.stopped = tell(self._objective(), f"round {number}")
            if self.stopped or number == rounds:
                return
            moved = sum(self._rematch(i) for i in self._ticking(bar))
            # Summed anew: what is added and taken away again leaves its rounding.
            self.total = _sum(self.moved)
            if not moved:
                self.settled = True
                return
            self._note()

    def _join(self, order: Sequence[int], relax: bool, bar: Ticker) -> None:
        """Every draw in turn is matched to the mean of those before it; all stay as they were if that is no gain."""
        raw = self.total
        g = self.elements[order[0]]
        self.total = _sum([self.moved[order[0]]])
        for count, i in enumerate(order[1:], start=1):
            g = self._matched(i, _over(self.total, count), g, relax)
            self._place(i, g)
            _add(self.total, self.moved[i])
            bar.advance(note=f"{count + 1} draws joined")
        bar.advance()
        if self._objective() <= self.history[-1]:
            self.elements = [self.finite.identity() for _ in self.draws]
            self.moved, self.total = list(self.draws), raw
        else:
            self._note()

    def _rematch(self, i: int) -> bool:
        """Match a draw to the mean of the others by ascent from where it is; whether it moved."""
        _add(self.total, self.moved[i], -1.0)
        g = self._matched(i, _over(self.total, len(self.draws) - 1), self.elements[i], relax=False)
        moved = g != self.elements[i]
        if moved:
            self._place(i, g)
        _add(self.total, self.moved[i])
        return moved

    def _matched(self, i: int, anchor: Params, start: Element, relax: bool) -> Element:
        scoring = Scoring(self.layout, build_terms(self.finite, anchor, self.draws[i]))
        search = ascend_twice if relax else ascend
        return search(scoring, start, self.generator, clock=self.clock).element

    def _place(self, i: int, g: Element) -> None:
        self.elements[i], self.moved[i] = g, self.finite.act(g, self.draws[i])

    def _objective(self) -> float:
        """‖m‖² over the trained parameters that move, tied ones once."""
        squares = (float(self.total[name].square().sum()) for name in self.matched)
        return sum(squares) / len(self.draws) ** 2

    def _note(self) -> None:
        value = self._objective()
        if value > self.history[-1]:
            self.history.append(value)

    def _ticking(self, bar: Ticker) -> Iterator[int]:
        for i in range(len(self.draws)):
            yield i
            bar.advance(note=f"objective {unscaled(self.history[-1], self.unit):.6g}")


def _sum(draws: Sequence[Params]) -> dict[str, Tensor]:
    """Σ θ_i in float64; tensors of whole numbers are the first draw's."""
    total = {
        name: tensor.detach().to(torch.float64, copy=True) if tensor.is_floating_point() else tensor
        for name, tensor in draws[0].items()
    }
    for draw in draws[1:]:
        _add(total, draw)
    return total


def _add(total: dict[str, Tensor], draw: Params, factor: float = 1.0) -> None:
    for name, tensor in draw.items():
        if tensor.is_floating_point():
            total[name].add_(tensor.detach(), alpha=factor)


def _over(total: Params, count: int) -> dict[str, Tensor]:
    return {name: tensor / count if tensor.is_floating_point() else tensor for name, tensor in total.items()}
