"""``audit``: how far a reader of weights changes along the orbits of networks."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coset._checks import check_count, check_positive, check_seed
from coset._show.progress import progress
from coset.errors import InputError
from coset.metanet.auditing.moves import KINDS, Moves, OrbitPlace, chosen_kinds
from coset.metanet.auditing.networks import Networks, Stack, flat, stacked
from coset.metanet.auditing.readings import Readings, distances, layout
from coset.metanet.auditing.result import Audit, OrbitChange, Worst, typical_distance
from coset.metanet.auditing.search import Found, ascend, flip_others
from coset.symmetry import Symmetry

PERTURBED = 4
"""How often rounding is imitated: at every network, and at so many places of each orbit."""

REPEATED = 2
"""How often every network is read again as it is."""

CONFIDENCE = 5.0
"""λ of the bound λ·√n·u on rounding in sums of n terms; it fails with probability 2·exp(−λ²/2) ≈ 7e-6."""

STARTS = 8
"""The search starts from so many random places, the best first."""

PAIRS = 1000
"""Distances between networks are those among so many of them."""


def audit(
    reader: Callable[[Any], Any],
    sym: Symmetry,
    networks: Networks,
    *,
    kinds: Collection[str] | None = None,
    draws: int = 16,
    spread: float = 0.5,
    budget: int = 256,
    batch: bool = False,
    kind_of_output: str | None = None,
    seed: int = 0,
    show: bool | None = None,
) -> Audit:
    """d(r(g·θ), r(θ)) for random g of every kind, and for the worst g that a search finds.

    ``reader``: a function r from the parameters of a network to a number, a vector (d,), a label (a whole number, a
    truth value, a text), or a dict like parameters; with ``batch`` from a stack (N, …) to (N,), (N, d), N labels or a
    dict (N, …). It is called with copies and must not draw random numbers. ``networks``: one network, a list, a stack,
    ``Samples`` or a ``Zoo``.

    ``kinds``: some of "permutations", "scales", "signs", "turns" (half-turns, reflections), "matrices" (rotations,
    GL), "translations", and "all" of them at once; by default what the symmetry has. At each network ``draws`` random
    places per kind; scales are exp(spread·N(0, 1)). The search has ``budget`` further readings per kind.

    A kind is "invariant" if no change is more than that which rounding makes. Rounding is measured: the reader is read
    again after every weight was multiplied by 1 ± λ√n·u, n the number of weights and u the unit roundoff of their type:
    the size of errors in sums of n terms (Higham & Mary 2019, λ = 5). To that, λ√n·u times the reading is added.

    ``kind_of_output="parameters"``: the reader gives edits v of the weights, and should be equivariant:
    r(g·θ) = g·(θ + v) − g·θ. The change is the relative difference of both sides, times ‖v‖.
    """
    check_count("draws", draws)
    check_count("budget", budget, 0)
    check_positive("spread", spread)
    check_seed(seed)
    if not isinstance(sym, Symmetry):
        raise InputError(f"sym is a {type(sym).__name__}; expected a Symmetry, as coset.discover gives it")
    readings = Readings(reader, batch=batch, output=kind_of_output)
    chosen = chosen_kinds(sym, kinds)
    stack = stacked(sym, networks)
    total = len(stack) * (1 + REPEATED + PERTURBED + len(chosen) * (draws + min(draws, PERTURBED)))
    with progress("auditing", total + len(chosen) * (budget + PERTURBED), show=show) as bar:
        readings.bar = bar
        session = _Session(sym, stack, readings, draws, spread, budget, seed)
        found = {kind: session.moved_by(kind, parts) for kind, parts in chosen.items()}
    return Audit(
        output=readings.output or "numbers",
        readings=session.base,
        between=session.between,
        kinds=found,
        draws=draws,
        spread=spread,
        seed=seed,
        perturbation=session.perturbation,
        count=readings.count,
    )


@dataclass(frozen=True, eq=False)
class _Expected:
    """What a reader should say of moved networks (N, d), the factor (N,) by which differences from it count, and how
    far rounding moves it.
    """

    rows: Tensor
    factor: Tensor
    rounding: Tensor


class _Session:
    """The networks, what the reader says of them as they are, and what rounding makes of that."""

    def __init__(
        self, sym: Symmetry, stack: Stack, readings: Readings, draws: int, spread: float, budget: int, seed: int
    ) -> None:
        self.sym, self.stack, self.readings = sym, stack, readings
        self.draws, self.spread, self.budget, self.seed = draws, spread, budget, seed
        self.base = readings(stack)
        self.labels = readings.output == "labels"
        generator = torch.Generator().manual_seed(seed)
        pairs = _pairs(self.base, generator)
        self.between = typical_distance(pairs, self.labels) if len(pairs) else None
        self.perturbation = _rounding_size(stack, self.base)
        perturbed = torch.stack(
            [distances(readings(self._perturbed(stack, generator)), self.base) for _ in range(PERTURBED)]
        )
        own = self._own_rounding(self.base)
        self.rounding = perturbed.amax(0) + own
        self._check_repeats(perturbed.amin(0) + own)

    def _own_rounding(self, rows: Tensor) -> Tensor:
        """Of what is read itself, (N,): a reader that weights hardly move rounds all the same. Labels are exact."""
        sizes: Tensor = torch.linalg.vector_norm(rows.double(), dim=1)
        return 0 * sizes if self.labels else self.perturbation * sizes

    def _check_repeats(self, least: Tensor) -> None:
        """Refuse readers that draw random numbers: read again, they differ nearly as much as by rounding, or more.

        Sums that are taken in another order each time, as on graphics cards, differ by far less.
        """
        again = torch.stack([distances(self.readings(self.stack), self.base) for _ in range(REPEATED)]).amax(0)
        odd = (again > 0) & (self.labels | (again >= least / 10))
        if bool(odd.any()):
            raise InputError(
                f"the reader gives other answers when it reads {self.stack.names[int(odd.nonzero()[0])]} again; "
                f"expected the same one (a module with dropout: in evaluation mode)"
            )

    def moved_by(self, kind: str, parts: tuple[str, ...]) -> OrbitChange:
        """Random places of one kind, then the search."""
        # A kind of moves meets the same places whichever others are audited.
        order = (*KINDS, kind).index(kind)
        generator = torch.Generator().manual_seed((self.seed + 7919 * (order + 1)) % 2**63)
        moves = Moves(self.sym, kind, parts, self.spread)
        changes, rounding = [], self.rounding.clone()
        starts: list[Found] = []
        for draw in range(self.draws):
            places = [moves.random(self._network(number), generator) for number in range(len(self.stack))]
            moved = moves(places, self.stack)
            read = self.readings(moved)
            expected = self._expected(moves, places, self.stack, self.base)
            changes.append(expected.factor * distances(read, expected.rows))
            if draw < PERTURBED:
                again = distances(self.readings(self._perturbed(moved, generator)), read)
                rounding = torch.maximum(rounding, self._noise(again, read, expected))
            starts += [Found(float(changes[-1][number]), number, place) for number, place in enumerate(places)]
            starts = sorted(starts, key=lambda found: -found.change)[:STARTS]
        whole = torch.stack(changes, 1)
        search = self._flips if self.labels else self._climb
        worst, flipped = search(moves, whole, rounding, starts, generator)
        size = float(self.base.double().abs().amax(1).median())
        return OrbitChange(kind, self.labels, whole, rounding, self.between, worst, size, flipped)

    def _climb(
        self, moves: Moves, changes: Tensor, rounding: Tensor, starts: list[Found], generator: torch.Generator
    ) -> tuple[Worst, None]:
        """The largest change that the search finds, and rounding there."""

        def fresh(number: int) -> OrbitPlace:
            return moves.random(self._network(number), generator)

        before = self.readings.count
        best = ascend(moves, starts, lambda n, place: self._change(moves, n, place), fresh, self.budget, generator)
        used = self.readings.count - before
        return self._worst(moves, best, used, generator), None

    def _flips(
        self, moves: Moves, changes: Tensor, rounding: Tensor, starts: list[Found], generator: torch.Generator
    ) -> tuple[Worst, float]:
        """A flip that rounding alone does not make, if one is found, and the share of networks that flip."""
        flipped = (changes > 0).any(1)

        def fresh(number: int) -> OrbitPlace:
            return moves.random(self._network(number), generator)

        found, used = flip_others(flipped.tolist(), lambda n, place: self._change(moves, n, place), fresh, self.budget)
        settled = [one for one in (*starts, *found.values()) if one.change > rounding[one.network]]
        worst = self._worst(moves, settled[0] if settled else starts[0], used, generator)
        return worst, (int(flipped.sum()) + len(found)) / len(flipped)

    def _worst(self, moves: Moves, found: Found, used: int, generator: torch.Generator) -> Worst:
        """What was found, with what rounding does there."""
        one = self.stack.rows([found.network])
        moved = moves([found.place], one)
        read = self.readings(moved)
        expected = self._expected(moves, [found.place], one, self.base[[found.network]])
        again = [distances(self.readings(self._perturbed(moved, generator)), read) for _ in range(PERTURBED)]
        noise = float(self._noise(torch.stack(again).amax(0), read, expected))
        return Worst(found.change, found.network, found.place, noise, used)

    def _noise(self, moved: Tensor, read: Tensor, expected: _Expected) -> Tensor:
        """All that rounding does to a comparison, (N,): ``moved`` by perturbed weights, and what was read itself."""
        return expected.factor * (moved + self._own_rounding(read)) + expected.rounding

    def _change(self, moves: Moves, number: int, place: OrbitPlace) -> float:
        one = self.stack.rows([number])
        expected = self._expected(moves, [place], one, self.base[[number]])
        return float(expected.factor * distances(self.readings(moves([place], one)), expected.rows))

    def _network(self, number: int) -> dict[str, Tensor]:
        return {name: tensor[number] for name, tensor in self.stack.tensors.items()}

    def _expected(self, moves: Moves, places: Sequence[OrbitPlace], stack: Stack, base: Tensor) -> _Expected:
        """What an invariant reader says: the same; what one of edits v does: g·(θ + v) − g·θ, relative to its size."""
        if self.readings.output != "parameters":
            ones = torch.ones(len(base), dtype=torch.float64)
            return _Expected(base, ones, 0 * ones)
        # In double precision: edits may be much smaller than weights.
        here = {
            name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in stack.tensors.items()
        }
        edited, start = dict(here), 0
        for name in layout(stack.tensors):
            shape = here[name].shape
            part = base[:, start : start + math.prod(shape[1:])]
            edited[name], start = here[name] + part.reshape(shape).to(here[name].device), start + part.shape[1]
        one, two = (moves.tensors(places, stack.tied(tensors)) for tensors in (here, edited))
        ends = [torch.cat([flat(end[name]).cpu() for name in layout(stack.tensors)], 1) for end in (one, two)]
        rows = ends[1] - ends[0]
        if not bool(torch.isfinite(rows).all()):
            number = int((~torch.isfinite(rows)).any(1).nonzero()[0])
            raise InputError(f"the edit of {stack.names[number]} cannot be moved: variances would be negative")
        sizes, own = torch.linalg.vector_norm(rows, dim=1), torch.linalg.vector_norm(base, dim=1)
        factor = torch.where(sizes > 0, own / sizes, 1.0)
        # Of the difference: both ends are rounded.
        eps = CONFIDENCE * torch.finfo(torch.float64).eps
        return _Expected(rows, factor, factor * eps * torch.linalg.vector_norm(ends[1].abs() + ends[0].abs(), dim=1))

    def _perturbed(self, stack: Stack, generator: torch.Generator) -> Stack:
        """Every number times 1 ± the size of rounding."""
        found = dict(stack.tensors)
        for name, tensor in stack.numbers.items():
            first = stack.first[name]
            if first != name and stack.tensors[first] is tensor:
                found[name] = found[first]
            else:
                signs = 2.0 * torch.randint(2, tensor.shape, generator=generator) - 1
                # Rounded once more: of coarse types only some of the entries move.
                factor = (1 + self.perturbation * signs.double()).to(tensor.device)
                wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
                found[name] = (wide * factor).to(tensor.dtype)
        return Stack(stack.tied(found), stack.names, stack.first)


def _pairs(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Distances of all pairs among at most ``PAIRS`` rows."""
    some = rows[torch.randperm(len(rows), generator=generator)[:PAIRS]]
    parts = [distances(some[number + 1 :], some[number : number + 1]) for number in range(len(some) - 1)]
    return torch.cat(parts) if parts else torch.empty(0)


def _rounding_size(stack: Stack, readings: Tensor) -> float:
    """λ·√n·u, at most half of the digits; u of the type of the weights, or single if all readings are of that type."""
    eps = torch.finfo(stack.dtype).eps
    single = torch.finfo(torch.float32).eps
    if readings.is_floating_point() and bool((readings.float().double() == readings).all()):
        eps = max(eps, single)
    return min(CONFIDENCE * math.sqrt(stack.size) * eps / 2, math.sqrt(eps))
