"""``manifold``: on which spheres the canonical weights of a discovered model are (thesis, sections 3.3 and 4.4)."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coset._checks import check_choice
from coset._values import ties
from coset.errors import InputError
from coset.geometry._layout import Spheres, laid_out
from coset.geometry._manifold import Manifold
from coset.geometry.scales import BIASES, counted, with_norms
from coset.symmetry.incidence import unit_labels
from coset.symmetry.symmetry import Symmetry


def manifold(
    sym: Symmetry,
    *,
    bias: str = "outside",
    classifier: str | Sequence[str] = (),
    at: Sequence[Mapping[str, Tensor]] = (),
) -> Manifold:
    """The product of spheres and of a Euclidean space on which canonical weights of a model are.

    For every family of scales that norms settle (``normalize_scales``, ``canonicalize``) the incoming weights of each
    unit are on a unit sphere: those parameters with power +1 that have the most axes and hold the unit, with the bias
    "inside" all of them. ``classifier``: names of the last layer's parameters, of which the weight is on one sphere of
    radius √C, C its number of rows. All else is Euclidean: biases, later writers of a stream, buffers that move. Where
    matrices act on a class (``sym.continuous``), GL(n) is balanced and gains are folded, so that norms of its units,
    and of those that read what GL(n) mixes, are not settled: these families are Euclidean, too, but not for
    ``sym.monomial``.

    ``at``: points at which units that vanish are known. Units whose weights are 0 at all of these are measured by the
    parameters with fewer axes, as in ``normalize_scales``, and are Euclidean if these are 0 as well; weights that share
    memory there count once; whole numbers are no coordinates, and complex ones count twice in dimensions.
    """
    check_choice("bias", bias, BIASES)
    names = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    tied = {name: item.tied for name, item in sym.parameters.items() if item.tied is not None}
    if at:
        tied |= {name: first for name, first in ties(*at).items() if name in sym.parameters and name != first}
    shapes = {
        name: item.shape
        for name, item in sym.parameters.items()
        if name not in tied and (item.moves or not item.buffer) and all(_has_digits(point, name) for point in at)
    }
    found = []
    for key, ranks in with_norms(sym)[0]:
        known = [[name for name in rank if name in shapes] for rank in ranks]
        ordered = counted(sym, known, bias)
        labels = _labels(sym, key, ordered, at)
        if labels and not _balanced(sym, key, labels):
            found.append(laid_out(key, labels))
    if names:
        found.append(_last(sym, names, shapes))
    fixed = tuple(name for name in (*sym.parameters, *sym.unsaved) if name not in shapes and name not in tied)
    kinds = frozenset(name for name in shapes if any(name in point and point[name].is_complex() for point in at))
    return Manifold(tuple(found), shapes, tied, fixed, kinds)


def _has_digits(point: Mapping[str, Tensor], name: str) -> bool:
    return name not in point or point[name].is_floating_point() or point[name].is_complex()


def _labels(sym: Symmetry, key: str, ranks: list[list[str]], at: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The parameters that units of a family are measured by: name → the unit of each entry, −1 for none.

    Of each unit the first rank in which it has entries, or entries that are not 0 at all points.
    """
    family = sym.families[key]
    known = torch.zeros(math.prod(sym.shape(family.owner)), dtype=torch.bool)
    found: dict[str, Tensor] = {}
    for rank in ranks:
        labels = {name: unit_labels(sym, name, family) for name in rank}
        here = torch.zeros_like(known)
        for name, label in labels.items():
            present = label >= 0
            if at:
                present &= torch.stack([_nonzero(point, name, label.ndim) for point in at]).any(0)
            here[label[present]] = True
        new = here & ~known
        known |= here
        for name, label in labels.items():
            own = torch.where((label >= 0) & new[label], label, -1)
            if bool((own >= 0).any()):
                found[name] = own
    return found


def _nonzero(point: Mapping[str, Tensor], name: str, ndim: int) -> Tensor:
    """Which entries of a parameter are not 0 in any network of a stack."""
    if name not in point:
        raise InputError(f"a point in at has no '{name}'; expected all parameters of the symmetry")
    found = (point[name].detach() != 0).cpu()
    return found.reshape(-1, *found.shape[found.ndim - ndim :]).any(0)


def _balanced(sym: Symmetry, key: str, labels: Mapping[str, Tensor]) -> bool:
    """Whether matrices settle what a family's norms would: they mix its class or what its weights read, or its
    parameters are gains that are folded.
    """
    if sym.families[key].owner in sym.continuous:
        return True
    return any(
        name in mixing.gains or (mixing.kind == "general" and name in mixing.places)
        for mixing in sym.continuous.values()
        for name in labels
    )


def _last(sym: Symmetry, names: tuple[str, ...], shapes: Mapping[str, tuple[int, ...]]) -> Spheres:
    """The sphere of the last layer's weight."""
    if unknown := [name for name in names if name not in shapes]:
        raise InputError(f"classifier names '{unknown[0]}', which is no parameter; expected those of the last layer")
    weights = [name for name in names if len(shapes[name]) >= 2]
    if len(weights) != 1:
        raise InputError(
            f"classifier names {', '.join(map(repr, names))}; expected one weight of two axes or more, and perhaps a "
            f"bias"
        )
    (name,) = weights
    # Of a transposed weight the outputs are not the first axis; the bias has one entry for each.
    classes = next((shapes[other][0] for other in names if other != name), shapes[name][0])
    return laid_out(name, {name: torch.zeros(shapes[name], dtype=torch.long)}, math.sqrt(classes))
