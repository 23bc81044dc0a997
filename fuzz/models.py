"""Random models against discovery: what it returns must keep the function on inputs that it has not seen."""

import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import coset
from coset.errors import InputError
from coset.symmetry import Symmetry
from fuzz import eager
from fuzz.networks import Plan, build, draw_input, other_sizes, plan, smaller, write
from fuzz.orbit import null_space, orbit_dimension
from fuzz.pieces import Kind, UnfitError
from fuzz.scaling import diagonal_scalings, jacobian_rank

TOLERANCE = 1e-8
OVERLAP_FAILS = True  # whether scales that are not independent of each other are a failure
JUMPS = ("F.threshold(", " > ", " >= ")  # where functions jump depends on scales, which no derivative shows
FAILURES = ("unsound", "traceback")


@dataclass(frozen=True)
class Outcome:
    """What came of one network: sound, refused, caught (by verification), unsound or traceback; and counts.

    ``mixing``: classes that matrices mix; ``hidden``: directions that keep the function beyond those of the group.
    """

    status: str
    reason: str = ""
    pinned: tuple[str, ...] = ()
    compared: int = 0
    skipped: int = 0
    overlap: int = 0
    missing: int | None = None
    mixing: int = 0
    hidden: int | None = None

    @property
    def failed(self) -> bool:
        return self.status in FAILURES or (OVERLAP_FAILS and self.overlap != 0)


def examine(plan: Plan, *, verify: bool = True, count: bool = True) -> Outcome:
    """Discover the symmetry of a network and check it; ``count``: also its scales."""
    source = write(plan)
    model = build(source, plan.seed)
    generator = torch.Generator().manual_seed(plan.seed + 1)
    example = draw_input(plan.start, 2 + plan.seed % 2, generator)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.no_grad():
            model(example.clone())  # a network that does not run is a mistake of the generator, and raises here
        given = example.clone()
        try:
            sym = coset.discover(model, given, verify=verify)
            str(sym)
            if Symmetry.from_json(sym.to_json()) != sym:
                return Outcome("unsound", "the symmetry read back is another one", sym.pinned)
        except InputError as error:
            message = str(error)
            if "\n" in message.strip():
                return Outcome("traceback", f"a message of several lines: {message.splitlines()[0]}")
            return Outcome("caught" if "preserve the function" in message else "refused", message)
        except Exception as error:
            return Outcome("traceback", _in_one_line(error))
        if not torch.equal(given, example) or any(not torch.equal(t, state[n]) for n, t in model.state_dict().items()):
            return Outcome("unsound", "discovery changed the model or its example", sym.pinned)
        try:
            outcome = compare(model, sym, plan.start, source.fixed, generator)
            rank = jacobian_rank(sym, dict(model.state_dict())) if count else sym.scale_dimension
            null = null_space(model, plan.start, plan.seed + 3) if count else None
            orbit = 0 if null is None else orbit_dimension(sym, dict(model.state_dict()), null[1])
        except Exception as error:
            return Outcome("traceback", f"after discovery: {_in_one_line(error)}")
        if outcome.status != "sound" or not count:
            return outcome
        shifts = {name: parameter.shift for name, parameter in sym.parameters.items()}
        jumps = any(mark in line for line in source.done for mark in JUMPS)
        scalings = None if jumps else diagonal_scalings(model, plan.start, shifts, plan.seed + 2)
        missing = None
        if scalings is not None:
            missing = scalings[0] - jacobian_rank(sym, dict(model.state_dict()), scalings[1])
        hidden = None if null is None else null[0] - orbit
        if hidden is not None and hidden < 0:
            return Outcome("unsound", f"an orbit of {orbit} dimensions in a null space of {null[0]}", sym.pinned)
    return replace(
        outcome,
        overlap=sym.scale_dimension - rank,
        missing=missing,
        mixing=len(sym.continuous),
        hidden=hidden,
    )


def _in_one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def compare(model: nn.Module, sym: Symmetry, kind: Kind, fixed: bool, generator: torch.Generator) -> Outcome:
    """The model before and after random elements, run eagerly on other values, scales, batch sizes and sizes."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    compared = skipped = 0
    inputs = list(_inputs(kind, fixed, generator))
    for turn in range(2):
        moved = eager.moved(sym, state, generator)
        for label, x in inputs if turn == 0 else inputs[:1]:
            before = _run(model, x)
            if before is None or all(not bool(t.isfinite().any()) for t in before):
                skipped += before is not None
                continue
            with eager.holding(model, moved) as held:
                if not held:
                    return Outcome("unsound", "weights over one storage are moved apart", sym.pinned)
                after = _run(model, x)
            if after is None:
                return Outcome("unsound", f"the moved model cannot be run ({label})", sym.pinned)
            change = eager.change(before, after)
            noise = 0.0
            if change > TOLERANCE / 100:
                noise = max(_noise(model, params, x, generator) for params in (state, moved))
            if change > max(TOLERANCE, 1e3 * noise):
                return Outcome("unsound", f"outputs change by {change:.1e} ({label})", sym.pinned)
            compared += 1
            skipped += change > TOLERANCE
    return Outcome("sound", "", sym.pinned, compared, skipped)


def _inputs(kind: Kind, fixed: bool, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    yield "other values", draw_input(kind, 3, generator)
    yield "scale 10, batch 1", draw_input(kind, 1, generator, 10.0)
    yield "scale 1000, batch 4", draw_input(kind, 4, generator, 1000.0)
    for other in other_sizes(kind, fixed):
        yield f"size {other.size}", draw_input(other, 2, generator)


def _run(model: nn.Module, x: Tensor) -> list[Tensor] | None:
    """The outputs, or None where the model does not take such an input."""
    try:
        with torch.no_grad():
            return [leaf for leaf in tree_leaves(model(x.clone())) if isinstance(leaf, Tensor)]
    except (RuntimeError, IndexError, ValueError):
        return None


def _noise(model: nn.Module, params: dict[str, Tensor], x: Tensor, generator: torch.Generator) -> float:
    """How much the outputs change when weights change by 1e-13 of their size."""
    shaken = {
        name: tensor * (1 + 1e-13 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
        if tensor.is_floating_point() or tensor.is_complex()
        else tensor
        for name, tensor in params.items()
    }
    results = []
    for weights in (params, shaken):
        with eager.holding(model, weights):
            results.append(_run(model, x))
    before, after = results
    return eager.change(before, after) if before is not None and after is not None else 0.0


def _kind(outcome: Outcome) -> tuple[str, str, bool]:
    """What two failures have in common that are taken for one."""
    error = outcome.reason.partition(":")[0] if outcome.status == "traceback" else ""
    return outcome.status, error, outcome.overlap != 0


def shrunk(plan: Plan, outcome: Outcome, tries: int = 30) -> tuple[Plan, Outcome]:
    """The smallest network found, piece by piece, that fails in the same way."""
    found = True
    while found and tries:
        found = False
        for candidate in smaller(plan):
            if not tries:
                break
            tries -= 1
            try:
                other = examine(candidate, count=outcome.status == "sound")
            except (UnfitError, RuntimeError, ValueError, IndexError):
                continue
            if _kind(other) == _kind(outcome):
                plan, outcome, found = candidate, other, True
                break
    return plan, outcome


@dataclass
class Tally:
    """Counts over many networks."""

    statuses: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    pinned: int = 0
    compared: int = 0
    skipped: int = 0
    overlap: int = 0
    counted: Counter[str] = field(default_factory=Counter)
    smaller: Counter[str] = field(default_factory=Counter)
    mixing: int = 0
    hidden: Counter[str] = field(default_factory=Counter)

    def add(self, plan: Plan, outcome: Outcome) -> None:
        self.statuses[outcome.status] += 1
        if outcome.status == "refused":
            self.refusals[outcome.reason[:90]] += 1
        self.pinned += bool(outcome.pinned)
        self.compared += outcome.compared
        self.skipped += outcome.skipped
        self.overlap += outcome.overlap != 0
        self.mixing += outcome.mixing > 0
        if outcome.hidden is not None:
            self.hidden.update({"counted": 1, "larger": outcome.hidden > 0})
        if outcome.missing is not None and not outcome.pinned:
            self.counted.update({"all", *plan.names})
            if outcome.missing > 0:
                self.smaller.update({"all", *plan.names})

    def line(self, seconds: float) -> str:
        top = "; ".join(f"{number}× {reason}" for reason, number in self.refusals.most_common(3))
        counts = {name: self.statuses[name] for name in ("refused", "caught", "unsound", "traceback")}
        return (
            f"models: {sum(self.statuses.values())} cases, {', '.join(f'{n} {name}' for name, n in counts.items())}, "
            f"{self.pinned} pinned, {self.skipped} of {self.compared} comparisons skipped, {self.overlap} overlap, "
            f"{seconds:.0f} s{f' (refused: {top})' if top else ''}"
        )

    def sizes(self) -> str:
        """Where diagonal scalings were left out, by piece: never a failure, for no one promised all of them."""
        rates = sorted(((self.smaller[name] / n, name) for name, n in self.counted.items() if n >= 5), reverse=True)
        worst = ", ".join(f"{name} {self.smaller[name]}/{self.counted[name]}" for rate, name in rates[:12] if rate)
        return (
            f"smaller than it could be: {self.smaller['all']} of {self.counted['all']} counted; by piece: {worst}\n"
            f"matrices mix classes of {self.mixing} networks; a larger group than found, translations included: "
            f"{self.hidden['larger']} of {self.hidden['counted']} counted"
        )


def run(seconds: float, seed: int, cases: int | None = None) -> bool:
    """Networks of seed, seed + 1, … until the time is over; True if none failed."""
    start, tally, failures, number = time.monotonic(), Tally(), 0, 0
    while time.monotonic() - start < seconds and number != cases:
        made = plan(seed + number)
        outcome = examine(made)
        tally.add(made, outcome)
        if outcome.failed:
            failures += 1
            least, what = shrunk(made, outcome)
            reason = what.reason or f"{what.overlap} scales are not independent of the others"
            print(f"seed {made.seed}: {what.status}: {reason}; {least.start}: {', '.join(least.names)}", flush=True)
        elif outcome.status == "caught":
            print(f"seed {made.seed}: caught: {outcome.reason}; {', '.join(made.names)}", flush=True)
        number += 1
    print(tally.sizes())
    print(tally.line(time.monotonic() - start), flush=True)
    return failures == 0


def show(seed: int) -> None:
    """Print the network of a seed, what came of it and, where it failed, the smallest that fails as it does."""
    made = plan(seed)
    outcome = examine(made)
    print(f"# {made.start}: {', '.join(made.names)}\n{write(made).text()}\n# {outcome}")
    if outcome.failed or outcome.status == "caught":
        least, what = shrunk(made, outcome)
        print(f"\n# smallest: {least.start}: {', '.join(least.names)}\n{write(least).text()}\n# {what}")
