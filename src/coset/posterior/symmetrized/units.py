"""Which entries of the weights belong to which unit of the class that permutes, and how well units fit each other."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._magnitudes import exponent, scaled
from coset.distribution import Normal
from coset.distribution.density import vector
from coset.distribution.ties import ties
from coset.errors import InputError
from coset.symmetry import Element, Symmetry
from coset.symmetry.action import check_names, check_tensor
from coset.symmetry.incidence import appearances, rows_along, together

LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True, eq=False)
class Unknowns:
    """What a mean-field q is over, as vectors in float64: ``mean`` and ``std`` (D,), names one after the other.

    Tied weights stand once, points and buffers without deviations not at all.
    """

    names: tuple[str, ...]
    like: Mapping[str, Tensor]
    mean: Tensor
    std: Tensor

    def vector(self, params: Mapping[str, Tensor]) -> Tensor:
        """Weights, possibly behind leading sample axes, as (…, D)."""
        return vector(params, self.names, self.like).to(self.mean)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draws m + s·ε of q, (count, D)."""
        shape = (count, len(self.mean))
        noise = torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)
        return self.mean + self.std * noise.to(self.mean)

    def entropy(self) -> Tensor:
        """H(q) in nats."""
        return self.std.log().sum() + 0.5 * len(self.std) * (1 + LOG_2PI)


def unknowns(q: Normal) -> Unknowns:
    """The random weights of q, which must be independent of each other; an InputError if it has no density."""
    if not isinstance(q, Normal) or not q.independent:
        raise InputError(f"q is a {type(q).__name__}; expected a MeanField")
    q.entropy()  # Says what is wrong where there is no density.
    first = ties(q.mean)
    spread = {first[name]: deviation for name, deviation in q.std.items()}
    names = q.random_names
    mean, std = (vector(part, names, q.mean).double() for part in (q.mean, spread))
    return Unknowns(names, q.mean, mean, std.to(mean.device))


@dataclass(frozen=True, eq=False)
class UnitEntries:
    """The entries of a weight vector by unit: ``owned`` (n, K), row i those of unit i in an order all rows share.

    A permutation p of the class takes row i of the new network from row p[i] of the old one and leaves ``free`` (F,) in
    place.
    """

    name: str
    owned: Tensor
    free: Tensor

    @property
    def units(self) -> int:
        """n, the number of units."""
        return len(self.owned)


def permuting_class(sym: Symmetry) -> str:
    """The name of the one class whose units permute; classes of one unit do not count beside others."""
    orders = {name: sym.shape(name) for name in sym.permuting}
    names = [name for name, shape in orders.items() if shape[-1] > 1] or list(orders)[:1]
    if len(names) != 1:
        found = ", ".join(names) or "none"
        raise InputError(
            f"sym permutes the classes: {found}; expected one class (see Symmetry.restrict), or method='enumeration'"
        )
    if math.prod(orders[names[0]][:-1]) > 1:
        raise InputError(
            f"the class '{names[0]}' has blocks that permute each on its own, {orders[names[0]]}; expected one block"
        )
    return names[0]


def unit_entries(sym: Symmetry, name: str, like: Mapping[str, Tensor], names: Sequence[str]) -> UnitEntries:
    """The entries of the named parameters, one after the other as a vector, by the unit of class ``name`` they are of.

    An entry of two units (a class on both axes of a matrix) is an InputError: a sum over permutations is no permanent.
    """
    check_names(sym, {key: like[key] for key in names}, partial=True)
    owned, free, start = [], [], 0
    for key in names:
        check_tensor(key, like[key], sym.parameters[key].shape)
        if _is_shared(sym, name, key):
            raise InputError(
                f"'{key}' has entries that belong to two units of the class '{name}'; expected at most one "
                f"(method='enumeration' allows any)"
            )
        count = like[key].numel()
        rows = _rows(sym, name, key)
        own = torch.zeros(count, dtype=torch.bool)
        own[rows.reshape(-1)] = True
        owned.append(rows + start)
        free.append((~own).nonzero().reshape(-1) + start)
        start += count
    return UnitEntries(name, torch.cat(owned, 1), torch.cat(free))


def is_separable(sym: Symmetry, name: str, names: Sequence[str]) -> bool:
    """Whether the class is one block and each entry of the named parameters is of at most one of its units."""
    return math.prod(sym.shape(name)[:-1]) == 1 and not any(_is_shared(sym, name, key) for key in names)


def exchange(sym: Symmetry, name: str, units: tuple[int, int]) -> Element:
    """The element that exchanges two units of one block, numbered over all blocks."""
    shape = sym.shape(name)
    order = torch.arange(shape[-1]).repeat(math.prod(shape[:-1]))
    i, j = units
    order[i], order[j] = j % shape[-1], i % shape[-1]
    return sym.element({name: order.reshape(shape)})


def _is_shared(sym: Symmetry, name: str, key: str) -> bool:
    """Whether an entry of a parameter belongs to two units of a class."""
    pairs = itertools.combinations(appearances(sym, key, name), 2)
    return any(here is not there or together(one, two) for (here, one), (there, two) in pairs)


def _rows(sym: Symmetry, name: str, key: str) -> Tensor:
    """(n, entries of a unit): the places of each unit's entries in a parameter, flat, in an order all units share."""
    units = torch.arange(sym.classes[name].size)[:, None]
    found = list(appearances(sym, key, name))
    if not found:
        return units[:, :0]
    # A position of unit 0 stands for unit j when it is moved by j strides.
    first = [((item.unit == 0).nonzero().reshape(-1), item.stride) for _, item in found]
    places = torch.cat([start + units * stride[start] for start, stride in first], 1)
    structure, (stretch, _) = sym.structures[key], found[0]
    return rows_along(torch.arange(math.prod(structure.sizes)), structure, stretch)[places].flatten(1)


def pair_matrix(sym: Symmetry, q: Normal, omega: Mapping[str, Tensor]) -> Tensor:
    """A_ij = log N(ν_i; μ_j, diag s_j²): unit i of the weights ω under unit j of q; ω (…) gives (…, n, n), in float64.

    ν_i are the entries of ω that belong to unit i of the one class that permutes: incoming weights, bias, outgoing
    weights. With r the entries of no unit and p the permutation of g, log q(g⁻¹·ω) = log q(r) + Σ_i A_{i,p[i]}: the
    mean over g is a permanent. Differentiable in ω, means and deviations.
    """
    over = unknowns(q)
    entries = unit_entries(sym, permuting_class(sym), q.mean, over.names)
    return unit_log_probs(entries.owned.to(over.mean.device), over.vector(omega), over.mean, over.std)


def unit_log_probs(owned: Tensor, x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """A_ij = log N(x[owned_i]; mean[owned_j], std[owned_j]²), (…, n, n), of x (…, D) and places (n, k) by unit."""
    return compared(x[..., owned], mean[owned], std[owned])


def compared(units: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """A_ij = log N(units_i; mean_j, diag std_j²), (…, n, n), of rows (…, n, k) each.

    −½ [ν²·s⁻² − 2 ν·(μ s⁻²) + μ²·s⁻² + Σ log 2πs²], by two products. All is centred at the mean of the units' means
    first, so that the square loses less when it is taken apart.
    """
    centre = mean.detach().mean(-2, keepdim=True)
    # Of numbers whose squares are numbers; only the logarithm has a unit.
    by = exponent(mean, std)
    near, moved = scaled(units - centre, by), scaled(mean - centre, by)
    precision = scaled(std, by).square().reciprocal()
    constant = (moved.square() * precision).sum(-1) + 2 * std.log().sum(-1) + LOG_2PI * units.shape[-1]
    return near @ (moved * precision).mT - 0.5 * (near.square() @ precision.mT + constant[..., None, :])


def normal_log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log N(x; m, diag s²) summed over the last axis."""
    return torch.sum(-0.5 * ((x - mean) / std).square() - std.log() - 0.5 * LOG_2PI, -1)
