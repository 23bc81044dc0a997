"""Networks of one architecture, side by side, and the frames in which they are compared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coset.flow import Flow
from coset.models import build, example_input
from coset.study import Context, Estimate, Results, Scalar, Table
from coset.study.zoos import TrainedZoo, trained_zoo
from coset.symmetry import Symmetry, discover
from coset.zoo import DataSpec, ZooSpec

Stack = Mapping[str, Tensor]


@dataclass(frozen=True)
class Networks:
    """Networks that differ in their seed: model and data by name, settings of ``coset.train.Recipe``.

    ``snapshots``: epochs after which weights are kept. ``order`` "shared": all see the batches in one order, which is
    faster.
    """

    model: str
    options: Mapping[str, Any]
    data: Mapping[str, Any]
    recipe: Mapping[str, Any]
    count: int
    snapshots: tuple[int, ...] = ()
    order: str = "own"

    def seeds(self, context: Context) -> tuple[int, ...]:
        """Those of all networks; other ones for another seed of the study."""
        return tuple(range(context.seed * 100_000, context.seed * 100_000 + self.count))

    def trained(self, context: Context) -> TrainedZoo:
        """Trained now or found in the store."""
        data, seeds = (DataSpec(**self.data),), self.seeds(context)
        spec = ZooSpec(self.model, self.recipe, data, seeds, self.options, snapshots=self.snapshots, order=self.order)
        return trained_zoo(context, spec)

    def untrained(self, context: Context, count: int) -> dict[str, Tensor]:
        """The first networks as they are before training."""
        models = [build(self.model, seed=seed, **self.options) for seed in self.seeds(context)[:count]]
        return joined([{name: t.detach()[None] for name, t in model.state_dict().items()} for model in models])

    def built(self) -> tuple[nn.Module, Symmetry]:
        """The module in evaluation mode, and its symmetry."""
        model = build(self.model, seed=0, **self.options).eval()
        return model, discover(model, example_input(model))


def chosen(stack: Stack, numbers: Tensor | slice) -> dict[str, Tensor]:
    """Some networks of a stack."""
    return {name: tensor[numbers] for name, tensor in stack.items()}


def joined(stacks: list[Stack]) -> dict[str, Tensor]:
    """Stacks one after the other."""
    return {name: torch.cat([stack[name] for stack in stacks]) for name in stacks[0]}


def counted(stack: Stack) -> int:
    """How many networks a stack holds."""
    return len(next(iter(stack.values())))


def disjoint_parts(count: int, parts: int) -> list[Tensor]:
    """The numbers of networks in disjoint parts, those that hold two or more."""
    found = [torch.arange(count)[start::parts] for start in range(parts)]
    return [one for one in found if len(one) > 1]


def over_parts(value: float, parts: list[float]) -> Estimate:
    """A value of all, with the interval from the least to the greatest of its values on parts."""
    return Estimate(value, min([value, *parts]), max([value, *parts]))


def estimate_in(results: Results, table: str, columns: tuple[str, str, str], **where: Scalar) -> Estimate | None:
    """Value, least and greatest of a row of a table; None where there is no such row."""
    cells = [results.tables[table].cell(column, where) for column in columns]
    if any(cell is None for cell in cells):
        return None
    value, low, high = (float(str(cell)) for cell in cells)
    return over_parts(value, [low, high])


def difference_of_shares(
    table: Table, first: Mapping[str, Scalar], second: Mapping[str, Scalar], of: str = "novel and performant"
) -> Estimate | None:
    """A share less another, of two rows with their intervals in "from" and "to" (Newcombe 1998)."""
    if not {of, "from", "to"} <= set(table.columns):
        return None
    cells = [[table.cell(column, where) for column in (of, "from", "to")] for where in (first, second)]
    if any(cell is None for row in cells for cell in row):
        return None
    ours, theirs = ([float(str(cell)) for cell in row] for row in cells)
    value = ours[0] - theirs[0]
    low = value - ((ours[0] - ours[1]) ** 2 + (theirs[2] - theirs[0]) ** 2) ** 0.5
    high = value + ((ours[2] - ours[0]) ** 2 + (theirs[0] - theirs[1]) ** 2) ** 0.5
    return Estimate(value, low, high)


def in_the_span(flow: Flow, networks: Stack, others: Stack) -> dict[str, Tensor]:
    """Other networks at the nearest place to them that is an affine combination of networks; all in the frame
    of a flow.

    What is linear in networks, and draws by principal components are, comes no nearer to networks that it has not seen.
    """
    frame = flow.frame
    rows, out = (frame.back(part).double() for part in (networks, others))
    centre = rows.mean(0)
    _, sizes, directions = torch.linalg.svd(rows - centre, full_matrices=False)
    basis = directions[sizes > sizes[0] * 1e-6]
    return frame.networks((centre + (out - centre) @ basis.T @ basis).to(frame.back(networks)))


def in_turn(context: Context, what: str, items: list[str], make: Callable[[str], Any]) -> dict[str, Any]:
    """What ``make`` gives for each item, with progress."""
    found = {}
    with context.progress(what, len(items)) as bar:
        for item in items:
            found[item] = make(item)
            bar.advance(note=item)
    return found
