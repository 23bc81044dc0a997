"""``neural_graph``: networks of one symmetry as a graph, their weights in a gauge."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from coset._checks import check_choice
from coset.canonical import Canonical, canonicalize
from coset.errors import InputError
from coset.geometry.scales import with_norms
from coset.metanet._blocks import Layout
from coset.metanet._gauge import probes_in, unit_norms, without_scales
from coset.metanet._layout import EVERYWHERE, half_turns, layout_names, make_layout
from coset.symmetry import Symmetry
from coset.symmetry.action import filled
from coset.symmetry.stacks import act_stack, inverse_stack, leading, network_of, one_of

GAUGES = ("canonical", "layers", "none")
"""What is done with scales and signs: removed by a canonical form; carried by the layers; seen as they are."""

Params = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class NeuralGraph:
    """N networks as a graph.

    ``layout``: nodes and blocks of edges. ``entries``: block → (N, *slots, features), in the ``gauge``: in the
    canonical form; without scales, but with signs; or as they are. ``factors`` (N,): the logarithm of what canonical
    forms multiplied last layers by. ``norms``: family → (N, units), the scales that were removed. ``probes``: class →
    (N, units, probes), the activations on given inputs. ``form``: the canonical form, which knows the way back.
    ``single``: whether one network was given, without a leading axis.
    """

    layout: Layout
    gauge: str
    entries: Mapping[str, Tensor]
    factors: Tensor
    norms: Mapping[str, Tensor]
    probes: Mapping[str, Tensor]
    form: Canonical[Params] | None = None
    single: bool = False

    @property
    def free(self) -> tuple[str, ...]:
        """What of the group the gauge leaves open, so that readers see it: as canonical forms say it, scales that no
        norm settles, and with the gauge "none" all but permutations.
        """
        sym = self.layout.sym
        if self.form is not None:
            return self.form.free
        if self.gauge == "none":
            return ("scales", "signs", "matrices", "turns", "translations")
        others = tuple(f"turns of {key}" for key in sym.turns if f"turn:{key}" not in half_turns(sym))
        mixing = tuple(f"matrices of {name}" for name in sym.continuous)
        shifts = ("translations",) if sym.translations else ()
        return (*(f"scales of {key}" for key in with_norms(sym)[1]), *others, *mixing, *shifts)

    def __len__(self) -> int:
        return len(self.factors)

    def __repr__(self) -> str:
        edges = sum(tensor[0].numel() for tensor in self.entries.values())
        return f"NeuralGraph({len(self)} networks: {self.layout.nodes} nodes, {edges} weights, gauge {self.gauge!r})"

    def to(self, like: Tensor) -> "NeuralGraph":
        """The features in the type and on the device of a tensor."""
        if self.factors.dtype == like.dtype and self.factors.device == like.device:
            return self
        return self._each(lambda tensor: tensor.to(like))

    def __getitem__(self, chosen: Tensor | slice | Sequence[int]) -> "NeuralGraph":
        """Some of the networks."""
        index = torch.as_tensor(chosen) if not isinstance(chosen, slice) else chosen
        form = self.form
        if form is not None:
            form = replace(
                form,
                params={name: tensor[index] for name, tensor in form.params.items()},
                element=one_of(form.element, index),
                factor=form.factor[index],
                offsets={name: tensor[index] for name, tensor in form.offsets.items()},
            )
        return replace(self._each(lambda tensor: tensor[index]), form=form)

    def _each(self, function: Callable[[Tensor], Tensor]) -> "NeuralGraph":
        """A function of all features."""
        entries, norms, probes = (
            {name: function(tensor) for name, tensor in part.items()}
            for part in (self.entries, self.norms, self.probes)
        )
        return replace(self, entries=entries, norms=norms, probes=probes, factors=function(self.factors))


@dataclass(frozen=True, eq=False)
class _Own:
    """A symmetry as itself: those with equal groups may differ in what is tied, and in their graphs."""

    sym: Symmetry

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Own) and self.sym is other.sym

    def __hash__(self) -> int:
        return id(self.sym)


@lru_cache(maxsize=64)
def _laid_out(own: _Own, names: tuple[str, ...], turns: bool, everywhere: bool) -> Layout:
    return make_layout(own.sym, names, turns=turns, everywhere=everywhere)


def layout_of(sym: Symmetry, names: tuple[str, ...], turns: bool, everywhere: bool = False) -> Layout:
    """The layout of parameters of a symmetry; made once."""
    return _laid_out(_Own(sym), names, turns, everywhere)


def neural_graph(
    sym: Symmetry,
    params: Params,
    *,
    gauge: str = "canonical",
    classifier: bool | str = False,
    everywhere: bool = False,
    model: nn.Module | None = None,
    inputs: Tensor | None = None,
) -> NeuralGraph:
    """Networks as a graph: units are nodes, weights are edges (thesis, section 5.1.2).

    Nodes are the units of all classes, block by block, and what never moves: inputs, outputs, words, each with an
    identity. Weights between units are edges, with the positions of a kernel as features; biases and parameters of
    norms are features of nodes. ``gauge`` "canonical": translations, GL, scales and signs are removed by
    ``canonicalize``, with its ``classifier``; "layers": scales are divided by norms of units and signs stay, for layers
    that respect them; "none": weights as they are. ``everywhere``: every two nodes are neighbours, too, in networks of
    at most 256. With a ``model`` and ``inputs``, (examples, …), the mean activation of every unit on each of them is a
    feature of its node.

    ``params``: one network, or a stack with a leading axis of networks.
    """
    check_choice("gauge", gauge, GAUGES)
    if not isinstance(sym, Symmetry):
        raise InputError(f"sym is a {type(sym).__name__}; expected a Symmetry, as discover gives it")
    if (model is None) != (inputs is None):
        raise InputError("probes need both model and inputs; one of them is given")
    names = layout_names(sym, list(params))
    single = leading(sym, params) is None
    stack = {name: params[name][None] if single else params[name] for name in names}
    read = tuple(name for name in names if stack[name].numel() and _is_number(stack[name]))
    if not read:
        raise InputError("the networks have no weights that are not whole numbers")
    _require_finite({name: stack[name] for name in read})
    layout = layout_of(sym, read, gauge == "layers", everywhere)
    form: Canonical[Params] | None = None
    kept = {name: params[name][None] if single else params[name] for name in params if name in sym.unsaved}
    if gauge == "canonical":
        form = canonicalize(sym, {name: t.detach() for name, t in (stack | kept).items()}, classifier=classifier)
        stack = _formed(sym, form, stack)
    like = stack[read[0]]
    raw = {
        block.name: block.entries(_real(stack[block.source]))
        if block.source != EVERYWHERE
        else like.new_zeros(len(like), *block.sizes, 1)
        for block in layout.blocks
    }
    norms = unit_norms(layout, raw) if gauge == "layers" or _differentiable(stack) else {}
    entries = without_scales(layout, raw, norms)
    first = next(iter(entries.values()))
    factors = (form.factor.log() if form is not None else torch.zeros(len(first))).to(first)
    probes = probes_in(layout, gauge, model, {**stack, **kept}, inputs, norms) if model is not None else {}
    return NeuralGraph(layout, gauge, entries, factors, norms if gauge == "layers" else {}, probes, form, single)


def _formed(sym: Symmetry, form: Canonical[Params], stack: dict[str, Tensor]) -> dict[str, Tensor]:
    """The canonical form, with derivatives: those of translations and of norms are exact, matrices are held."""
    if not _differentiable(stack):
        return {name: form.params[name] for name in stack}
    moved = {name: t - form.offsets[name].to(t) if name in form.offsets else t for name, t in stack.items()}
    moved = act_stack(sym, inverse_stack(sym, form.element), filled(sym, moved))
    if form.offsets and sym.translations:
        # Nothing is left to remove; what is to come is the derivative of removing it.
        singles = [sym.without_translations(network_of(moved, number)) for number in range(len(form.factor))]
        moved = {name: torch.stack([single[name] for single in singles]) for name in moved}
    for name in form.last:
        moved[name] = moved[name] * form.factor.to(moved[name]).reshape(-1, *[1] * (moved[name].ndim - 1))
    return {name: moved[name] for name in stack}


def _differentiable(stack: Params) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in stack.values())


def _is_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _real(tensor: Tensor) -> Tensor:
    """Complex numbers by their real and imaginary parts, as two positions of a kernel behind all others."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor[..., None]


def _require_finite(stack: Params) -> None:
    for name, tensor in stack.items():
        usable = torch.isfinite(tensor.detach()).flatten(1).all(1)
        if not bool(usable.all()):
            raise InputError(f"'{name}' of network {int((~usable).nonzero()[0])} has entries that are NaN or infinite")
