"""The steps of a canonical form: translations, matrices, scales, signs, order, the scale of logits, a reference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coset._checks import keyword_options
from coset._values import ties
from coset.alignment import align, align_stack
from coset.alignment.matching.rotations import NoGauge
from coset.alignment.matching.turns import half_turn_gauge, reflections_as_signs
from coset.canonical._gauge import half_read, mixing_gauge, unit_scales
from coset.canonical._last import last_layer, logit_factors, multiplied
from coset.canonical._order import canonical_order
from coset.canonical._signs import canonical_signs
from coset.canonical._stacked import wide
from coset.canonical._value import Canonical, Params, acted_back, as_stack, one_network
from coset.distribution import Distribution
from coset.distribution.contract import centre_of, networks_of
from coset.errors import InputError
from coset.geometry.scales import with_norms
from coset.symmetry import Element, Symmetry
from coset.symmetry.action import filled
from coset.symmetry.stacks import act_stack, compose_stack, inverse_stack, leading, network_of, stacked_elements
from coset.symmetry.turning import centred

_ROUNDS = 20
"""So often at most translations and scales are removed one after the other."""


@dataclass(frozen=True)
class Form:
    """The options of a canonical form."""

    sym: Symmetry
    bias: str
    classifier: bool | str
    method: str
    options: Mapping[str, Any]

    def reference(
        self, reference: "Params | Distribution | Canonical[Any]", *, translated: bool = True
    ) -> dict[str, Tensor]:
        """The canonical form of a reference, its units as they stand."""
        given = reference.params if isinstance(reference, Canonical) else reference
        moved_alone, network = networks_of(given) is None, centre_of(given)
        if network is None:
            many = isinstance(given, Distribution)
            expected = "one network, or a Gaussian of them" if many else "a dict of parameters or a distribution"
            raise InputError(f"reference is a {type(given).__name__}; expected {expected}")
        if leading(self.sym, network, "the reference") is not None:
            raise InputError("reference has a leading axis; expected one network")
        if isinstance(reference, Canonical):
            self._check_like(reference)
            # Forms of distributions are those of permutations, scales and signs alone.
            if moved_alone != translated or not (reference.symmetry.translations or reference.symmetry.continuous):
                return dict(network)
        return dict(self._point(network, None, ordered=False, translated=translated).params)

    def _check_like(self, reference: Canonical[Any]) -> None:
        """Refuse a form that was made with other options."""
        if reference.bias != self.bias:
            raise InputError(f"reference is a form with bias={reference.bias!r}; expected bias={self.bias!r} as here")
        if bool(reference.last) != bool(self.classifier):
            there, here = ("with" if known else "without" for known in (reference.last, self.classifier))
            raise InputError(f"reference is a form {there} classifier; expected one {here}, as is asked for here")

    def point(self, params: Params, target: Params | None) -> Canonical[Params]:
        """Of a single network."""
        return self._point(params, target)

    def stack(self, stack: Params, target: Params | None) -> Canonical[Params]:
        """Of many, together where only permutations, scales and signs are at work."""
        sym = self.sym
        together = target is None or (
            self.method == "weights" and self.options.keys() <= keyword_options(align_stack).keys()
        )
        if sym.continuous or sym.turns or sym.translations or not together:
            singles = [self._point(network_of(stack, i), target) for i in range(_count(stack))]
            return _joined(sym, singles)
        current = _finite(filled(sym, _saved(sym, stack)))
        element, free = self._monomial(current, _rounding(stack))
        found = act_stack(sym, element, stack)
        last, factors = self._scaled(found)
        found, notes = multiplied(last, factors, found), tuple[str, ...]()
        if target is not None:
            known = _saved(sym, found)
            like = {name: tensor.to(known[name]) for name, tensor in _saved(sym, target).items()}
            alignment = align_stack(sym, like, known, **self.options)
            element, found = compose_stack(sym, alignment.elements, element), found | dict(alignment.aligned)
            free, notes = tuple(item for item in free if item.startswith("scales")), alignment.notes
        undo = inverse_stack(sym, element)
        _check_result(found)
        offsets = self._offsets(stack, acted_back(sym, undo, last, factors, found))
        return Canonical(sym, found, undo, factors, last, offsets, self.bias, free, notes)

    def distribution(
        self, q: Distribution, reference: "Params | Distribution | Canonical[Any] | None"
    ) -> Canonical[Distribution]:
        """Of a distribution by its mean."""
        if self.classifier:
            raise InputError(f"classifier is given and params is a {type(q).__name__}; expected points or Samples")
        sym, notes = self.sym.monomial, tuple[str, ...]()
        if self.sym.translations or sym is not self.sym:
            notes = (f"a {type(q).__name__} was moved by permutations, scales and signs alone",)
        form = Form(sym, self.bias, False, self.method, self.options)
        target = None if reference is None else form.reference(reference, translated=False)
        found = form._point(dict(q.mean), target, translated=False)
        moved_q = sym.act(sym.inverse(found.element), q)
        return Canonical(
            self.sym, moved_q, found.element, found.factor, (), {}, self.bias, found.free, (*notes, *found.notes)
        )

    # One network ------------------------------------------------------------------------------------------------------

    def _point(
        self, params: Params, target: Params | None, *, ordered: bool = True, translated: bool = True
    ) -> Canonical[Params]:
        params, rounding = dict(params), _rounding(params)
        _finite(as_stack(params))
        notes: list[str] = []
        # In float64: every step acts on what the one before has left, and matrices settle far below single precision.
        exact = _typed(params, {name: _double(tensor) for name, tensor in params.items()})
        translated = bool(self.sym.translations) and translated
        used, g, current, free, left_out = self._gauged(exact, notes, translated, rounding)
        if ordered:
            # Also in front of an alignment, which then begins with one network for the whole orbit.
            step = self._ordered(used, current, rounding)
            g, current = used.compose(step, g), used.act(step, current)
        last, factors = self._scaled(as_stack(current))
        current = one_network(multiplied(last, factors, as_stack(current)))
        current = _typed(current, {name: tensor.dtype for name, tensor in params.items()})
        if target is not None:
            found = align(used, _saved(used, target), _saved(used, current), self.method, **self.options)
            g, current = used.compose(found.element, g), current | dict(found.aligned)
            free = tuple(item for item in free if item.startswith("scales"))
            notes += found.notes
        elif used.continuous:
            free = (*free, *half_read(used, current))
        free = (*free, *left_out)
        undo = used.inverse(g)
        _check_result(as_stack(current))
        offsets = self._offsets(params, acted_back(used, undo, last, factors[0], current))
        return Canonical(self.sym, current, undo, factors[0], last, offsets, self.bias, free, tuple(notes))

    def _gauged(
        self, params: dict[str, Tensor], notes: list[str], translated: bool, rounding: float
    ) -> tuple[Symmetry, Element, dict[str, Tensor], tuple[str, ...], tuple[str, ...]]:
        """The symmetry that was used, g, the network without translations, scales and signs, what is left free, and
        what was left out.

        What is removed of a translation depends on gains and on signs: it is removed again behind these, until nothing
        changes the network.
        """
        sym = self.sym
        used, g, current = sym, sym.identity(), params
        free: tuple[str, ...] = ()
        left_out: tuple[str, ...] = ()
        for _ in range(_ROUNDS):
            before = current
            if translated:
                try:
                    current = sym.without_translations(current)
                except InputError as error:
                    notes.append(f"{error}: translations were left out")
                    translated, left_out = False, (*left_out, "translations")
            try:
                step = self._gauge(used, current)
            except NoGauge as error:
                notes.append(f"{error}: matrices were left out")
                left_out = (
                    *left_out,
                    *(f"{m.named(sym.shape(name)[-1])} of {name}" for name, m in sym.continuous.items()),
                )
                used, g, current = sym.monomial, sym.monomial.identity(), params
                continue
            g, current = used.compose(step, g), used.act(step, current)
            step, unsettled = self._settled(used, current, rounding)
            g, current = used.compose(step, g), used.act(step, current)
            free = tuple(f"signs of {key}" for key in unsettled)
            if not translated or _same(before, current):
                break
        return used, g, current, (*(f"scales of {key}" for key in with_norms(used)[1]), *free), left_out

    def _offsets(self, params: Params, back: Params) -> dict[str, Tensor]:
        """What the way back leaves out: translations, and what else is more than rounding."""
        moving = {name for item in self.sym.translations for name in item.parameters}
        return {
            name: params[name] - back[name]
            for name in params
            if name in moving or not _same({name: params[name]}, {name: back[name]})
        }

    def _gauge(self, sym: Symmetry, params: Params) -> Element:
        """Scales and matrices."""
        if sym.continuous:
            return mixing_gauge(sym, params, self.bias)
        current = _alone(sym, params)
        return sym.element(scales={key: d[0] for key, d in unit_scales(sym, current, self.bias).items()})

    def _settled(self, sym: Symmetry, params: Params, rounding: float) -> tuple[Element, list[str]]:
        """Signs and turns of a network without scales, and the families whose signs no rule settles."""
        g = half_turn_gauge(sym, params) if sym.turns else sym.identity()
        here = centred(sym, sym.act(g, params)) if sym.turns else params
        flips, keys = reflections_as_signs(sym) if sym.turns else (sym, {})
        signs, unsettled = canonical_signs(flips, _alone(sym, here), rounding)
        turns = {key: (signs[family][0] < 0).long() for key, family in keys.items()}
        own = {key: values[0] for key, values in signs.items() if key in sym.families}
        # Signs act before turns: a half-turn of a flipped unit goes the other way, and biases stay within bounds.
        step = sym.compose(sym.element(turns=turns), sym.element(signs=own)) if turns else sym.element(signs=own)
        return sym.compose(step, g), unsettled

    def _ordered(self, sym: Symmetry, params: Params, rounding: float) -> Element:
        """The order of units, of a network without scales and signs; balancing has ordered what mixes freely."""
        here = centred(sym, params) if sym.turns else params
        leave = tuple(name for name, mixing in sym.continuous.items() if mixing.kind == "general")
        order = canonical_order(sym, _alone(sym, here), leave, rounding)
        return sym.element({name: p[0] for name, p in order.items()})

    def _monomial(self, current: dict[str, Tensor], rounding: float) -> tuple[Element, tuple[str, ...]]:
        """Scales, signs and order of a stack in float64, which is moved along but for its order."""
        sym = self.sym
        scales = unit_scales(sym, current, self.bias)
        signs, unsettled = canonical_signs(sym, current, rounding)
        order = canonical_order(sym, current, rounding=rounding)
        neutral = stacked_elements([sym.identity()] * _count(current))
        free = (*(f"scales of {key}" for key in with_norms(sym)[1]), *(f"signs of {key}" for key in unsettled))
        return Element({**neutral.permutations, **order}, scales, signs), free

    def _scaled(self, stack: Params) -> tuple[tuple[str, ...], Tensor]:
        """The last layer and its factors."""
        if self.classifier is False:
            return (), torch.ones(_count(stack), dtype=torch.float64)
        names = last_layer(self.sym, self.classifier, stack)
        return names, logit_factors(names, stack)


def _double(tensor: Tensor) -> torch.dtype:
    """The type in which a parameter is worked on; whole numbers keep theirs."""
    if tensor.is_complex():
        return torch.complex128
    return torch.float64 if tensor.is_floating_point() else tensor.dtype


def _typed(params: Params, types: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
    """A network in other types; names that share a tensor go on sharing one."""
    found: dict[str, Tensor] = {}
    for name, first in ties(params).items():
        found[name] = found[first] if first != name else params[name].to(types[name])
    return found


def _alone(sym: Symmetry, params: Params) -> dict[str, Tensor]:
    """One network as a stack in float64."""
    return wide(as_stack(_saved(sym, filled(sym, params))))


def _saved(sym: Symmetry, params: Params) -> dict[str, Tensor]:
    """Without buffers that are no part of the ``state_dict``."""
    return {name: tensor for name, tensor in params.items() if name not in sym.unsaved}


def _count(stack: Params) -> int:
    return len(next(iter(stack.values())))


def _rounding(params: Params) -> float:
    """The relative precision of the parameters: of what is smaller, nothing is decided."""
    kinds = [tensor.dtype for tensor in params.values() if tensor.is_floating_point() or tensor.is_complex()]
    if not kinds:
        raise InputError("the parameters are whole numbers; expected some with a point")
    return max(1e-9, 64 * max(torch.finfo(kind).eps for kind in kinds))


def _check_result(stack: Params) -> None:
    """Refuse a form that has left the range of its type."""
    for name, tensor in stack.items():
        if (tensor.is_floating_point() or tensor.is_complex()) and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"'{name}' overflows {tensor.dtype} in its canonical form; pass parameters in float64")


def _finite(stack: Params) -> dict[str, Tensor]:
    """A stack in float64, every entry a number."""
    result = wide(stack)
    for name, tensor in result.items():
        bad = ~torch.isfinite(tensor.reshape(len(tensor), -1)).all(1)
        if bool(bad.any()):
            which = f" of network {int(bad.nonzero()[0])}" if len(tensor) > 1 else ""
            raise InputError(f"'{name}'{which} has entries that are NaN or infinite")
    return result


def _same(one: Params, two: Params) -> bool:
    """Whether two networks are equal up to rounding, parameter by parameter."""
    for name, tensor in one.items():
        if (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel():
            bound = 64 * torch.finfo(tensor.dtype).eps * float(tensor.abs().max())
            if float((tensor - two[name]).abs().max()) > bound:
                return False
    return True


def _joined(sym: Symmetry, singles: Sequence[Canonical[Params]]) -> Canonical[Params]:
    """Single forms as one of a stack."""
    parts = {len(one.element.matrices) for one in singles}
    if len(parts) > 1:
        raise InputError("some networks of the stack have a gauge for matrices and some have not; pass them one by one")
    names = dict.fromkeys(name for one in singles for name in one.offsets)
    zeros = singles[0].params
    return Canonical(
        sym,
        {name: torch.stack([one.params[name] for one in singles]) for name in singles[0].params},
        stacked_elements([one.element for one in singles]),
        torch.stack([one.factor for one in singles]),
        singles[0].last,
        {
            name: torch.stack([one.offsets.get(name, torch.zeros_like(zeros[name])) for one in singles])
            for name in names
        },
        singles[0].bias,
        tuple(dict.fromkeys(item for one in singles for item in one.free)),
        tuple(dict.fromkeys(note for one in singles for note in one.notes)),
    )
