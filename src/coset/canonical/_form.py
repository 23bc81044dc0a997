"""``canonicalize``: one network of every orbit (thesis, section 4.4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from coset._checks import check_choice, keyword_options
from coset._values import freeze
from coset.alignment import METHODS, align, align_stack
from coset.alignment.matching.rotations import NoGauge
from coset.alignment.matching.turns import half_turn_gauge, reflections_as_signs
from coset.canonical._gauge import half_read, mixing_gauge, unit_scales
from coset.canonical._last import last_layer, logit_factors, multiplied
from coset.canonical._order import canonical_order
from coset.canonical._signs import canonical_signs
from coset.canonical._stacked import wide
from coset.distribution import Delta, Distribution, Samples
from coset.errors import InputError
from coset.geometry.scales import BIASES, with_norms
from coset.symmetry import Element, Symmetry
from coset.symmetry.action import filled
from coset.symmetry.stacks import act_stack, compose_stack, inverse_stack, leading, network_of, stacked_elements
from coset.symmetry.turning import centred

T = TypeVar("T", bound=Mapping[str, Tensor] | Distribution)
Params = Mapping[str, Tensor]

_ROUNDS = 20
"""So often at most translations and scales are removed one after the other."""


@dataclass(frozen=True, eq=False)
class Canonical(Generic[T]):
    """A network in its canonical form, and what brings it back.

    ``params``: what was given, in the form. ``element``: the g with θ = offsets + g·(params with the last layer divided
    by ``factor``); for a stack every tensor of it has the leading axis of the networks, and ``factor`` is (N,).
    ``last``: the parameters that were multiplied by the factor. ``offsets``: what translations have removed, by
    parameter. ``free``: what the form leaves open: rotations of streams where there is no reference, signs that no rule
    settles. ``notes``: what was left out, and why.
    """

    symmetry: Symmetry
    params: T
    element: Element
    factor: Tensor
    last: tuple[str, ...] = ()
    offsets: Mapping[str, Tensor] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", dict(self.offsets))
        freeze(self, "offsets")

    def __repr__(self) -> str:
        many = f"{len(self.factor)} networks, " if self.factor.ndim else ""
        left = f", free: {', '.join(self.free)}" if self.free else ""
        return f"Canonical({many}{len(self.symmetry.classes)} classes{left})"


def canonicalize(
    sym: Symmetry,
    params: T,
    reference: "Params | Distribution | Canonical[Any] | None" = None,
    method: str = "weights",
    *,
    bias: str = "outside",
    classifier: bool | str = False,
    **options: Any,
) -> Canonical[T]:
    """The canonical network of an orbit: canonicalize(g·θ) = canonicalize(θ), for scales, signs, translations and, in
    the data-free order, permutations.

    In this order (thesis, section 4.4; aligning before scaling would not be invariant): translations are removed;
    gains of classes that mix are folded and GL(n) is balanced, ordered by singular values; every unit gets incoming
    weights of unit norm (``normalize_scales``), with the ``bias`` "outside" of the norm or "inside"; signs are
    settled by Σ w·|w| > 0 and half-turns by biases between −c/2 and c/2; with ``classifier`` (True, or the name of the
    last layer) the last weights and bias are multiplied by √C/‖W‖, which keeps labels and not probabilities. Then, with
    a ``reference``, permutations, signs and rotations are those of ``align`` to its canonical form, by any ``method``
    with its ``options``; without one units are ordered by sums of their weights, and rotations of streams stay free.

    Units whose incoming weights and biases are all 0 keep their scale and, unless weights that leave them decide, their
    sign; units that are equal stay as they stand.

    ``params``: a point, a stack of networks (a leading axis on every tensor), Samples (every draw has its own form), or
    another distribution, which is moved by the form of its mean over permutations, scales and signs alone.
    """
    check_choice("bias", bias, BIASES)
    check_choice("method", method, METHODS)
    if reference is None and options:
        raise InputError(f"'{next(iter(options))}' is an option of the method {method!r}, and there is no reference")
    if bias == "inside" and any(turn.order for turn in sym.turns.values()):
        raise InputError("bias='inside' is given and units of this symmetry reflect, which changes biases of others")
    form = _Form(sym, bias, classifier, method, options)
    target = None if reference is None else form.reference(reference)
    if isinstance(params, Delta):
        found = form.point(params.mean, target)
        return cast(Canonical[T], replace(found, params=cast(Any, Delta(found.params))))
    if isinstance(params, Samples):
        stacked = form.stack(params.flat, target)
        shape = (params.chains, params.draws)
        whole = {name: tensor.reshape(*shape, *tensor.shape[1:]) for name, tensor in stacked.params.items()}
        return cast(Canonical[T], replace(stacked, params=cast(Any, Samples(whole))))
    if isinstance(params, Distribution):
        return cast(Canonical[T], form.distribution(params, target))
    if not isinstance(params, Mapping):
        raise InputError(f"params is a {type(params).__name__}; expected a dict of parameters or a distribution")
    one = leading(sym, params) is None
    return cast(Canonical[T], form.point(params, target) if one else form.stack(params, target))


def decanonicalize(canonical: Canonical[T]) -> T:
    """The network that ``canonicalize`` was given: offsets + g·(params, their last layer divided by the factor)."""
    given = canonical.params
    if isinstance(given, Delta):
        return cast(T, Delta(_back(canonical, given.mean)))
    if isinstance(given, Samples):
        flat, shape = _back(canonical, given.flat), (given.chains, given.draws)
        return cast(T, Samples({name: t.reshape(*shape, *t.shape[1:]) for name, t in flat.items()}))
    if isinstance(given, Distribution):
        return cast(T, canonical.symmetry.monomial.act(canonical.element, given))
    return cast(T, _back(canonical, given))


def _back(canonical: Canonical[Any], given: Params) -> dict[str, Tensor]:
    """Of a point or a stack."""
    sym, many = canonical.symmetry, canonical.factor.ndim == 1
    stack = given if many else {name: tensor[None] for name, tensor in given.items()}
    factors = canonical.factor if many else canonical.factor[None]
    whole = multiplied(canonical.last, 1 / factors, stack)
    if many:
        result = act_stack(sym, canonical.element, whole)
    else:
        result = sym.act(canonical.element, {name: tensor[0] for name, tensor in whole.items()})
    for name, offset in canonical.offsets.items():
        result[name] = result[name] + offset.to(result[name])
    return result


def _count(stack: Params) -> int:
    return len(next(iter(stack.values())))


@dataclass(frozen=True)
class _Form:
    """The options of a canonical form."""

    sym: Symmetry
    bias: str
    classifier: bool | str
    method: str
    options: Mapping[str, Any]

    def reference(self, reference: "Params | Distribution | Canonical[Any]") -> Params:
        """The canonical form of a reference, its units as they stand."""
        given = reference.params if isinstance(reference, Canonical) else reference
        if isinstance(given, Distribution):
            if not given.centred:
                raise InputError(f"reference is a {type(given).__name__}; expected one network, or a Gaussian of them")
            given = given.mean
        if not isinstance(given, Mapping):
            raise InputError(f"reference is a {type(given).__name__}; expected a dict of parameters or a distribution")
        if leading(self.sym, given) is not None:
            raise InputError("reference has a leading axis; expected one network")
        if isinstance(reference, Canonical):
            return given
        return self._point(self.sym, given, None, ordered=False).params

    def point(self, params: Params, target: Params | None) -> Canonical[Params]:
        """Of a single network."""
        return self._point(self.sym, params, target)

    def stack(self, stack: Params, target: Params | None) -> Canonical[Params]:
        """Of many, together where only permutations, scales and signs are at work."""
        sym = self.sym
        together = target is None or (
            self.method == "weights" and self.options.keys() <= keyword_options(align_stack).keys()
        )
        if sym.continuous or sym.turns or sym.translations or not together:
            singles = [self._point(sym, network_of(stack, i), target) for i in range(_count(stack))]
            return _joined(sym, singles)
        current = _finite(filled(sym, {name: tensor for name, tensor in stack.items() if name not in sym.unsaved}))
        element, free = self._monomial(sym, current, ordered=True)
        found = act_stack(sym, element, stack)
        last, factors = self._scaled(found)
        found, notes = multiplied(last, factors, found), tuple[str, ...]()
        if target is not None:
            like = {name: tensor.to(found[name]) for name, tensor in target.items()}
            alignment = align_stack(sym, like, found, **self.options)
            element, found = compose_stack(sym, alignment.elements, element), dict(alignment.aligned)
            free, notes = tuple(item for item in free if item.startswith("scales")), alignment.notes
        return Canonical(sym, found, inverse_stack(sym, element), factors, last, {}, free, notes)

    def distribution(self, q: Distribution, target: Params | None) -> Canonical[Distribution]:
        """Of a distribution by its mean."""
        if self.classifier:
            raise InputError(f"classifier is given and params is a {type(q).__name__}; expected points or Samples")
        sym, notes = self.sym.monomial, tuple[str, ...]()
        if self.sym.translations or sym is not self.sym:
            notes = (f"a {type(q).__name__} was moved by permutations, scales and signs alone",)
        found = _Form(sym, self.bias, False, self.method, self.options)._point(
            sym, dict(q.mean), target, translated=False
        )
        moved_q = sym.act(sym.inverse(found.element), q)
        return Canonical(self.sym, moved_q, found.element, found.factor, (), {}, found.free, (*notes, *found.notes))

    # One network ------------------------------------------------------------------------------------------------------

    def _point(
        self,
        sym: Symmetry,
        params: Params,
        target: Params | None,
        *,
        ordered: bool = True,
        translated: bool = True,
    ) -> Canonical[Params]:
        params = dict(params)
        _finite({name: tensor[None] for name, tensor in params.items()})
        notes: list[str] = []
        used, g, current, free = self._gauged(sym, params, notes, bool(sym.translations) and translated)
        if ordered:
            # Also in front of an alignment, which then begins with one network for the whole orbit.
            step = self._ordered(used, current)
            g, current = used.compose(step, g), used.act(step, current)
        last, factors = self._scaled({name: tensor[None] for name, tensor in current.items()})
        current = _single(multiplied(last, factors, {name: tensor[None] for name, tensor in current.items()}))
        if target is not None:
            found = align(used, target, current, self.method, **self.options)
            g, current = used.compose(found.element, g), dict(found.aligned)
            free = tuple(item for item in free if item.startswith("scales"))
            notes += found.notes
        elif used.continuous:
            open_ones = half_read(used, current)
            turning = [
                name for name, mixing in used.continuous.items() if mixing.kind != "general" or name in open_ones
            ]
            free = (*free, *(f"{used.continuous[name].named(used.shape(name)[-1])} of {name}" for name in turning))
        undo = used.inverse(g)
        offsets = self._offsets(used, params, current, undo, last, factors) if translated and sym.translations else {}
        return Canonical(sym, current, undo, factors[0], last, offsets, free, tuple(notes))

    def _gauged(
        self, sym: Symmetry, params: dict[str, Tensor], notes: list[str], translated: bool
    ) -> tuple[Symmetry, Element, dict[str, Tensor], tuple[str, ...]]:
        """The symmetry that was used, g, the network without translations, scales and signs, and what is left free.

        What is removed of a translation depends on gains and on signs: it is removed again behind these, until nothing
        changes the network.
        """
        used, g, current = sym, sym.identity(), params
        free: tuple[str, ...] = ()
        for _ in range(_ROUNDS):
            before = current
            if translated:
                try:
                    current = sym.without_translations(current)
                except InputError as error:
                    notes.append(f"{error}: translations were left out")
                    translated = False
            try:
                step = self._gauge(used, current)
            except NoGauge as error:
                notes.append(f"{error}: matrices were left out")
                used, g, current = sym.monomial, sym.monomial.identity(), params
                continue
            g, current = used.compose(step, g), used.act(step, current)
            step, unsettled = self._settled(used, current)
            g, current = used.compose(step, g), used.act(step, current)
            free = tuple(f"signs of {key}" for key in unsettled)
            if not translated or _same(before, current):
                break
        return used, g, current, (*(f"scales of {key}" for key in with_norms(used)[1]), *free)

    def _offsets(
        self,
        sym: Symmetry,
        params: Params,
        current: Params,
        undo: Element,
        last: tuple[str, ...],
        factors: Tensor,
    ) -> dict[str, Tensor]:
        """What translations have removed, on the parameters as they were given."""
        whole = _single(multiplied(last, 1 / factors, {name: tensor[None] for name, tensor in current.items()}))
        back = sym.act(undo, whole)
        moving = {name for item in self.sym.translations for name in item.parameters}
        return {name: params[name] - back[name] for name in params if name in moving}

    def _gauge(self, sym: Symmetry, params: Params) -> Element:
        """Scales and matrices."""
        if sym.continuous:
            return mixing_gauge(sym, params, self.bias)
        current = _finite(
            {name: tensor[None] for name, tensor in filled(sym, params).items() if name not in sym.unsaved}
        )
        return sym.element(scales={key: d[0] for key, d in unit_scales(sym, current, self.bias).items()})

    def _settled(self, sym: Symmetry, params: Params) -> tuple[Element, list[str]]:
        """Signs and turns of a network without scales, and the families whose signs no rule settles."""
        g = half_turn_gauge(sym, params) if sym.turns else sym.identity()
        here = centred(sym, sym.act(g, params)) if sym.turns else params
        flips, keys = reflections_as_signs(sym) if sym.turns else (sym, {})
        signs, unsettled = canonical_signs(flips, _alone(sym, here))
        turns = {key: (signs[family][0] < 0).long() for key, family in keys.items()}
        own = {key: values[0] for key, values in signs.items() if key in sym.families}
        # Signs act before turns: a half-turn of a flipped unit goes the other way, and biases stay within bounds.
        step = sym.compose(sym.element(turns=turns), sym.element(signs=own)) if turns else sym.element(signs=own)
        return sym.compose(step, g), unsettled

    def _ordered(self, sym: Symmetry, params: Params) -> Element:
        """The order of units, of a network without scales and signs; balancing has ordered what mixes freely."""
        here = centred(sym, params) if sym.turns else params
        leave = tuple(name for name, mixing in sym.continuous.items() if mixing.kind == "general")
        order = canonical_order(sym, _alone(sym, here), leave)
        return sym.element({name: p[0] for name, p in order.items()})

    def _monomial(self, sym: Symmetry, current: dict[str, Tensor], ordered: bool) -> tuple[Element, tuple[str, ...]]:
        """Scales, signs and order of a stack in float64, which is moved along but for its order."""
        scales = unit_scales(sym, current, self.bias)
        signs, unsettled = canonical_signs(sym, current)
        order = canonical_order(sym, current) if ordered else {}
        count = _count(current)
        neutral = stacked_elements([sym.identity()])
        order = {name: p.expand(count, *p.shape[1:]) for name, p in neutral.permutations.items()} | order
        free = (*(f"scales of {key}" for key in with_norms(sym)[1]), *(f"signs of {key}" for key in unsettled))
        return Element(order, scales, signs), free

    def _scaled(self, stack: Params) -> tuple[tuple[str, ...], Tensor]:
        """The last layer and its factors."""
        if self.classifier is False:
            return (), torch.ones(_count(stack), dtype=torch.float64)
        names = last_layer(self.sym, self.classifier, stack)
        return names, logit_factors(names, stack)


def _alone(sym: Symmetry, params: Params) -> dict[str, Tensor]:
    """One network as a stack in float64."""
    return wide({name: tensor[None] for name, tensor in filled(sym, params).items() if name not in sym.unsaved})


def _finite(stack: Params) -> dict[str, Tensor]:
    """A stack in float64, every entry a number."""
    result = wide(stack)
    for name, tensor in result.items():
        bad = ~torch.isfinite(tensor.flatten(1)).all(1)
        if bool(bad.any()):
            which = f" of network {int(bad.nonzero()[0])}" if len(tensor) > 1 else ""
            raise InputError(f"'{name}'{which} has entries that are NaN or infinite")
    return result


def _same(one: Params, two: Params) -> bool:
    """Whether two networks are equal up to rounding, parameter by parameter."""
    for name, tensor in one.items():
        if tensor.is_floating_point() and tensor.numel():
            bound = 64 * torch.finfo(tensor.dtype).eps * float(tensor.abs().max())
            if float((tensor - two[name]).abs().max()) > bound:
                return False
    return True


def _single(stack: Params) -> dict[str, Tensor]:
    return {name: tensor[0] for name, tensor in stack.items()}


def _joined(sym: Symmetry, singles: Sequence[Canonical[Params]]) -> Canonical[Params]:
    """Single forms as one of a stack."""
    parts = {len(one.element.matrices) for one in singles}
    if len(parts) > 1:
        raise InputError("some networks of the stack have a gauge for matrices and some have not; pass them one by one")
    names = singles[0].offsets.keys()
    return Canonical(
        sym,
        {name: torch.stack([one.params[name] for one in singles]) for name in singles[0].params},
        stacked_elements([one.element for one in singles]),
        torch.stack([one.factor for one in singles]),
        singles[0].last,
        {name: torch.stack([one.offsets[name] for one in singles]) for name in names},
        tuple(dict.fromkeys(item for one in singles for item in one.free)),
        tuple(dict.fromkeys(note for one in singles for note in one.notes)),
    )
