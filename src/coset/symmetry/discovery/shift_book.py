"""Shifts of the tensors of a graph: which unknowns are added to them, and which parameters take up what."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.export.graph_signature import InputKind
from torch.fx import Node

from coset.symmetry.discovery.blindness import (
    CUTS,
    PARTS,
    RESHAPES,
    SAME,
    TURNS,
    Blind,
    argument,
    blindness,
    operation,
    shape_of,
)
from coset.symmetry.discovery.shifts import Term, Unknowns
from coset.symmetry.discovery.ties import ties
from coset.symmetry.translations import Level, Link, Move, Translation

LARGEST = 4_000_000
"""Entries of a tensor whose places are followed one by one."""


@dataclass(frozen=True)
class Norm:
    """What is known behind a LayerNorm: ⟨1/γ, y − β⟩ = 0 along the last dimension; None: there is no γ, no β."""

    gain: str | None
    offset: str | None


@dataclass(frozen=True)
class Source:
    """Where unknown shifts enter: a parameter, and the axes along which they are the same.

    ``norm``: it is a reader behind this norm, along whose inverse gain it is changed; if there is an offset, it acts as
    a bias does by what it reads of that.
    """

    parameter: str
    shape: tuple[int, ...]
    over: tuple[int, ...] = ()
    norm: Norm | None = None

    def move(self, names: tuple[str, ...], factor: float, links: tuple[Link, ...]) -> Move:
        """How the parameter follows a shift of what it is added to."""
        gain = None if self.norm is None else self.norm.gain
        if self.norm is None or self.norm.offset is None:
            return Move(names, factor, links, self.over, gain)
        level = Level(self.norm.gain, self.norm.offset, -1)
        return Move(names, factor, (*links, level), self.over, gain)


@dataclass
class ShiftBook:
    """What is known at one place of a walk through a graph.

    ``partly``: parameters of which only a part is read. ``names``: the nodes of trained parameters. ``shifts``: what is
    added to each tensor, as terms; ``norms``: tensors behind a LayerNorm; ``sums``: tensors whose rows sum to one.
    ``sources``: where unknowns enter, by name; ``taken``: what parameters take up, beside shifts of their own.
    ``readers``: translations of readers behind norms. ``seen``: unknowns that something reads.
    """

    program: torch.export.ExportedProgram
    movable: Mapping[str, Tensor]
    fixed: Collection[str]
    partly: Collection[str] = ()
    names: dict[Node, str] = field(default_factory=dict)
    buffers: dict[Node, str] = field(default_factory=dict)
    blind: dict[Node, Blind] = field(default_factory=dict)
    turns: dict[Node, int] = field(default_factory=dict)
    shifts: dict[Node, Any] = field(default_factory=dict)
    norms: dict[Node, Norm] = field(default_factory=dict)
    sums: set[Node] = field(default_factory=set)
    unknowns: Unknowns = field(default_factory=Unknowns)
    sources: dict[str, Source] = field(default_factory=dict)
    taken: dict[str, list[Term]] = field(default_factory=dict)
    readers: list[Translation] = field(default_factory=list)
    seen: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.program.graph
        self.blind = blindness(graph)
        self.turns = {node: number for number, node in enumerate(graph.nodes)}
        apart = [tie for tie in ties(self.movable) if self.movable[tie.one] is not self.movable[tie.two]]
        shared = {name for tie in apart for name in (tie.one, tie.two)}
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs if hasattr(spec.arg, "name")}
        for node in self.program.graph.nodes:
            spec = specs.get(node.name)
            if node.op != "placeholder" or spec is None or str(spec.target) not in self.movable:
                continue
            tensor = self.movable[str(spec.target)]
            if not tensor.is_floating_point() or str(spec.target) in {*shared, *self.fixed} or 0 in tensor.stride():
                continue
            home = self.names if spec.kind == InputKind.PARAMETER else self.buffers
            home[node] = str(spec.target)

    def aliases(self, parameter: str) -> tuple[str, ...]:
        """All names of a tensor, the one it was exported under first."""
        tensor = self.movable[parameter]
        others = [name for name, item in self.movable.items() if item is tensor and name != parameter]
        return (parameter, *others)

    def unseen(self, node: Node, terms: Any) -> Any:
        """Without terms to which all that is behind is blind."""
        if not isinstance(terms, list):
            return terms
        blind = self.blind[node]
        gone = [term for term in terms if any(term.is_same_along(item) for item in blind)]
        self.see(gone)
        return [term for term in terms if term not in gone]

    def see(self, terms: Sequence[Term]) -> None:
        """These entries are read, and are not only there for longer inputs than the example."""
        for term in terms:
            mask = self.seen.setdefault(term.name, torch.zeros_like(self.unknowns.free[term.name]))
            mask[term.index[term.index >= 0] if not term.links else slice(None)] = True

    def refuse(self, node: Node) -> list[Term]:
        """Nothing may be added to what this operation reads."""
        for item in node.all_input_nodes:
            self.vanish(item)
        return []

    def vanish(self, node: Any) -> None:
        terms = self.of(node)
        if terms:
            self.unknowns.vanish(terms)

    def of(self, node: Any) -> list[Term]:
        """The shift of a tensor as it is known now."""
        if not isinstance(node, Node):
            return []
        terms = self.shifts.get(node, [])
        parts = [term for part in terms.values() for term in part] if isinstance(terms, dict) else terms
        return self.unknowns.resolved(parts)

    def begun(self, node: Node) -> list[Term]:
        """The unknown shifts of a parameter that is nothing but added."""
        shape = shape_of(node)
        if self.names.get(node) in (None, *self.partly) or shape is None or torch.Size(shape).numel() > LARGEST:
            return []
        if not node.users:
            return []
        added = all(_is_added(user, node) for user in node.users)
        return [self.source(Source(self.names[node], shape))] if added else []

    def source(self, source: Source) -> Term:
        """A term with unknown shifts of a parameter; ``over`` axes are of size 1."""
        count = torch.Size(source.shape).numel()
        node = next(node for node, name in self.names.items() if name == source.parameter)
        self.unknowns.add(source.parameter, count, min(self.turns[user] for user in node.users))
        self.sources[source.parameter] = source
        return Term(source.parameter, torch.arange(count).reshape(source.shape))

    def bias(self, node: Any) -> str | None:
        """The name of a parameter that is used here and nowhere else, so that it may take up what it has to."""
        return self.names[node] if isinstance(node, Node) and node in self.names and len(node.users) == 1 else None


def _is_added(user: Node, node: Node) -> bool:
    """Whether an operation only adds a parameter, or moves its entries."""
    name = operation(user)
    if name in ("linear", "conv1d", "conv2d", "conv3d", "layer_norm", "batch_norm"):
        return node is argument(user, "bias")
    if name == "addmm":
        return node is user.args[0]
    return name in ("add", "sub", "cat", "expand", "expand_as") or name in SAME | RESHAPES | TURNS | PARTS | CUTS
