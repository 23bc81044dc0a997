"""Where the units of every class can be seen in the activations of a network, for any model and any symmetry.

Features are what contractions read: the arguments of linear maps, convolutions and matrix products. Which class stands
on which axis of them, with which signs, ``sym.graph`` tells. No type of module is known here.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from coset._values import Frozen
from coset.errors import InputError, refusing
from coset.running import outputs_with, suited
from coset.symmetry import Symmetry, with_graph
from coset.symmetry.incidence import rows_along, together, unit_order
from coset.symmetry.layers import CONTRACTIONS, Activation
from coset.symmetry.preserving import check_model_of
from coset.symmetry.structure import Appearance, Structure, UnitClass, ancestors, build_structure
from coset.train.metrics import evaluation_mode

Key = tuple[int, int]
"""The number of a call, in the order of execution, and of a tensor among those it reads."""

_EXAMPLES = 2
"""So many inputs tell the graph of a symmetry that was declared by hand."""


See = Callable[[int, int, str, Tensor], None]
"""Called with the number of the call, that of the tensor among those it reads, the operation's name and the tensor."""

_OPERATORS = {"__matmul__": "matmul", "__rmatmul__": "matmul"}


def _opened(function: Any) -> FunctionType:
    """A function of torch that is written in Python, so that a mode sees the calls inside it and not only itself."""
    within = {**function.__globals__, "has_torch_function": lambda _tensors: False}
    copy = FunctionType(function.__code__, within, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_COMPOSED = {F.multi_head_attention_forward: _opened(F.multi_head_attention_forward)}


class Watch(TorchFunctionMode):
    """Shows the floating tensors that contractions read to ``see``; calls are numbered in the order of execution."""

    def __init__(self, see: See) -> None:
        super().__init__()
        self.see = see
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _COMPOSED:
            with self:
                return _COMPOSED[func](*args, **kwargs)
        name = getattr(func, "__name__", "")
        name = _OPERATORS.get(name, name)
        if name in CONTRACTIONS:
            tensors = (item for item in tree_leaves((args, kwargs)) if isinstance(item, Tensor))
            for number, item in enumerate(item for item in tensors if item.is_floating_point()):
                self.see(self.calls, number, name, item)
            self.calls += 1
        return func(*args, **kwargs)


def run(model: nn.Module, weights: Mapping[str, Tensor], inputs: Tensor, watch: Watch) -> None:
    """Run ``model`` with all its weights in evaluation mode, without derivatives, while ``watch`` looks on."""
    data = f"data of shape {tuple(inputs.shape)} and type {inputs.dtype}"
    with refusing(f"{type(model).__name__} cannot be run on {data}"), evaluation_mode(model), torch.no_grad(), watch:
        outputs_with(model, weights, suited(inputs, weights))


@dataclass(frozen=True)
class Site:
    """A tensor that a contraction reads: the one of number ``argument`` of the ``call``-th, an ``operation``."""

    call: int
    argument: int
    operation: str
    feature: Activation

    @property
    def key(self) -> Key:
        """Which tensor of which call it is."""
        return self.call, self.argument


@dataclass(frozen=True)
class FeaturePlacement:
    """One appearance of the class ``owner`` at a site: the ``member`` of number so many along a ``stretch``.

    ``flips``: the families of signs that it shows.
    """

    owner: str
    site: Site
    stretch: int
    member: int
    flips: frozenset[str] = frozenset()


def find_features(sym: Symmetry, model: nn.Module, inputs: Tensor) -> Mapping[str, tuple[FeaturePlacement, ...]]:
    """For each class that permutes, where its units are seen; an empty tuple where they are seen nowhere.

    ``inputs``: some inputs of the model. A placement of a class counts only where all other entries are samples, alike
    in all networks of the orbit: no other class, but the ones around it, may move or scale them.
    """
    check_model_of(sym, model)
    few, computed = inputs[:_EXAMPLES], dict[int, str]()
    watch = Watch(lambda call, _argument, name, _tensor: computed.update({call: name}))
    run(model, dict(model.named_parameters()), few, watch)
    with evaluation_mode(model):
        graph = with_graph(sym, model, suited(few, model.state_dict())).graph
    for call, contraction in enumerate(graph.contractions):
        if computed.get(call) != contraction.operation:
            raise InputError(
                f"call {call} of {type(model).__name__} is {computed.get(call, 'not made')} on these data; where its "
                f"symmetry was found it was {contraction.operation}: expected a model that computes alike on all inputs"
            )
    sites = [
        Site(call, argument, contraction.operation, feature)
        for call, contraction in enumerate(graph.contractions)
        for argument, feature in enumerate(contraction.operands)
        if feature is not None
    ]
    places = [place for site in sites for place in _placements(sym, site)]
    return Frozen({name: tuple(place for place in places if place.owner == name) for name in sym.permuting})


def unseen(sym: Symmetry, places: Mapping[str, tuple[FeaturePlacement, ...]]) -> tuple[str, ...]:
    """The classes of which nothing is seen, not even what is nested in them."""
    visible = {outer for name, found in places.items() if found for outer in (name, *ancestors(name, sym.classes))}
    return tuple(name for name in sym.permuting if sym.classes[name].size > 1 and name not in visible)


def units_by_samples(sym: Symmetry, place: FeaturePlacement, feature: Tensor) -> Tensor:
    """The units of a class, seen at one place: (units over all blocks, samples); a copy."""
    parts = _structure(sym, place.site, tuple(feature.shape))
    stretch = parts.stretches[place.stretch]
    rows = rows_along(feature, parts, stretch)
    return rows[unit_order(stretch.appearances[place.member]).to(rows.device)].reshape(
        math.prod(sym.shape(place.owner)), -1
    )


def _structure(sym: Symmetry, site: Site, shape: tuple[int, ...]) -> Structure:
    return _taken_apart(site, shape, tuple(sym.classes.values()))


@lru_cache(maxsize=4096)
def _taken_apart(site: Site, shape: tuple[int, ...], classes: tuple[UnitClass, ...]) -> Structure:
    """How a feature of this shape is taken apart; the class's units are numbered over all blocks."""
    where = f"what call {site.call} ({site.operation}) reads"
    sizes = {item.name: item.size for item in classes}
    return build_structure(site.feature.fitted(shape, sizes, where), {item.name: item for item in classes}, where)


def _placements(sym: Symmetry, site: Site) -> Iterator[FeaturePlacement]:
    """The appearances of classes at a site where everything beside them is samples."""
    stretches = _structure(sym, site, site.feature.shape).stretches
    for number, stretch in enumerate(stretches):
        elsewhere = [item for at, other in enumerate(stretches) if at != number for item in other.appearances]
        if any(_mixes(sym, item.name) for item in elsewhere):
            continue
        for index, member in enumerate(stretch.appearances):
            chain = {member.name, *ancestors(member.name, sym.classes)}
            here = member.unit >= 0
            beside = [m for m in stretch.appearances if m is not member and together(member, m)]
            mixed = any(_mixes(sym, m.name) for m in beside if m.name not in chain)
            twice = any(m.name in chain for m in beside if sum(o.name == m.name for o in (member, *beside)) > 1)
            if not sym.classes[member.name].permutes or mixed or twice:
                continue
            partly = any(_moves(sym, m) for m in beside if bool((m.unit[here] < 0).any())) or any(
                _moves(sym, m) for m in elsewhere if bool((m.unit < 0).any())
            )
            flips = _flips(sym, chain, [member, *beside, *elsewhere])
            if flips is not None and not partly:
                yield FeaturePlacement(member.name, site, number, index, flips)


def _mixes(sym: Symmetry, name: str) -> bool:
    item = sym.classes[name]
    return (item.permutes or item.follows in sym.permuting) and item.size > 1


def _moves(sym: Symmetry, item: Appearance) -> bool:
    return any(key in sym.scaling for key in item.scales) or any(key in sym.flipping for key in item.signs)


def _flips(sym: Symmetry, chain: set[str], items: Sequence[Appearance]) -> frozenset[str] | None:
    """The families whose signs multiply the units of a class; None where other units are scaled or flipped, too."""
    common = {sym.families[key].owner for key in common_families(sym)}
    flips: set[str] = set()
    for item in items:
        if item.name in chain or item.name in common or math.prod(sym.shape(item.name)) == 1:
            flips ^= {key for key in item.signs if key in sym.flipping}
        elif _moves(sym, item):
            return None
    return frozenset(flips)


def common_families(sym: Symmetry) -> tuple[str, ...]:
    """The families of a single sign, which may belong to everything: the sign of a whole stream before its norm."""
    return tuple(key for key in sym.flipping if math.prod(sym.shape(sym.families[key].owner)) == 1)
