"""Training networks, measured once: what samples of any generator are compared with."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset._checks import check_count, check_seed
from coset._values import freeze
from coset.alignment.inputs import check_same_names
from coset.canonical import Canonical, Distances, canonicalize, distances, manifold
from coset.errors import InputError
from coset.flow._evaluation import (
    Data,
    Evaluation,
    Task,
    evaluated,
    finite_networks,
    jensen_shannon,
    mean_of_pairs,
    task_of,
)
from coset.flow._space import Space
from coset.flow._two_samples import distances_of_rows, median_distance
from coset.symmetry import Symmetry
from coset.symmetry.stacks import Stack, leading, network_of
from coset.train.randomness import stream

MEMORISED = 0.01
"""A sample is memorised that is nearer to a training network than this part of the training networks are."""


@dataclass(frozen=True)
class Quotient:
    """How networks are compared modulo G; the options are those of ``coset.canonical.distances``."""

    sym: Symmetry
    metric: str
    bias: str
    classifier: bool | str
    limit: int | None
    seed: int

    def distances(self, networks: Stack, others: Stack | None = None, *, show: bool | None = None) -> Distances:
        """Distances modulo G."""
        own = {} if self.limit is None else {"limit": self.limit}
        return distances(
            self.sym, networks, others, metric=self.metric, bias=self.bias, classifier=self.classifier,
            seed=self.seed, show=show, **own,
        )  # fmt: skip

    def form(self, networks: Stack, reference: Stack | None = None) -> Canonical[Stack]:
        """Canonical forms, with a reference in its frame: the same for all networks of an orbit."""
        wide = {
            name: tensor.detach().double() if tensor.is_floating_point() else tensor
            for name, tensor in networks.items()
            if name not in self.sym.unsaved
        }
        found: Canonical[Stack] = canonicalize(self.sym, wide, bias=self.bias, classifier=self.classifier)
        if reference is None:
            return found
        # From the form without a reference, so that an alignment begins at the same place of every orbit.
        return canonicalize(self.sym, found.params, reference, bias=self.bias, classifier=self.classifier)

    def rows(self, networks: Stack, reference: Stack) -> Tensor:
        """Coordinates of the canonical weights, (N, D) in float64."""
        form = self.form(networks, reference)
        space = Space(manifold(self.sym, bias=self.bias, classifier=form.last), network_of(form.params, 0))
        return space.rows(form.params)


@dataclass(frozen=True, eq=False)
class View:
    """A set of networks as points, with the distances of all pairs."""

    rows: Tensor
    between: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> "View":
        """Of rows (N, D)."""
        return cls(rows, distances_of_rows(rows, rows))


@dataclass(frozen=True, eq=False)
class MeasuredZoo:
    """Training networks and what is known of them, see ``measure_zoo``.

    ``evaluation``: of all ``count`` of them. ``networks``: those to which distances are measured. ``between``:
    distances of these modulo G, of which ``exact`` says how they were found. ``views``: the networks of reference, in
    "weights" and in "functions"; ``held_out``: how many they are if they are no training networks. ``reference``: the
    canonical network in whose frame weights are compared. ``divergence``: mean Jensen-Shannon divergence of pairs.
    """

    quotient: Quotient
    task: Task
    evaluation: Evaluation
    networks: Stack
    between: Distances
    reference: Stack
    views: Mapping[str, View]
    widths: Mapping[str, float]
    held_out: int | None
    divergence: float | None

    def __post_init__(self) -> None:
        freeze(self, "networks", "reference", "views", "widths")

    @property
    def count(self) -> int:
        """The number of training networks."""
        return len(self.evaluation)

    @property
    def compared(self) -> int:
        """To how many of them distances are measured."""
        return len(self.between.values)

    @property
    def nearest(self) -> Tensor:
        """The distance of every compared network to the nearest other one, modulo G, (compared,)."""
        apart = self.between.values.clone()
        return apart.fill_diagonal_(torch.inf).amin(1)

    @property
    def novel_from(self) -> float:
        """The median of ``nearest``: a sample is novel that is farther from every training network."""
        return float(self.nearest.quantile(0.5))

    @property
    def memorised_below(self) -> float:
        """The 1 % quantile of ``nearest``."""
        return float(self.nearest.quantile(MEMORISED))

    def __repr__(self) -> str:
        some = "" if self.compared == self.count else f", distances to {self.compared} of them"
        return f"MeasuredZoo({self.count} networks{some}, nearest others {self.novel_from:.4g} apart (median))"


def measure_zoo(
    model: nn.Module,
    sym: Symmetry,
    zoo: Stack,
    data: Data,
    *,
    held_out: Stack | None = None,
    calibration: Data | None = None,
    loss: str = "cross-entropy",
    points: int = 256,
    compared: int | None = None,
    metric: str = "geodesic",
    bias: str = "outside",
    classifier: bool | str = False,
    limit: int | None = None,
    seed: int = 0,
    show: bool | None = None,
) -> MeasuredZoo:
    """Measure the training networks ``zoo``, a stack, on ``data`` (x, y), and how far they are apart modulo G.

    ``held_out``: networks trained alike that no generator has seen, with which the distributions of weights and of
    functions are compared; without them these are the training networks themselves, which favours a generator that
    gives them back. ``calibration`` (x, y): where a factor of the last layer is fitted. ``loss``: as in
    ``coset.train``. ``points``: on so many inputs of the data, evenly spaced, predictions are compared. ``compared``:
    to so many networks of the zoo, chosen by ``seed``, distances are measured (default: all); what is nearest among
    them may be farther than what is nearest in the zoo. Other options: as in ``coset.canonical.distances``.
    """
    check_seed(seed)
    if not isinstance(sym, Symmetry):
        raise InputError(f"sym is a {type(sym).__name__}; expected a Symmetry, as discover gives it")
    count = check_networks(sym, zoo, "the zoo", 2)
    if held_out is not None:
        check_networks(sym, held_out, "held_out", 2)
        check_same_names(zoo, held_out, "the zoo", "held_out")
    for what, stack in (("the zoo", zoo), ("held_out", held_out)):
        if stack is not None and not bool((sound := finite_networks(stack)).all()):
            raise InputError(f"network {int((~sound).nonzero()[0])} of {what} has entries that are NaN or infinite")
    some = count if compared is None else check_count("compared", compared, 2)
    if some > count:
        raise InputError(f"compared is {some}; expected at most the {count} networks of the zoo")
    quotient = Quotient(sym, metric, bias, classifier, limit, seed)
    task = task_of(model, network_of(zoo, 0), data, loss=loss, points=points, calibration=calibration)
    evaluation = evaluated(task, zoo)
    if not bool(evaluation.usable.all()):
        bad = int((~evaluation.usable).nonzero()[0])
        raise InputError(f"network {bad} of the zoo has outputs that are NaN or infinite on the data")
    chosen = torch.randperm(count, generator=stream("compared", seed, 0))[:some].sort().values
    near = zoo if some == count else {name: tensor[chosen.to(tensor.device)] for name, tensor in zoo.items()}
    between = quotient.distances(near, show=show)
    reference = network_of(quotient.form({name: tensor[:1] for name, tensor in near.items()}).params, 0)
    predictions = evaluation.predictions[chosen]
    others, seen = near, predictions
    if held_out is not None:
        others, seen = held_out, evaluated(task, held_out).predictions
    views = {"weights": View.of(quotient.rows(others, reference)), "functions": View.of(functions(seen))}
    return MeasuredZoo(
        quotient,
        task,
        evaluation,
        near,
        between,
        reference,
        views,
        {name: median_distance(view.between) for name, view in views.items()},
        None if held_out is None else len(seen),
        mean_of_pairs(jensen_shannon(predictions)) if task.reading.classes else None,
    )


def functions(predictions: Tensor) -> Tensor:
    """Predictions (N, points, …) as rows, whose distances are root mean squares over the points."""
    return predictions.flatten(1) / math.sqrt(predictions.shape[1])


def check_networks(sym: Symmetry, stack: object, what: str, least: int) -> int:
    """The number of networks of a stack of this symmetry, at least so many."""
    if not isinstance(stack, Mapping):
        raise InputError(f"{what} is a {type(stack).__name__}; expected a dict of tensors (networks, …)")
    if stack and all(isinstance(tensor, Tensor) and tensor.ndim and len(tensor) == 0 for tensor in stack.values()):
        raise InputError(f"{what} holds no network; expected at least {least}")
    try:
        count = leading(sym, stack, what)
    except InputError as error:
        raise InputError(f"{what} is not of the architecture of this symmetry: {error}") from error
    if count is None:
        raise InputError(f"{what} is a single network; expected a stack with a leading axis of networks")
    if count < least:
        raise InputError(f"{what} holds {count} network; expected at least {least}")
    return count
