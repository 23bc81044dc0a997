"""Many networks over the whole group: each in turn is brought to the mean of the others, in one gauge."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from coset.alignment._agreement import is_trained
from coset.alignment.averages import mean
from coset.alignment.matching.rotations import Params, inner_product, matching_gauge
from coset.alignment.matching.unit_groups import unit_matcher
from coset.alignment.matching.whole_group import rotated_in_gauge
from coset.symmetry import Element, Symmetry

_RISE = 1e-6
"""A network moves where that raises the objective of all pairs by more, relative to its size."""


@dataclass(frozen=True)
class RotatedMany:
    """``elements`` that bring each network into the frame of the first; the course of Σ_{i<j} ⟨g_i·θ_i | g_j·θ_j⟩."""

    elements: tuple[Element, ...]
    history: list[float]


Report = Callable[[float, str], bool]


def rotated_many(
    sym: Symmetry,
    networks: Sequence[Params],
    *,
    rounds: int,
    relax: bool,
    normalized: bool = False,
    seed: int,
    report: Report,
) -> RotatedMany:
    """Coordinate ascent on Σ_{i<j} ⟨g_i·θ_i | g_j·θ_j⟩ in the gauge of ``matching_gauge``; means of networks keep it.

    First each joins those before it, then each is matched to the mean of the others, in random order, until none moves.
    The gauge of the first network is then restored. ``relax``: by the relaxation of units, too, every time.
    ``normalized``: without the scales of any network.
    """
    gauges = [matching_gauge(sym, network, scales=normalized) for network in networks]
    session = _Session(sym, [sym.act(g, network) for g, network in zip(gauges, networks, strict=True)], seed, report)
    session.run(rounds, relax)
    back = sym.compose(sym.inverse(gauges[0]), sym.inverse(session.elements[0]))
    others = [sym.compose(h, g) for h, g in zip(session.elements[1:], gauges[1:], strict=True)]
    return RotatedMany((sym.identity(), *(sym.compose(back, g) for g in others)), session.history)


class _Session:
    """The networks in their gauge as they stand, and the objective of all pairs."""

    def __init__(self, sym: Symmetry, networks: Sequence[Params], seed: int, report: Report) -> None:
        self.sym, self.moved, self.seed, self.report = sym, list(networks), seed, report
        self.elements = [sym.identity() for _ in networks]
        self.names = [name for name in networks[0] if is_trained(sym, name, networks[0])]
        self.history = [sum(self._agreement(i) for i in range(len(networks))) / 2]
        self.stopped = False

    def run(self, rounds: int, relax: bool) -> None:
        """All networks in turn, until none moves or somebody asks to stop."""
        generator = torch.Generator().manual_seed(self.seed)
        for i in range(1, len(self.moved)):
            self._rematch(i, self.moved[:i], relax=True)
        for _ in range(rounds):
            order = torch.randperm(len(self.moved), generator=generator).tolist()
            moved = [self._rematch(i, self._others(i), relax) for i in order]
            if not any(moved):
                return

    def _others(self, i: int) -> list[Params]:
        return [network for j, network in enumerate(self.moved) if j != i]

    def _rematch(self, i: int, others: Sequence[Params], relax: bool) -> bool:
        """Match network i to the mean of ``others``; keep it if the objective of all pairs rises."""
        if self.stopped:
            return False

        def tell(_objective: float, what: str) -> bool:
            self.stopped = self.report(self.history[-1], f"network {i}: {what}")
            return self.stopped

        units = unit_matcher(self.sym, relax, self.seed)
        found = rotated_in_gauge(self.sym, mean(others), self.moved[i], units, tell)
        before, old = self._agreement(i), self.moved[i]
        self.moved[i] = self.sym.act(found.element, old)
        gain = self._agreement(i) - before
        if gain <= _RISE * abs(self.history[-1]):
            self.moved[i] = old
            return False
        self.elements[i] = self.sym.compose(found.element, self.elements[i])
        self.history.append(self.history[-1] + gain)
        return True

    def _agreement(self, i: int) -> float:
        """Σ_{j≠i} ⟨g_i·θ_i | g_j·θ_j⟩ over trained weights."""
        return sum(inner_product(self.moved[i], other, self.names) for other in self._others(i))
