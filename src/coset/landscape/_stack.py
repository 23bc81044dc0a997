"""Barriers of many pairs of small networks at once: paths between stacks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._batches import labelled_batches
from coset._show.progress import progress
from coset.errors import InputError
from coset.landscape._barrier import POINTS, path_grid
from coset.landscape._functionals import Better, DataFunctional
from coset.landscape._path import Path, check_path
from coset.landscape._profile import Profile
from coset.running import outputs_of_stack
from coset.train.metrics import evaluation_mode


@dataclass(frozen=True, eq=False)
class ProfileStack:
    """A functional along the paths of N pairs: ``values`` (N, T) at T ``taus``, in float64."""

    name: str
    taus: tuple[float, ...]
    values: Tensor
    better: Better = "lower"
    unit: str = ""

    def __len__(self) -> int:
        return len(self.values)

    def one(self, number: int) -> Profile:
        """The profile of one pair."""
        return Profile(self.name, self.taus, tuple(self.values[number].tolist()), self.better, self.unit)

    @property
    def excess(self) -> Tensor:
        """How far each value is worse than the chord between the ends, (N, T)."""
        taus = torch.tensor(self.taus, dtype=torch.float64)
        chord = (1 - taus) * self.values[:, :1] + taus * self.values[:, -1:]
        return (self.values - chord) * (1.0 if self.better == "lower" else -1.0)

    @property
    def barriers(self) -> Tensor:
        """max_τ of the excess, (N,)."""
        return self.excess.amax(1) + 0.0


def barriers(
    path: Path[Mapping[str, Tensor]],
    functionals: Mapping[str, DataFunctional],
    *,
    points: int = POINTS,
    taus: Sequence[float] | None = None,
    show: bool | None = None,
) -> dict[str, ProfileStack]:
    """``barrier`` of N paths at once: ``path(τ)`` is a stack, as of ``linear(a, b)`` between stacks (N, *shape).

    ``functionals``: means over data by name, as ``on(model, test=(x, y))`` gives them. All networks run together.
    """
    check_path(path)
    if not functionals:
        raise InputError("functionals is empty; expected at least one")
    for name, item in functionals.items():
        if not isinstance(item, DataFunctional):
            raise InputError(f"functional '{name}' is a {type(item).__name__}; expected a mean over data, as loss(…)")
    groups: dict[tuple[int, ...], dict[str, DataFunctional]] = {}
    for name, item in functionals.items():
        groups.setdefault(item.forward_pass, {})[name] = item
    grid = path_grid(points, taus, None)
    columns: dict[str, list[Tensor]] = {name: [] for name in functionals}
    with progress("along the paths", len(grid), show=show) as bar, torch.no_grad():
        for tau in grid:
            stack = path(tau)
            for group in groups.values():
                for name, values in _means(group, stack).items():
                    if not bool(values.isfinite().all()):
                        wrong = int((~values.isfinite()).nonzero()[0])
                        raise InputError(
                            f"'{name}' of network {wrong} is {float(values[wrong])} at τ = {tau:.4g}; expected a "
                            f"finite number"
                        )
                    columns[name].append(values)
            bar.advance(note=f"τ = {tau:.3g}")
    return {
        name: ProfileStack(name, grid, torch.stack(columns[name], 1), item.better, item.unit)
        for name, item in functionals.items()
    }


def _means(group: Mapping[str, DataFunctional], stack: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The means over the data that all functionals of the group share, (N,) each."""
    first = next(iter(group.values()))
    number = len(next(iter(stack.values())))
    totals, count = {name: torch.zeros(number, dtype=torch.float64) for name in group}, 0
    with evaluation_mode(first.model):
        for inputs, targets in labelled_batches(first.data, first.batch_size):
            outputs = outputs_of_stack(first.model, stack, inputs)
            y = targets.to(outputs.device)
            for name, item in group.items():
                totals[name] += len(inputs) * torch.stack([item.mean(one, y).double() for one in outputs]).cpu()
            count += len(inputs)
    if count == 0:
        raise InputError(f"{next(iter(group))}: data holds no examples; expected at least one")
    return {name: total / count for name, total in totals.items()}
