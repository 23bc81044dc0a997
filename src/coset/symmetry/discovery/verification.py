"""Numerical proof: the function of a moved network, in float64, against that of the original."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter
from torch.utils._pytree import tree_leaves, tree_map

from coset.errors import InputError
from coset.symmetry.action import Action
from coset.symmetry.axes import units_of
from coset.symmetry.element import Element
from coset.symmetry.symmetry import Symmetry

TOLERANCE = 1e-9
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


class _InDouble(Interpreter):
    """Runs a graph with every floating type widened to float64, casts inside the model included."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        def widened(item: Any) -> Any:
            if isinstance(item, GraphModule):
                return _Part(item)
            return torch.float64 if item in _NARROW and isinstance(item, torch.dtype) else item

        args, kwargs = tree_map(widened, (args, kwargs))
        if any(isinstance(item, _Part) for item in args):
            at = next(i for i, item in enumerate(args) if isinstance(item, _Part))
            return _InDouble(args[at].graph, garbage_collect_values=True).run(*args[at + 1 :])
        return tree_map(double, super().call_function(target, args, kwargs))


class _Part:
    """A part of a graph that is called as a function (under no_grad or autocast)."""

    def __init__(self, graph: GraphModule) -> None:
        self.graph = graph


def double(item: Any) -> Any:
    """A floating tensor in float64; anything else as it is."""
    return item.double() if isinstance(item, Tensor) and item.is_floating_point() else item


def evaluate(
    program: torch.export.ExportedProgram, params: Mapping[str, Tensor], inputs: Sequence[Any]
) -> list[Tensor]:
    """The outputs of an exported model in float64, with other parameters."""
    signature = program.graph_signature
    given = iter(inputs)
    arguments = []
    for spec in signature.input_specs:
        name = str(spec.target)
        if spec.target is None:
            arguments.append(next(given))
        elif name in params:
            arguments.append(params[name])
        else:
            arguments.append(program.constants[name] if name in program.constants else program.state_dict[name])
    with torch.no_grad():
        outputs = _InDouble(program.graph_module, garbage_collect_values=True).run(*(double(a) for a in arguments))
    return [item for item in tree_leaves(outputs) if isinstance(item, Tensor)]


def general_position(
    params: Mapping[str, Tensor], sym: Symmetry, generator: torch.Generator, scale: float = 1.0
) -> dict[str, Tensor]:
    """Float64 parameters without the zeros and ones of an initialisation, which would hide a wrong group.

    Each is multiplied by and moved by noise of its own size (``scale`` times that); variances stay positive.
    """
    moved: dict[str, Tensor] = {}
    seen: dict[int, Tensor] = {}
    for name, tensor in params.items():
        if not tensor.is_floating_point():
            moved[name] = tensor
            continue
        if id(tensor) not in seen:
            wide = tensor.detach().double()
            noise = torch.rand(wide.shape, generator=generator, dtype=torch.float64).to(wide.device)
            size = wide.abs().mean() if wide.numel() and bool(wide.any()) else wide.new_tensor(0.1)
            positive = bool(sym.parameters[name].shift)
            seen[id(tensor)] = (
                wide * (0.5 + noise) if positive else wide * (0.75 + 0.5 * noise) + 0.3 * scale * size * (noise - 0.5)
            )
        moved[name] = seen[id(tensor)]
    return moved


def verify(
    sym: Symmetry,
    program: torch.export.ExportedProgram,
    params: Mapping[str, Tensor],
    inputs: Sequence[Any],
    *,
    elements: int = 3,
    seed: int = 0,
) -> bool:
    """Raise if random elements change an output by more than 1e-9 of its size, naming the class at fault.

    Returns whether the outputs notice the weights at all; where they do not (dead units), larger inputs and weights are
    tried as well, and False says that nothing could be seen (outputs that are constant or whole numbers).
    """
    generator = torch.Generator().manual_seed(seed)
    for size in (1.0, 10.0):
        larger = [item * size if isinstance(item, Tensor) and item.is_floating_point() else item for item in inputs]
        try:
            if _verified(sym, program, params, larger, elements, generator, size):
                return True
        except (RuntimeError, IndexError) as error:
            if size == 1.0:
                raise InputError(f"the exported model cannot be run in float64: {error}") from error
    return False


def _verified(
    sym: Symmetry,
    program: torch.export.ExportedProgram,
    params: Mapping[str, Tensor],
    inputs: Sequence[Any],
    elements: int,
    generator: torch.Generator,
    size: float,
) -> bool:
    """One round: elements act one after the other along one orbit, θ, g₁θ, g₂g₁θ, …, each on inputs of its own.

    Every parameter is replaced as it moves, so that there is never more than one copy of them in float64.
    """
    theta = general_position(params, sym, generator, size)
    together = _moving_together(sym, params)
    worst, x = 0.0, list(inputs)
    before = evaluate(program, theta, x)
    if difference(before, evaluate(program, theta, x)) > 0:
        raise InputError("two runs of the model on one input differ: it is random, and has no function to preserve")
    for number in range(elements):
        if number:
            x, before = _other_inputs(program, theta, inputs, before, generator)
        _move(theta, sym, sym.random(generator), together)
        worst = max(worst, difference(before, evaluate(program, theta, x)))
    if worst > TOLERANCE:
        theta.clear()
        theta = general_position(params, sym, generator, size)
        _blame(sym, program, theta, x, together, generator, worst)
    return _is_seen(sym, program, theta, x, together, generator)


def _is_seen(
    sym: Symmetry,
    program: torch.export.ExportedProgram,
    theta: dict[str, Tensor],
    inputs: Sequence[Any],
    together: list[list[str]],
    generator: torch.Generator,
) -> bool:
    """Move every other carrier alone, which no symmetry allows: do the outputs notice?"""
    moving = [names for names in together if any(name in sym.structures for name in names)]
    before = evaluate(program, theta, inputs)
    for half in (moving[::2], moving[1::2]):
        _move(theta, sym, sym.random(generator), half)
        if difference(before, evaluate(program, theta, inputs)) > 1e-6:
            return True
    return len(moving) < 2  # what stands on one parameter alone cannot be moved by halves


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
        _move(theta, part, part.random(generator), together)
        change = difference(before, evaluate(program, theta, inputs))
        if change > TOLERANCE:
            raise InputError(
                f"the class '{name}' (on {', '.join(part.carriers(name)[:6])}) does not preserve the function: outputs "
                f"change by {change:.1e} of their size; a rule is wrong for an operation it goes {_through(part, name)}"
            )
    raise InputError(f"the classes together do not preserve the function: outputs change by {worst:.1e} of their size")


def _moving_together(sym: Symmetry, params: Mapping[str, Tensor]) -> list[list[str]]:
    """Names whose tensors have to move in one step: tied ones, and a variance with its gain."""
    home: dict[str, list[str]] = {}
    tied: dict[int, list[str]] = {}
    for name, tensor in params.items():
        home[name] = tied.setdefault(id(tensor), [])
        home[name].append(name)
    for name in params:
        gain = sym.parameters[name].gain
        if gain is not None and home[gain] is not home[name]:
            home[name] += home[gain]
            for other in home[gain]:
                home[other] = home[name]
    return list({id(names): names for names in home.values()}.values())


def _move(theta: dict[str, Tensor], sym: Symmetry, g: Element, together: list[list[str]]) -> None:
    """θ ← g·θ, a few parameters at a time."""
    action = Action(sym, g)
    for names in together:
        theta |= action({name: theta.pop(name) for name in names}, partial=True)


def _other_inputs(
    program: torch.export.ExportedProgram,
    theta: Mapping[str, Tensor],
    inputs: Sequence[Any],
    before: list[Tensor],
    generator: torch.Generator,
) -> tuple[list[Any], list[Tensor]]:
    """Inputs near the given ones and their outputs; the given ones where the model does not take others."""
    others = [_perturbed(item, generator) for item in inputs]
    try:
        outputs = evaluate(program, theta, others)
    except (RuntimeError, IndexError, ValueError):
        # Floating numbers that stand for indices, say: what is near them is none.
        return list(inputs), evaluate(program, theta, inputs)
    pairs = zip(before, outputs, strict=True)
    if any(bool((torch.isfinite(one) & ~torch.isfinite(two)).any()) for one, two in pairs if one.shape == two.shape):
        return list(inputs), evaluate(program, theta, inputs)  # outside the domain of a logarithm or a root
    return others, outputs


def _perturbed(item: Any, generator: torch.Generator) -> Any:
    """Another input of the same kind: finite fractions change a little, a constant tensor altogether, and whole numbers
    (tokens, masks) change places, so that each stays one that the model knows.
    """
    if not isinstance(item, Tensor) or not item.numel() or item.is_complex():
        return item
    if not item.is_floating_point():
        order = torch.randperm(item.numel(), generator=generator).to(item.device)
        return item.flatten()[order].reshape(item.shape)
    wide = item.detach().double()
    noise = torch.randn(wide.shape, generator=generator, dtype=torch.float64).to(wide.device)
    if bool((wide == wide.flatten()[0]).all()) and bool(torch.isfinite(wide).all()):
        return wide + noise
    return torch.where(torch.isfinite(wide) & (wide != wide.round()), wide * (1 + 0.1 * noise), wide)


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
        if not one.is_floating_point():
            worst = max(worst, 0.0 if torch.equal(one, two) else float("inf"))
            continue
        finite = torch.isfinite(one)
        if not torch.equal(finite, torch.isfinite(two)) or not torch.equal(
            one[~finite].nan_to_num(), two[~finite].nan_to_num()
        ):
            return float("inf")
        if not bool(finite.any()):
            continue
        size, change = one[finite].abs(), (one - two)[finite].abs()
        present = size[size > 0]
        typical = float(present.log().mean().exp()) if len(present) else 1.0
        worst = max(worst, float((change / size.clamp(min=typical)).max()))
    return worst
