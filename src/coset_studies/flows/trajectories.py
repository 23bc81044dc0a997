"""Whether distances modulo the group tell seeds from snapshots of one trajectory."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset.canonical import canonicalize, distances
from coset.study import Claim, Context, Findings, Scalar, Table, study
from coset.symmetry import Symmetry
from coset.symmetry.stacks import act_stack, random_stack
from coset_studies.flows._zoos import Networks, Stack, counted, estimate_in, joined

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RAW, FORM, MODULO = "as they are", "canonical form", "modulo the group"
_SHOWN = 50
"""So many networks are on the figure."""
COLUMNS = ("own trajectory is nearest", "least half", "greatest half")


@dataclass(frozen=True)
class Config:
    """Networks with snapshots; every snapshot is moved by a random element of the group."""

    zoo: Networks


_BREAST_CANCER = {"in_features": 30, "widths": [16, 16], "out_features": 2}
QUICK = Config(
    Networks(
        "mlp",
        {**_BREAST_CANCER, "widths": [5, 4]},
        {"name": "breast-cancer", "subset": 100},
        {"optimizer": "adam", "learning_rate": 1e-2, "batch_size": 50, "epochs": 4},
        4,
        (2, 3),
    )
)
SMALL = Config(
    Networks(
        "mlp",
        _BREAST_CANCER,
        {"name": "breast-cancer"},
        {"optimizer": "adam", "learning_rate": 1e-2, "batch_size": 32, "epochs": 50},
        40,
        (10, 20, 30, 40),
    )
)


def nearest_is_own(values: Tensor, owners: Tensor) -> float:
    """The share of networks whose nearest other one is of the same trajectory; ``values`` (N, N)."""
    apart = values.clone().fill_diagonal_(torch.inf)
    return float((owners[apart.argmin(1)] == owners).double().mean())


def euclidean(stack: Stack) -> Tensor:
    """Distances (N, N) of networks as vectors."""
    flat = torch.cat([tensor.double().flatten(1) for tensor in stack.values() if tensor.is_floating_point()], 1)
    return torch.cdist(flat, flat)


def measured(sym: Symmetry, stack: Stack) -> tuple[dict[str, Tensor], float | None]:
    """Distances of all pairs by each method, and the rate of violated triangles modulo the group."""
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in stack.items()}
    modulo = distances(sym, wide, show=False)
    found = {RAW: euclidean(wide), FORM: euclidean(canonicalize(sym, wide).params), MODULO: modulo.values}
    return found, modulo.violations


def _claim(method: str, direction: str, threshold: float, paper: str, reason: str) -> Claim:
    return Claim(
        paper=paper,
        source="what a distance on the quotient has to do; the thesis, section 4.4, for canonical forms",
        statistic=f"{method}: share of networks whose nearest other one is of the same trajectory",
        direction=direction,
        threshold=threshold,
        reason=reason,
        interval="From the smaller to the greater of two halves of the trajectories.",
        possible=(0.0, 1.0),
        estimate=lambda results: estimate_in(results, "neighbours", COLUMNS, distance=method),
    )


CLAIMS = [
    _claim(
        RAW,
        "below",
        0.5,
        "Moved along their orbits, networks hide where they come from.",
        "By chance it is so in 4 of 199 cases; half is far more; set before the run.",
    ),
    _claim(
        MODULO,
        "above",
        0.95,
        "Modulo the group, snapshots of one trajectory are nearer to each other than to other seeds.",
        "An exact distance would find nearly all of them; alignment may miss some; set before the run.",
    ),
    _claim(
        FORM,
        "above",
        0.5,
        "A canonical form brings networks of one orbit together.",
        "Its order of units may jump between two snapshots, so that less is asked; set before the run.",
    ),
]


TEXT = """
{networks} networks, five snapshots of each of {seeds} trajectories, were each moved by a random element of the group
(permutations and scales of units). For every network the nearest other one was then looked up, by three distances. All
three claims hold.

As vectors the moved networks do not tell where they come from: {neighbours[as they are][own trajectory is nearest]:.0%}
have a nearest neighbour of their own trajectory, and chance gives 2 %. Modulo the group
{neighbours[modulo the group][own trajectory is nearest]:.0%} do. After each network was brought to its canonical form
{neighbours[canonical form][own trajectory is nearest]:.0%} do, and no pair had to be aligned for that. A canonical form
orders the units of each network by themselves; where two units are nearly equal in that order they can change places
from one snapshot to the next. That is our explanation of the misses, and was not measured.

The group is too large to try all of its elements. The distance modulo the group is therefore an upper bound, from
alignments in both directions, and need not be a metric: it violated the triangle inequality in {violations:.2%} of all
triples.

In halves of the trajectories shares are a little higher, since half as many other networks are there to be nearest. The
thesis has no number to compare with: the question is ours. The networks are small (30-16-16-2 on the breast-cancer
data), and snapshots are ten epochs apart; networks that barely move between snapshots are an easy case.
"""


@study(
    name="flows-trajectories",
    title="Snapshots of a trajectory, found again behind random group elements",
    reference="the thesis on flows over weights, section 4.4",
    paper="""
    The thesis brings networks to a canonical form before it compares or generates them. Snapshots of one training run
    are the same network a little later: a distance that sees the quotient finds them, whatever group elements were
    applied.
    """,
    presets={"quick": QUICK, "small": SMALL, "paper": Config(replace(SMALL.zoo, count=100))},
    claims=CLAIMS,
    text={"small": TEXT},
    tables={"neighbours": "Nearest neighbours of snapshots behind random group elements."},
)
def run(config: Config, context: Context) -> Findings:
    """All pairs of snapshots, by three distances."""
    trained = config.zoo.trained(context)
    _, sym = config.zoo.built()
    stacks = [*trained.snapshots.values(), trained.last]
    seeds = counted(trained.last)
    owners = torch.arange(seeds).repeat(len(stacks))
    together = joined(stacks)
    moved = act_stack(sym, random_stack(sym, counted(together), context.generator("elements")), together)
    found, violations = measured(sym, moved)
    rows: list[list[Scalar]] = []
    for method, values in found.items():
        halves = [nearest_is_own(values[half][:, half], owners[half]) for half in (owners % 2 == 0, owners % 2 == 1)]
        rows.append([method, nearest_is_own(values, owners), min(halves), max(halves)])
    return Findings(
        numbers={"seeds": seeds, "networks": counted(together), "violations": violations},
        tables={"neighbours": Table(("distance", *COLUMNS), rows)},
        figure=lambda: _maps(found, owners),
        caption="Distances of pairs of snapshots of the first trajectories; each in units of its median.",
    )


def _maps(found: dict[str, Tensor], owners: Tensor) -> "Figure":
    """A heat map for each distance."""
    from coset.figures import label_panel, new_figure

    order = owners.argsort(stable=True)
    figure = new_figure(6.6, 2.5)
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for panel, letter, (method, values) in zip(panels, "abc", found.items(), strict=True):
        shown = values[order][:, order][:_SHOWN, :_SHOWN]
        panel.imshow(shown / shown.median(), cmap="viridis", vmin=0, vmax=1.5, interpolation="nearest")
        label_panel(panel, letter, method)
        panel.set_xticks([])
        panel.set_yticks([])
    return figure
