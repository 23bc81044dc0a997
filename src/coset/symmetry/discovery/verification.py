"""Numerical proof: the function of a moved network, in float64, against that of the original."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from coset.errors import InputError
from coset.symmetry.action import Action, move, moving_together
from coset.symmetry.axes import Fixed, units_of
from coset.symmetry.discovery.evaluation import evaluate, results_of
from coset.symmetry.discovery.exporting import first_line
from coset.symmetry.discovery.general_position import general_position, other_inputs, scaled
from coset.symmetry.discovery.influence import Influence, Standing, felt, influence, to_be_felt
from coset.symmetry.discovery.operands import watched
from coset.symmetry.element import Element
from coset.symmetry.group import full_map
from coset.symmetry.incidence import standing
from coset.symmetry.parameters import Parameter
from coset.symmetry.symmetry import Symmetry

TOLERANCE = 1e-9
_LOOSE = 1e-4
"""Where rounding alone changes outputs by more, no change of them says anything."""

FURTHER = ((1.0, 2.0), (-1.0, 1.0), (1.0, 6.0), (10.0, 0.0), (-1.0, 0.0), (0.1, 0.0), (1e3, 0.0), (-1e3, 0.0))
"""Factors of further inputs, and variances of weights (see ``general_position``) at which signals pass many layers:
larger ones for smooth activations and smaller ones where they would saturate. Tried while no output notices a class.
"""


def verify(
    sym: Symmetry,
    program: torch.export.ExportedProgram,
    params: Mapping[str, Tensor],
    inputs: Sequence[Any],
    *,
    expected: set[Standing] | None = None,
    elements: int = 3,
    further: bool = True,
    seed: int = 0,
    astray: set[str] | None = None,
) -> set[Standing]:
    """Raise if random elements change an output by more than 1e-9 of its size, naming the class at fault.

    Returns the units that the outputs have not noticed, by block and parameter: there a wrong move would not have been
    seen either. ``expected``: those that can be noticed at all (``influence`` of the generic function). Where classes
    are missing, ``further`` inputs are tried, larger and of other signs, and then moves of single classes.
    ``astray``: takes up the names of tensors in ``sym.graph`` that do not move as it says.
    """
    generator = torch.Generator().manual_seed(seed)
    if expected is None:
        expected = to_be_felt(generic_influence(sym, program, params, inputs))
    try:
        missing = expected - _round(sym, program, params, inputs, elements, generator, astray=astray)
    except (RuntimeError, IndexError) as error:
        raise InputError(f"the exported model cannot be run in float64: {first_line(error)}") from error
    if not missing:
        return missing
    finite = _finite(evaluate(program, params, inputs))
    for factor, lively in FURTHER if further else FURTHER[:3]:
        if not missing:
            return missing
        others = [scaled(item, factor, generator) for item in inputs]
        try:
            if _finite(evaluate(program, params, others)) < finite:
                continue  # outside the domain of the function
            missing -= _round(sym, program, params, others, 1, generator, min(abs(factor), 10.0), lively)
        except (RuntimeError, IndexError):
            continue  # numbers that stand for indices, say
    return missing - _noticed_alone(sym, program, params, inputs, missing, generator) if further else missing


def outputs_stay(
    before: Sequence[Tensor],
    program: torch.export.ExportedProgram,
    params: dict[str, Tensor],
    inputs: Sequence[Any],
    generator: torch.Generator,
) -> bool:
    """Whether outputs are what they were, up to what rounding of these weights does to them."""
    change = difference(before, evaluate(program, params, inputs))
    return change <= TOLERANCE or change <= 30 * _rounding(program, params, inputs, generator) <= _LOOSE


def generic_influence(
    sym: Symmetry, program: torch.export.ExportedProgram, params: Mapping[str, Tensor], inputs: Sequence[Any]
) -> Influence:
    """How much each class is felt whatever the values are, near the inputs given."""
    generator = torch.Generator().manual_seed(0)
    theta = general_position(params, sym, generator)
    try:
        x, _ = other_inputs(program, theta, inputs, evaluate(program, theta, inputs), generator)
        return influence(sym, program, theta, x, generator, generic=True)
    except (RuntimeError, IndexError) as error:
        raise InputError(f"the exported model cannot be run in float64: {first_line(error)}") from error


def _finite(outputs: Sequence[Tensor]) -> int:
    return sum(int(torch.isfinite(item).sum()) for item in outputs)


def _round(
    sym: Symmetry,
    program: torch.export.ExportedProgram,
    params: Mapping[str, Tensor],
    inputs: Sequence[Any],
    elements: int,
    generator: torch.Generator,
    size: float = 1.0,
    lively: float = 0.0,
    astray: set[str] | None = None,
) -> set[Standing]:
    """Elements act one after the other along one orbit, θ, g₁θ, g₂g₁θ, …, each on inputs of its own.

    Every parameter is replaced as it moves, so that there is never more than one copy of them in float64. Returns what
    the outputs notice.
    """
    theta = general_position(params, sym, generator, size, lively=lively)
    together = moving_together(sym, params)
    x, moved = list(inputs), sym.identity()
    nested = any(item.parent is not None for item in sym.classes.values())
    layers = _Layers(sym, program) if astray is not None else None
    before = results_of(program, theta, x, None if layers is None else layers.watch)
    if difference(before[0], evaluate(program, theta, x)) > 0:
        raise InputError("two runs of the model on one input differ: it is random, and has no function to preserve")
    for number in range(elements):
        if number:
            x, there = other_inputs(program, theta, inputs, before[0], generator)
            before = results_of(program, theta, x) if there is None else there
        g = sym.random(generator)
        written = Action(sym, g)(before[1], partial=True) if before[1] else {}
        move(sym, g, theta, together)
        moved = sym.compose(g, moved) if nested else moved
        if layers is not None and astray is not None and not number:
            known = layers.taken()
            after = results_of(program, theta, x, layers.watch)
            astray |= layers.astray(g, known)
        else:
            after = results_of(program, theta, x)
        change = difference([*before[0], *written.values()], [*after[0], *after[1].values()])
        if change > TOLERANCE:
            noise = _rounding(program, theta, x, generator)
            if change > 30 * noise:
                theta.clear()
                theta = general_position(params, sym, generator, size, lively=lively)
                _blame(sym, program, theta, x, together, generator, change)
            if 30 * noise > _LOOSE:
                raise InputError(
                    f"nothing can be verified on these inputs: rounding alone changes the outputs by {noise:.1e} of "
                    "their size"
                )
    return {_unmoved(sym, moved, part) for part in felt(influence(sym, program, theta, x, generator))}


def _unmoved(sym: Symmetry, g: Element, part: Standing) -> Standing:
    """The block of the original network that g has brought to where ``part`` is."""
    parent = sym.classes[part.name].parent
    return part if parent is None else part._replace(block=int(full_map(sym, g, parent)[part.block]))


def _rounding(
    program: torch.export.ExportedProgram,
    theta: dict[str, Tensor],
    inputs: Sequence[Any],
    generator: torch.Generator,
) -> float:
    """How much the outputs change with relative changes of 1e-13 of the weights, at the most of three."""
    before = evaluate(program, theta, inputs)
    found = []
    for _ in range(3):
        near = {
            name: tensor
            * (1 + 1e-13 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype).to(tensor.device))
            if tensor.is_floating_point() or tensor.is_complex()
            else tensor
            for name, tensor in theta.items()
        }
        found.append(difference(before, evaluate(program, near, inputs)))
    return max(found)


class _Layers:
    """What modules give and contractions read while a graph is run.

    Of inputs' positions the first two, so that little is kept.
    """

    def __init__(self, sym: Symmetry, program: torch.export.ExportedProgram) -> None:
        self._sym = sym
        self._known = sym.graph.tensors
        nodes = watched(program)[1].items()
        self._names = {node: known for node, names in nodes if (known := [n for n in names if n in self._known])}
        self._seen: dict[str, Tensor] = {}

    def watch(self, node: Node, result: Any) -> None:
        if node in self._names and isinstance(result, Tensor):
            names = self._names[node]
            for dim, axis in enumerate(self._known[names[0]].axes):
                result = result.narrow(dim, 0, min(2, result.shape[dim])) if axis == Fixed(0) else result
            self._seen |= dict.fromkeys(names, result.clone())

    def taken(self) -> dict[str, Tensor]:
        """What was seen since the last time."""
        seen, self._seen = self._seen, {}
        return seen

    def astray(self, g: Element, before: Mapping[str, Tensor]) -> set[str]:
        """Those that now are not what they were before, moved by g."""
        sizes = {name: item.size for name, item in self._sym.classes.items()}
        found = {}
        for name, tensor in before.items():
            axes = self._known[name].fitted(tuple(tensor.shape), sizes, name)
            found[name] = Parameter(tuple(tensor.shape) if axes else (), axes)
        outputs = Symmetry(self._sym.classes, self._sym.families, found)
        wanted, after = outputs.act(g, dict(before)), self.taken()
        return {name for name, tensor in wanted.items() if difference([tensor], [after[name]]) > _LOOSE}


def _noticed_alone(
    sym: Symmetry,
    program: torch.export.ExportedProgram,
    params: Mapping[str, Tensor],
    inputs: Sequence[Any],
    missing: Collection[Standing],
    generator: torch.Generator,
) -> set[Standing]:
    """Those of ``missing`` whose entries change the outputs when replaced alone: where there is no gradient."""
    if not missing:
        return set()
    theta = general_position(params, sym, generator)
    before = evaluate(program, theta, inputs)

    def changes(parts: Sequence[Standing]) -> bool:
        moved = dict(theta)
        for part in parts:
            tensor = moved[part.parameter]
            mask = standing(sym, part.parameter, part.name, part.block).to(tensor.device)
            noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype).to(tensor.device)
            moved[part.parameter] = torch.where(mask, tensor.abs().mean() * 3 * noise, tensor)
        return difference(before, evaluate(program, moved, inputs)) > 1e-12

    noticed: set[Standing] = set()
    for group in _by_class_and_block(missing):
        if changes(group):
            noticed |= {part for part in group if len(group) == 1 or changes([part])}
    return noticed


def _by_class_and_block(missing: Collection[Standing]) -> list[list[Standing]]:
    """What is missing, block by block of each class."""
    groups: dict[tuple[str, int], list[Standing]] = {}
    for part in sorted(missing):
        groups.setdefault((part.name, part.block), []).append(part)
    return list(groups.values())


def _blame(
    sym: Symmetry,
    program: torch.export.ExportedProgram,
    theta: dict[str, Tensor],
    inputs: Sequence[Any],
    together: list[list[str]],
    generator: torch.Generator,
    worst: float,
) -> None:
    """Move class by class until the function changes, and raise with the name of the class that changed it."""
    before = evaluate(program, theta, inputs)
    for name in sym.classes:
        part = sym.restrict([name])
        move(part, part.random(generator), theta, together)
        change = difference(before, evaluate(program, theta, inputs))
        if change > TOLERANCE:
            raise InputError(
                f"the class '{name}' (on {', '.join(part.carriers(name)[:6])}) does not preserve the function: outputs "
                f"change by {change:.1e} of their size; a rule is wrong for an operation it goes {_through(part, name)}"
            )
    raise InputError(f"the classes together do not preserve the function: outputs change by {worst:.1e} of their size")


def _through(sym: Symmetry, name: str) -> str:
    """The operations a class passes through, as far as they are told."""
    for carrier in sym.carriers(name):
        parameter = sym.parameters[carrier]
        for axis, reason in zip(parameter.axes, parameter.why, strict=False):
            if any(unit.name == name for unit in units_of(axis)):
                return reason
    return "through"


def difference(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Largest change of an entry over its size, or over the geometric mean of its tensor where it is smaller than that.

    Entries that are infinite or NaN have to stay what they are.
    """
    worst = 0.0
    for one, two in zip(before, after, strict=True):
        if one.numel() == 0:
            continue
        if not (one.is_floating_point() or one.is_complex()):
            worst = max(worst, 0.0 if torch.equal(one, two) else float("inf"))
            continue
        finite = torch.isfinite(one)
        if not torch.equal(finite, torch.isfinite(two)):
            return float("inf")
        if not one.is_complex() and not torch.equal(one[~finite].nan_to_num(), two[~finite].nan_to_num()):
            return float("inf")
        if not bool(finite.any()):
            continue
        size, change = one[finite].abs(), (one - two)[finite].abs()
        present = size[size > 0]
        typical = float(present.log().mean().exp()) if len(present) else 1.0
        worst = max(worst, float((change / size.clamp(min=typical)).max()))
    return worst
