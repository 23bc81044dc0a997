"""From networks to the rows a flow learns, and back: in which gauge, order and space."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coset._checks import check_choice
from coset._values import freeze
from coset.canonical import canonicalize
from coset.errors import InputError
from coset.flow._paths import GEOMETRIES
from coset.flow._space import Points, Space, euclidean
from coset.geometry import manifold
from coset.symmetry import Symmetry
from coset.symmetry.stacks import leading

ORDERS = ("given", "canonical", "aligned")
"""Units as they stand; in the data-free order of canonical forms; aligned to a reference."""


@dataclass(frozen=True, eq=False)
class Frame:
    """One network of every orbit, as a row of a ``space``.

    ``geometry`` "euclidean" keeps scales, unless the order is not the given one and matrices or turns act, which go
    with them; the others remove them, as ``canonicalize`` does. ``order``: what is done with permutations, signs,
    matrices and turns. ``reference``: that networks are aligned to, in the frame. ``last``: the parameters of
    a classifier's last layer, which are ``factor`` times as large in rows, or for each network so that ‖W‖ = √C; what
    comes back of rows is divided by ``factor``, the geometric mean of those of the networks the frame was made of.
    ``offsets``: variances of batch norms with their ε; rows have log(variance + ε), so that any row is a network.
    Without a ``symmetry`` points are their coordinates, on the spheres of ``space``.
    """

    symmetry: Symmetry | None
    geometry: str
    order: str
    space: Space
    reference: Points | None = None
    last: tuple[str, ...] = ()
    factor: float = 1.0
    offsets: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        freeze(self, "offsets")
        if self.reference is not None:
            freeze(self, "reference")

    @property
    def path_space(self) -> Space:
        """Where paths and fields run: straight lines need no spheres."""
        return self.space if self.geometry == "geometric" else self.space.flat

    def rows(self, networks: Points) -> Tensor:
        """Networks (N, *shape) → their rows (N, D) in the frame."""
        if self.symmetry is None:
            return self.space.project(self.space.rows(networks))
        formed = _formed(self.symmetry, self.geometry, self.order, networks, self.reference, self.classifier)
        return self.space.project(self.space.rows(_logarithms(self.offsets, formed.params)))

    def networks(self, rows: Tensor) -> dict[str, Tensor]:
        """Rows (N, D) → networks (N, *shape), projected to the spheres, with logits of their usual size."""
        return self.weights(self.space.points(self.space.project(rows)))

    def weights(self, points: Points) -> dict[str, Tensor]:
        """The networks of coordinates by name, as ``space.points`` gives them, on the spheres or not."""
        found = {name: t.exp() - self.offsets[name] if name in self.offsets else t for name, t in points.items()}
        return self.with_logits(found, 1 / self.factor)

    def back(self, networks: Points) -> Tensor:
        """The rows of networks that ``networks`` gave: nothing is brought into the frame but the size of logits."""
        return self.space.rows(_logarithms(self.offsets, self.with_logits(networks, self.factor)))

    def log_volume(self, rows: Tensor) -> Tensor:
        """log|dx/dθ| of the logarithms in rows x (N, D), by which densities of weights exceed those of rows."""
        known = self.space.coordinates(rows.double())
        total = rows.new_zeros(rows.shape[:-1], dtype=torch.float64)
        for name in self.offsets:
            total = total - known[name].reshape(len(rows), -1).sum(-1)
        return total

    def with_logits(self, networks: Points, factor: float) -> dict[str, Tensor]:
        """The networks with logits multiplied by a number."""
        return {name: tensor * factor if name in self.last else tensor for name, tensor in networks.items()}

    @property
    def classifier(self) -> bool | str:
        """The last layer, whose logits have one size in rows; False where they keep theirs."""
        return self.last[0].rpartition(".")[0] if self.last else False


def make_frame(
    sym: Symmetry | None,
    networks: Points,
    *,
    geometry: str,
    order: str,
    classifier: bool | str,
    reference: Points | None,
    space: Space | None,
) -> tuple[Frame, Tensor]:
    """The frame of a stack of networks, and their rows in it."""
    check_choice("geometry", geometry, GEOMETRIES)
    check_choice("order", order, ORDERS)
    if sym is None:
        return _without_symmetry(networks, geometry, space)
    if space is not None:
        raise InputError("space is given, and a symmetry, which says where networks are; expected one of them")
    if leading(sym, networks, "the networks") is None:
        raise InputError("the networks are a single one; expected a leading axis of networks on every tensor")
    if reference is not None and order != "aligned":
        raise InputError(f"a reference is given, and order is {order!r}; expected 'aligned'")
    if geometry == "euclidean" and classifier:
        raise InputError("classifier is given, and geometry is 'euclidean', which keeps weights as large as they are")
    if geometry != "euclidean" and not sym.scaling:
        raise InputError(
            f"geometry is {geometry!r}, and the architecture has no scale symmetry, so that no unit is on a sphere; "
            f"expected 'euclidean'"
        )
    _require_finite(networks)
    if order == "aligned" and reference is None:
        reference = {name: tensor[0] for name, tensor in networks.items()}
    target = None
    if reference is not None:
        target = _formed(sym, geometry, "given", reference, None, classifier).params
    formed = _formed(sym, geometry, order, networks, target, classifier)
    offsets = {
        name: item.shift
        for name, item in sym.parameters.items()
        if item.shift and name in formed.params and not item.tied
    }
    params = _logarithms(offsets, formed.params)
    like = {name: tensor[0].detach().cpu() for name, tensor in params.items()}
    if geometry == "euclidean":
        own, last, factor = euclidean(like), (), 1.0
    else:
        last = formed.last
        known = {name: tensor for name, tensor in formed.params.items() if name in sym.parameters}
        own = Space(manifold(_group(sym, geometry, order), classifier=last, at=(known,)), like)
        if not own.curved:
            raise InputError(
                f"geometry is {geometry!r} with the order {order!r}, and matrices act on all units that have scales: "
                f"none is on a sphere; expected the symmetry sym.monomial, or geometry 'euclidean'"
            )
        factor = math.exp(float(formed.factor.double().log().mean())) if last else 1.0
        if geometry == "geometric" and any(int(item.sizes().min()) < 2 for item in own.manifold.spheres):
            raise InputError(
                "a unit has a single incoming weight, whose sphere is two points that no path joins; expected geometry "
                "'euclidean' or 'normalized'"
            )
    return Frame(sym, geometry, order, own, target, last, factor, offsets), own.project(own.rows(params))


def frame_of(frame: Frame, sym: Symmetry, like: Points) -> Frame:
    """The same frame for networks of another symmetry, of which one is ``like``; units stand in the order given."""
    stack = {name: tensor.detach()[None] for name, tensor in like.items()}
    made, _ = make_frame(
        sym, stack, geometry=frame.geometry, order="given", classifier=bool(frame.last), reference=None, space=None
    )
    return replace(made, factor=frame.factor)


def _without_symmetry(networks: Points, geometry: str, space: Space | None) -> tuple[Frame, Tensor]:
    if not isinstance(networks, Mapping) or not networks:
        raise InputError(f"the points are a {type(networks).__name__}; expected tensors by name, (N, …) each")
    _require_finite(networks)
    own = euclidean({name: tensor[0] for name, tensor in networks.items()}) if space is None else space
    if geometry != "euclidean" and not own.curved:
        raise InputError(f"geometry is {geometry!r}, and no coordinates are on spheres; expected 'euclidean'")
    rows = own.rows(networks)
    if rows.ndim != 2:
        raise InputError(f"the points have {rows.ndim - 1} leading axes; expected one")
    if own.curved and not own.manifold.check(networks):
        raise InputError("the points are not on the spheres of the space; expected norms that are their radii")
    return Frame(None, geometry, "given", own if geometry != "euclidean" else own.flat), rows


def _group(sym: Symmetry, geometry: str, order: str) -> Symmetry:
    """What of the group the frame removes: matrices scale, so that scales go where they act."""
    kept = geometry == "euclidean" and not sym.continuous and not sym.turns
    own = sym.restrict(scales=False) if kept else sym
    return own.restrict(permutations=False, signs=False) if order == "given" else own


def _require_finite(networks: Points) -> None:
    for name, tensor in networks.items():
        if tensor.is_floating_point() and tensor.ndim:
            usable = torch.isfinite(tensor.detach()).reshape(len(tensor), -1).all(1)
            if not bool(usable.all()):
                bad = int((~usable).nonzero()[0])
                raise InputError(
                    f"network {bad} has weights that are NaN or infinite in '{name}'; expected finite numbers"
                )


def _logarithms(offsets: Mapping[str, float], params: Points) -> dict[str, Tensor]:
    """Parameters with log(v + ε) in place of variances v."""
    found = dict(params)
    for name, offset in offsets.items():
        moved = found[name] + offset
        if not bool((moved > 0).all()):
            raise InputError(f"'{name}' has {float(found[name].min()):g}, a variance that is negative even with its ε")
        found[name] = moved.log()
    return found


class _Formed:
    """Networks in a gauge: as canonical forms have them, or as they were given."""

    def __init__(self, params: Points, last: tuple[str, ...], factor: Tensor) -> None:
        self.params, self.last, self.factor = params, last, factor


def _formed(
    sym: Symmetry, geometry: str, order: str, networks: Points, reference: Points | None, classifier: bool | str
) -> Any:
    if geometry == "euclidean" and order == "given":
        return _Formed(dict(networks), (), torch.ones(()))
    return canonicalize(_group(sym, geometry, order), networks, reference, classifier=classifier)
