"""``align_stack``: many small networks aligned in one call, each as ``align`` would."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coset._checks import check_choice, check_seed
from coset._magnitudes import exponents
from coset._show.progress import progress
from coset._values import freeze
from coset.alignment._align import align
from coset.alignment.inputs import check_same_names
from coset.alignment.matching.class_places import ClassLayout, layout_of
from coset.alignment.matching.products import Term, matched_names
from coset.alignment.matching.stacked_ascent import Orders, ascend_stack, put, relax_stack, taken
from coset.alignment.matching.stacked_scores import StackedScoring, repeated, suits
from coset.alignment.matching.weights import GAUGES
from coset.distribution.gauge import normalize_stack
from coset.errors import InputError
from coset.symmetry import Element, Symmetry
from coset.symmetry.mixing import matrices_shape
from coset.symmetry.stacks import Stack, act_stack, count_of, leading, network_of, one_of, stacked_elements

_CHUNK = 2**20
"""Parameters of all networks that are matched together, at most: what is read again and again stays near."""


@dataclass(frozen=True, eq=False)
class StackAlignment:
    """Elements g_i of ``symmetry`` that bring the networks of a stack to their references.

    ``elements``: all of them as one, every tensor with the leading axis N; ``element(i)`` is one of them. ``aligned``:
    g_i·θ_i, a stack. ``objectives`` (N,): what was maximised, in the gauge that was matched in; ``before`` (N,): the
    same of the networks as they were given. ``notes``: what the user should know of this run.
    """

    symmetry: Symmetry
    elements: Element
    aligned: Mapping[str, Tensor]
    objectives: Tensor
    before: Tensor
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        freeze(self, "aligned")

    def __len__(self) -> int:
        return len(self.objectives)

    def element(self, number: int) -> Element:
        """The element of one network."""
        if not -len(self) <= number < len(self):
            raise InputError(f"number is {number}; expected that of one of {len(self)} networks")
        return one_of(self.elements, number)

    def __repr__(self) -> str:
        start, end = float(self.before.mean()), float(self.objectives.mean())
        return f"StackAlignment({len(self)} networks: mean objective {start:.6g} → {end:.6g})"


def align_stack(
    sym: Symmetry,
    reference: Stack,
    stack: Stack,
    *,
    gauge: Literal["given", "normalized"] = "given",
    relax: bool = True,
    buffers: bool = False,
    continuous: bool = True,
    seed: int = 0,
    show: bool | None = None,
) -> StackAlignment:
    """max over g_i of Σ ⟨θ₀ | g_i·θ_i⟩ for every network θ_i of a stack, as ``align(…, method="weights")`` of each.

    ``stack``: N networks, a dict of tensors (N, *shape). ``reference``: one network for all, or a stack of N, pair by
    pair. Options are those of ``align``. All networks take the same steps together: scores are batched products,
    assignments are exact, and a network for which no step helps drops out. So objectives are those of a loop over
    ``align`` up to rounding, where rounding decides no tie.

    Networks are aligned one by one, which a note says, where units mix or turn (unless ``continuous`` is False), where
    classes share entries with others (the inputs and outputs of grouped convolutions), and where numbers are so large
    or small that products leave the range of their type.
    """
    check_choice("gauge", gauge, GAUGES)
    check_seed(seed)
    count = _checked(sym, stack, "the stack")
    if count is None:
        raise InputError("the stack is a single network; expected a leading axis of networks, or align for one")
    given = _checked(sym, reference, "the reference")
    if given not in (None, count):
        raise InputError(f"the reference holds {given} networks and the stack {count}; expected one, or as many")
    check_same_names(reference, stack, "the reference", "the stack")
    whole = {name: (t.expand(count, *t.shape) if given is None else t) for name, t in reference.items()}
    run = _Run(sym, gauge == "normalized", relax, buffers, continuous, seed, layout_of(sym.restrict(scales=False)))
    size = sum(tensor[0].numel() for tensor in stack.values())
    at_once = max(1, _CHUNK // max(1, size))
    parts = []
    with progress("aligning", count, show=show) as bar:
        for start in range(0, count, at_once):
            rows = slice(start, min(start + at_once, count))
            left, right = ({name: t[rows].detach() for name, t in part.items()} for part in (whole, stack))
            parts.append(run.chunk(left, right, start, given is None))
            bar.advance(rows.stop - start)
    elements = _joined(sym, [part[0] for part in parts])
    return StackAlignment(
        sym,
        elements,
        act_stack(sym, elements, stack),
        torch.cat([part[1] for part in parts]),
        torch.cat([part[2] for part in parts]),
        run.notes(count),
    )


_Found = tuple[Element, Tensor, Tensor]
"""Stacked elements, their objectives, and those at the identity."""


class _Run:
    """The options of a call, and which networks were aligned one by one."""

    def __init__(
        self,
        sym: Symmetry,
        normalized: bool,
        relax: bool,
        buffers: bool,
        continuous: bool,
        seed: int,
        layout: ClassLayout,
    ) -> None:
        self.sym = sym
        self.normalized = normalized
        self.relax = relax
        self.buffers = buffers
        self.continuous = continuous
        self.seed = seed
        self.layout = layout
        self.orders = Orders(len(layout.moves), seed)
        mixes = continuous and bool(sym.turns or (sym.continuous and not buffers))
        self.reason = "units of this symmetry mix or turn" if mixes else ""
        if not self.reason and not suits(layout):
            self.reason = "classes of this symmetry share entries with others"
        self.apart = 0
        self.said: list[str] = []

    def notes(self, count: int) -> tuple[str, ...]:
        """What was done one by one, and what single alignments had to say."""
        if self.reason:
            return (f"{self.reason}: the networks were aligned one by one", *dict.fromkeys(self.said))
        if not self.apart:
            return ()
        odd = f"{self.apart} of {count} networks have numbers too large or small for products of their type"
        return (f"{odd}: they were aligned one by one", *dict.fromkeys(self.said))

    def chunk(self, left: dict[str, Tensor], right: dict[str, Tensor], start: int, shared: bool) -> _Found:
        """Some of the pairs; the first has the number ``start``; ``shared``: they have one reference."""
        count = len(next(iter(right.values())))
        if self.reason:
            return self._one_by_one(left, right, torch.arange(count), start)
        near, far, odd = left, right, torch.zeros(count, dtype=torch.bool)
        if self.normalized:
            near, odd = self._normalized({name: t[:1] for name, t in left.items()} if shared else left, count)
            far, bad = self._normalized(right, count)
            odd = odd | bad
        found = repeated(self.sym.identity(), count)
        objectives, before = torch.zeros(2, count, dtype=torch.float64)
        odd = odd | _sized(near) | _sized(far)
        usual = _names(self.layout.sym, near, far, self.buffers)
        for names, members in usual.items():
            odd[members] |= _extraordinary([_term(name, near, far, members, count) for name in names])
            here = torch.tensor([member for member in members if not odd[member]], dtype=torch.long)
            if len(here) == 0:
                continue
            terms = [_term(name, near, far, here.tolist(), count) for name in names]
            g, value, first = self._together(terms, len(here))
            put(found, here, g)
            objectives[here], before[here] = value, first
        found = Element(found.permutations, _ones(self.sym, count), found.signs)
        if bool(odd.any()):
            here = odd.nonzero().flatten()
            self.apart += len(here)
            g, value, first = self._one_by_one(left, right, here, start)
            put(found, here, g)
            objectives[here], before[here] = value, first
        return found, objectives, before

    def _normalized(self, stack: Stack, count: int) -> tuple[dict[str, Tensor], Tensor]:
        found, bad = normalize_stack(self.sym, stack)
        if len(bad) == count:
            return found, bad
        return {name: t.expand(count, *t.shape[1:]) for name, t in found.items()}, bad.expand(count).clone()

    def _together(self, terms: list[Term], count: int) -> _Found:
        """Networks of ordinary size, whose terms are all there is to know."""
        scoring = StackedScoring(self.layout, terms)
        best = start = repeated(self.layout.sym.identity(), count)
        if not self.layout.moves or not terms:
            values = scoring.objective(None) if terms else torch.zeros(count, dtype=torch.float64)
            return start, values, values
        before, sweeps = scoring.objective(start), torch.zeros(count, dtype=torch.long)
        best = ascend_stack(scoring, start, self.orders, sweeps)
        objectives = scoring.objective(best)
        if self.relax:
            other = ascend_stack(scoring, relax_stack(scoring, count), self.orders, sweeps)
            reached = scoring.objective(other)
            higher = (reached > objectives).nonzero().flatten()
            put(best, higher, taken(other, higher))
            objectives = torch.maximum(objectives, reached)
        return best, objectives, before

    def _one_by_one(self, left: Stack, right: Stack, members: Tensor, start: int) -> _Found:
        found = []
        for number in members.tolist():
            try:
                one = align(
                    self.sym, network_of(left, number), network_of(right, number), relax=self.relax,
                    gauge="normalized" if self.normalized else "given", buffers=self.buffers,
                    continuous=self.continuous, seed=self.seed, show=False,
                )  # fmt: skip
            except InputError as error:
                raise InputError(f"network {start + number}: {error}") from error
            self.said += one.notes
            found.append(one)
        return (
            _joined(self.sym, [stacked_elements([one.element]) for one in found]),
            torch.tensor([one.objective for one in found], dtype=torch.float64),
            torch.tensor([one.history[0] for one in found], dtype=torch.float64),
        )


def _checked(sym: Symmetry, params: Stack, what: str) -> int | None:
    """How many networks there are, None for one without a leading axis; raises unless all are whole and finite."""
    if not isinstance(params, Mapping):
        raise InputError(f"{what} is a {type(params).__name__}; expected a dict of tensors")
    if unknown := [name for name in params if name not in sym.parameters]:
        raise InputError(f"{what} has '{unknown[0]}', which this symmetry does not know: it is that of another model")
    count = leading(sym, params, what)
    for name, tensor in params.items():
        # NaN is the least and the largest of what it is among: one pass, and no mask of every number.
        if tensor.is_floating_point() and tensor.numel() and not bool(torch.stack(tensor.aminmax()).isfinite().all()):
            bad = ~torch.isfinite(tensor.reshape(count or 1, -1)).all(1)
            which = "" if count is None else f"network {int(bad.nonzero()[0])} of "
            raise InputError(f"'{name}' of {which}{what} has entries that are NaN or infinite")
    return count


def _names(sym: Symmetry, left: Stack, right: Stack, buffers: bool) -> dict[tuple[str, ...], list[int]]:
    """The parameters that are matched, tied ones once, and the networks in which it is these."""
    count = len(next(iter(right.values())))
    alike: dict[tuple[object, ...], list[str]] = {}
    for name, structure in sym.structures.items():
        if right[name].is_floating_point() and (buffers or not sym.parameters[name].buffer):
            alike.setdefault((id(structure), sym.parameters[name].shape), []).append(name)

    def meet(one: str, two: str) -> bool:
        same = [(part[one] == part[two]).reshape(count, -1).all(1) for part in (left, right)]
        return bool((same[0] & same[1]).any())

    if not any(meet(one, two) for names in alike.values() for at, one in enumerate(names) for two in names[:at]):
        return {tuple(matched_names(sym, [network_of(left, 0), network_of(right, 0)], buffers)): list(range(count))}
    found: dict[tuple[str, ...], list[int]] = {}
    for number in range(count):
        pair = [network_of(left, number), network_of(right, number)]
        found.setdefault(tuple(matched_names(sym, pair, buffers)), []).append(number)
    return found


def _term(name: str, left: Stack, right: Stack, members: list[int], count: int) -> Term:
    """Of some of ``count`` networks; in no narrower type than float32, as ``build_terms`` has them."""
    near, far = (part[name] if len(members) == count else part[name][members] for part in (left, right))
    dtype = torch.promote_types(near.dtype, torch.float32)
    return Term(name, near.to(dtype), far.to(near.device, dtype))


def _extraordinary(terms: list[Term]) -> Tensor:
    """Of which networks products over- or underflow the type of their terms, see ``build_terms``; (N,)."""
    odd = torch.zeros((), dtype=torch.bool)
    for term in terms:
        limits = torch.finfo(term.left.dtype)
        left, right = (
            torch.linalg.vector_norm(part.reshape(len(part), -1), dim=1, dtype=torch.float64).cpu()
            for part in (term.left, term.right)
        )
        small = (left > 0) & (right > 0) & ~(left * right > term.left[0].numel() * limits.tiny / limits.eps)
        odd = odd | small | ~(left * right < limits.max**0.5)
    return odd


def _sized(stack: Stack) -> Tensor:
    """Which networks are not of ordinary size and have to be multiplied by powers of two; (N,)."""
    parts = [tensor for tensor in stack.values() if tensor.is_floating_point() and tensor.numel()]
    if not parts:
        return torch.zeros((), dtype=torch.bool)
    wide = all(part.dtype == torch.float64 for part in parts)
    ends = [torch.stack(part.reshape(len(part), -1).aminmax(dim=1)).abs().amax(0).double().cpu() for part in parts]
    sizes = torch.stack(ends, 1)
    return exponents(sizes if wide else sizes.float(), 1) != 0


def _ones(sym: Symmetry, count: int) -> dict[str, Tensor]:
    return {key: torch.ones(count, *sym.shape(sym.families[key].owner), dtype=torch.float64) for key in sym.scaling}


def _joined(sym: Symmetry, parts: list[Element]) -> Element:
    """Stacked elements one after the other; matrices and turns that some of them lack are neutral there."""
    counts = [count_of(g) or 1 for g in parts]

    def cat(kind: str, neutral: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = [getattr(g, kind) for g in parts]
        return {
            name: torch.cat([
                part[name] if name in part else neutral[name].expand(count, *neutral[name].shape)
                for part, count in zip(own, counts, strict=True)
            ])
            for name in dict.fromkeys(name for part in own for name in part)
        }  # fmt: skip

    shapes = {name: matrices_shape(sym, name) for name in sym.continuous}
    eyes = {name: torch.eye(shape[-1], dtype=torch.float64).expand(shape) for name, shape in shapes.items()}
    still = {key: torch.zeros(sym.shape(turn.owner), dtype=torch.long) for key, turn in sym.turns.items()}
    return Element(
        cat("permutations", {}), cat("scales", {}), cat("signs", {}), cat("matrices", eyes), cat("turns", still)
    )
