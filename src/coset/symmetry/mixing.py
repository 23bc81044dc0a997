"""Classes that may be mixed by matrices and not only permuted: only linear maps and norms see them.

The units h of such a class become A·h in every block (Godfrey et al. 2022: the intertwiner group of the identity is
GL(n)). Writers are multiplied by A, readers by A⁻¹ from the right, which along their axis is A⁻ᵀ; behind a gain γ the
class stands in the frame B = diag(γ)·A·diag(γ)⁻¹, and γ stays.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset._values import Frozen, transformed_by_functorch
from coset.errors import InputError
from coset.symmetry.incidence import appearances, unit_order, unit_rows
from coset.symmetry.pairs import rotations, turned
from coset.symmetry.structure import Appearance, Stretch, Structure

if TYPE_CHECKING:
    from coset.symmetry.element import Element
    from coset.symmetry.symmetry import Symmetry

KINDS = ("general", "orthogonal", "centred", "rotary")
"""GL(n); O(n), where norms see the class; O(n − 1), the rotations that leave the line of 1, where means do, too; U(1)ⁿ,
a rotation of the plane for every unit, where units are pairs of coordinates (``coset.symmetry.pairs``)."""


@dataclass(frozen=True)
class Mixed:
    """One appearance of a class on a parameter: ``way`` is 1 for A, −1 for A⁻ᵀ, 0 where entries stay (gains).

    ``gains``: the parameters γ in whose frame it stands.
    """

    way: int
    gains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mixing:
    """A ``kind`` of matrices, one in every block of a class, and how parameters are multiplied by them.

    ``places``: parameter → its appearances of the class, in order; for the kind "rotary", which has a matrix for every
    unit, each stands for the two coordinates of the pairs.
    """

    kind: str
    places: Mapping[str, tuple[Mixed, ...]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", Frozen(self.places))

    @property
    def gains(self) -> tuple[str, ...]:
        """The parameters behind which the class is mixed."""
        return tuple(dict.fromkeys(gain for places in self.places.values() for place in places for gain in place.gains))

    def named(self, n: int) -> str:
        """The name of the group of these matrices of n rows."""
        names = {"general": f"GL({n})", "orthogonal": f"O({n})", "centred": f"O({n - 1})", "rotary": f"U(1)^{n}"}
        return names[self.kind]

    def dimension(self, n: int) -> int:
        """The dimension of the group of these matrices of n rows."""
        sizes = {"general": n * n, "orthogonal": n * (n - 1) // 2, "centred": (n - 1) * (n - 2) // 2, "rotary": n}
        return sizes[self.kind]


def matrices_shape(sym: "Symmetry", name: str) -> tuple[int, ...]:
    """The shape of the matrices of a class: (blocks…, n, n), and (blocks…, n, 2, 2) for n pairs that turn."""
    shape = sym.shape(name)
    return (*shape, 2, 2) if sym.continuous[name].kind == "rotary" else (*shape, shape[-1])


def random_matrices(kind: str, shape: tuple[int, ...], generator: torch.Generator, spread: float) -> Tensor:
    """Matrices of ``shape`` (…, n, n): Haar on O(n), O(n − 1) and U(1); O·diag(exp(spread·N(0, 1)))·O on GL(n)."""
    n = shape[-1]
    if kind == "rotary":
        uniform = torch.rand(shape[:-2], generator=generator, dtype=torch.float64, device=generator.device)
        return rotations(2 * math.pi * uniform)

    def haar(size: int) -> Tensor:
        return random_rotation(size, generator, shape[:-2])

    if kind == "orthogonal":
        return haar(n)
    if kind == "centred":
        basis = centred_basis(n).to(generator.device)
        return basis @ haar(n - 1) @ basis.T + random_rotation(1, generator, shape[:-2]) / n
    left = haar(n)
    normal = torch.randn(*shape[:-1], generator=generator, dtype=torch.float64, device=generator.device)
    return left * torch.exp(spread * normal)[..., None, :] @ haar(n)


def random_rotation(n: int, generator: torch.Generator, blocks: tuple[int, ...] = ()) -> Tensor:
    """Uniform elements of O(n), (blocks…, n, n) in float64: orthogonal factors of Gaussian matrices, the diagonals of
    the other factors positive.
    """
    normal = torch.randn(*blocks, n, n, generator=generator, dtype=torch.float64, device=generator.device)
    q, r = torch.linalg.qr(normal)
    signed: Tensor = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    return signed


def centred_basis(n: int) -> Tensor:
    """An orthonormal basis of the vectors that sum to 0, (n, n − 1): the Helmert contrasts."""
    rows = torch.arange(1, n, dtype=torch.float64)
    basis = torch.tril(torch.ones(n - 1, n, dtype=torch.float64))
    basis[torch.arange(n - 1), torch.arange(1, n)] = -rows
    return (basis / (rows * (rows + 1)).sqrt()[:, None]).T


def check_matrices(sym: "Symmetry", g: "Element") -> None:
    """Raise unless matrices are those of classes that mix, of the right shapes and kinds; absent ones are 1."""
    for name, matrix in g.matrices.items():
        if name not in sym.continuous:
            known = ", ".join(sym.continuous) or "none"
            raise InputError(f"the matrix of '{name}' is not free in this symmetry; classes that mix: {known}")
        wanted = matrices_shape(sym, name)
        if tuple(matrix.shape) != wanted:
            raise InputError(f"the matrix of '{name}' has shape {tuple(matrix.shape)}; expected {wanted}")
        kind = sym.continuous[name].kind
        if kind == "general" or transformed_by_functorch(matrix):
            continue
        wide = matrix.detach().double()
        # Products and inverses of such matrices in single precision are still members.
        bound = wanted[-1] * (1e-8 if matrix.dtype == torch.float64 else 1e-4)
        one = torch.eye(wanted[-1], dtype=torch.float64, device=matrix.device)
        if not bool(((wide.mT @ wide - one).abs() < bound).all()):
            raise InputError(f"the matrix of '{name}' is not orthogonal")
        means = wide.sum(-1)
        if kind == "centred" and not bool(((means - means[..., :1].sign()).abs() < bound).all()):
            raise InputError(f"the matrix of '{name}' does not leave the mean of the units, up to its sign")
        if kind == "rotary" and not bool((torch.linalg.det(wide) > 0).all()):
            raise InputError(f"the matrix of '{name}' reflects pairs; expected rotations")


def mix(sym: "Symmetry", matrices: Mapping[str, Tensor], params: dict[str, Tensor]) -> None:
    """Multiply parameters by the matrices of every class; tensors that were one stay one.

    The tensors of the dict are replaced one after the other, so that there are never two of all.
    """
    for name, matrix in matrices.items():
        same: dict[tuple[object, ...], list[str]] = {}
        for parameter, places in sym.continuous[name].places.items():
            if parameter in params:
                key = (id(params[parameter]), places, id(sym.structures[parameter]))
                same.setdefault(key, []).append(parameter)
        for names in same.values():
            moved = _through(sym, name, names[0], sym.continuous[name].places[names[0]], matrix, params)
            params.update(dict.fromkeys(names, moved))


def _through(
    sym: "Symmetry",
    name: str,
    parameter: str,
    places: tuple[Mixed, ...],
    matrix: Tensor,
    params: Mapping[str, Tensor],
) -> Tensor:
    tensor = params[parameter]
    if sym.continuous[name].kind == "rotary":
        return turned(sym, name, parameter, tensor, matrix)
    found = list(appearances(sym, parameter, name))
    blocks = matrix.reshape(-1, *matrix.shape[-2:]).to(tensor.device)
    for (stretch, item), place in zip(found, places, strict=True):
        if place.way:
            # Of a rotation A⁻ᵀ is A itself.
            turns = sym.continuous[name].kind != "general"
            own = blocks if place.way > 0 or turns else torch.linalg.inv(blocks).mT
            for gain in place.gains:
                along = _gain(sym, name, gain, params).to(own)
                # B = γAγ⁻¹ and B⁻ᵀ = γ⁻¹A⁻ᵀγ
                left, right = (along, 1 / along) if place.way > 0 else (1 / along, along)
                own = left[..., :, None] * own * right[..., None, :]
            lead = tensor.ndim - len(sym.parameters[parameter].shape)
            tensor = _multiplied(tensor, lead, sym.structures[parameter], stretch, item, own)
    return tensor


def _gain(sym: "Symmetry", name: str, gain: str, params: Mapping[str, Tensor]) -> Tensor:
    """The values of a gain at the units of a class, (blocks, n)."""
    if gain not in params:
        raise InputError(f"'{gain}' is not among the parameters given; the units of '{name}' are mixed in its frame")
    tensor = params[gain].detach()
    if tuple(tensor.shape) != sym.parameters[gain].shape:
        raise InputError(f"'{gain}' has shape {tuple(tensor.shape)}: matrices act on single networks, not on stacks")
    if bool((tensor == 0).any()):
        raise InputError(f"'{gain}' has entries that are 0: the units of '{name}' cannot be mixed behind it")
    ((_, item),) = appearances(sym, gain, name)
    flat, n = tensor.reshape(-1), sym.shape(name)[-1]
    values = flat.new_empty(math.prod(sym.shape(name)))
    values[item.unit.to(flat.device)] = flat
    return values.reshape(-1, n)


def units_of_parameter(sym: "Symmetry", name: str, parameter: str, tensor: Tensor) -> list[tuple[Mixed, Tensor]]:
    """How each appearance of a class on a parameter is mixed, and its entries there: (blocks, n, all else)."""
    shape, places = sym.shape(name), sym.continuous[name].places[parameter]
    found = list(appearances(sym, parameter, name))
    result = []
    for (stretch, item), place in zip(found, places, strict=True):
        rows, order, _ = unit_rows(tensor, 0, sym.structures[parameter], stretch, item)
        result.append((place, rows[order].reshape(math.prod(shape[:-1]), shape[-1], -1)))
    return result


def multiplied(sym: "Symmetry", name: str, parameter: str, tensor: Tensor, by: Mapping[int, Tensor]) -> Tensor:
    """A parameter with what writes a class multiplied by ``by[1]`` and what reads it by ``by[-1]``, gains left out.

    Each (blocks, n, n), any matrices.
    """
    found = list(appearances(sym, parameter, name))
    for (stretch, item), place in zip(found, sym.continuous[name].places[parameter], strict=True):
        if place.way:
            own = by[place.way].to(tensor.device)
            tensor = _multiplied(tensor, 0, sym.structures[parameter], stretch, item, own)
    return tensor


def _multiplied(
    tensor: Tensor, lead: int, structure: Structure, stretch: Stretch, item: Appearance, blocks: Tensor
) -> Tensor:
    """The tensor with the units of each block replaced by their combinations; ``blocks``: (B, n, n)."""
    order, count, n = unit_order(item), *blocks.shape[:2]
    # Half precision holds no rotation: products are taken in single, and rounded once.
    wide = torch.promote_types(tensor.dtype, torch.float32)
    first = stretch.dims[0]
    side_by_side = stretch.dims == tuple(range(first, first + len(stretch.dims)))
    if side_by_side and len(order) == stretch.size and bool((order[1:] > order[:-1]).all()):
        # All positions in order: nothing has to be gathered.
        before = math.prod(tensor.shape[:lead]) * math.prod(structure.sizes[:first])
        old, own = tensor.reshape(before, count, n, -1).to(wide), blocks.to(wide)
        new = (old[..., 0].transpose(0, 1) @ own.mT).transpose(0, 1) if old.shape[-1] == 1 else own @ old
        return new.to(tensor.dtype).reshape(tensor.shape).contiguous()
    rows, _, moved = unit_rows(tensor, lead, structure, stretch, item)
    order = order.to(tensor.device)
    old = rows[order].reshape(count, n, -1)
    new = (blocks.to(wide) @ old.to(wide)).to(rows.dtype)
    result = rows.index_copy(0, order, new.reshape(len(order), -1)).reshape(moved.shape)
    back = tuple(lead + dim for dim in stretch.dims)
    # In order, as every other part of an action leaves them: files hold such tensors only.
    return result.movedim(tuple(range(len(stretch.dims))), back).reshape(tensor.shape).contiguous()


def conjugated(sym: "Symmetry", source: Tensor, factor: Tensor, name: str, matrix: Tensor) -> Tensor:
    """G·M·G⁻¹ for the monomial G of a class: new unit i is old unit source[i], times factor[source[i]]; both (N,)."""
    if sym.continuous[name].kind == "rotary":  # a factor is common to both coordinates
        return matrix.reshape(-1, 2, 2)[source.to(matrix.device)].reshape(matrix.shape)
    n = sym.shape(name)[-1]
    old = matrix.reshape(-1, n, n)
    source, factor = source.to(matrix.device), factor.to(matrix)
    units = source.reshape(-1, n)
    picked = old[units[:, 0] // n][torch.arange(len(units))[:, None, None], units[:, :, None] % n, units[:, None] % n]
    d = factor[units]
    return (d[:, :, None] * picked / d[:, None]).reshape(matrix.shape)
