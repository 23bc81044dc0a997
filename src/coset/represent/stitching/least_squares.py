"""The best maps between two sets of features in closed form, one for each family of maps.

For features X (n, C) and Y (n, D), rows are examples and positions, all minimise ‖X Mᵀ − Y‖² over their family, from
the products XᵀX, YᵀX alone (and the means, if there is a bias).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._magnitudes import exponent, scaled, squares_hold
from coset.alignment.assignment import assign
from coset.errors import InputError
from coset.represent.stitching.birkhoff import permutation_matrix

LEAST_SCALE = torch.finfo(torch.float32).eps
"""So small a part of the others stands in place of a scale of 0, which is no element of the group."""


@dataclass(frozen=True)
class Products:
    """Sums over rows, in float64: ``xx`` = XᵀX (C, C), ``yx`` = YᵀX (D, C), ``x`` (C) and ``y`` (D), ``count`` rows."""

    xx: Tensor
    yx: Tensor
    x: Tensor
    y: Tensor
    count: int

    def __add__(self, other: "Products") -> "Products":
        return Products(
            self.xx + other.xx, self.yx + other.yx, self.x + other.x, self.y + other.y, self.count + other.count
        )

    def centred(self) -> "Products":
        """The products of X and Y with their means taken off."""
        xx = self.xx - torch.outer(self.x, self.x) / self.count
        yx = self.yx - torch.outer(self.y, self.x) / self.count
        return Products(xx, yx, torch.zeros_like(self.x), torch.zeros_like(self.y), self.count)


def products(pairs: Iterable[tuple[Tensor, Tensor]]) -> Products:
    """The products of batches of rows X (n, C) and Y (n, D), summed."""
    total: Products | None = None
    largest = 0.0
    for x, y in pairs:
        if len(x) != len(y):
            raise InputError(f"features have {len(x)} and {len(y)} rows; expected as many positions in both networks")
        x, y = x.double(), y.double()
        largest = max(largest, float(torch.linalg.vector_norm(x, torch.inf)))
        part = Products(x.T @ x, y.T @ x, x.sum(0), y.sum(0), len(x))
        total = part if total is None else total + part
    if total is None:
        raise InputError("there are no features; expected at least one batch")
    if largest > 0 and not bool(squares_hold(total.xx.diagonal().sum())):
        raise InputError(
            f"the features that are mapped are as large as {largest:.3g}, whose square float64 does not hold; expected "
            f"numbers nearer to 1"
        )
    return total


def full_map(known: Products) -> Tensor:
    """M = YᵀX (XᵀX)⁺ (D, C); of all minimisers the smallest."""
    inverse: Tensor = torch.linalg.pinv(known.xx, hermitian=True)
    return known.yx @ inverse


def low_rank_map(known: Products, rank: int) -> tuple[Tensor, Tensor]:
    """The factors (D, r) and (r, C) of the best map of rank ≤ r: reduced-rank regression.

    With M the full map and U_r the leading r eigenvectors of the fitted M XᵀX Mᵀ, it is U_r · U_rᵀM.
    """
    full = full_map(known)
    _, vectors = torch.linalg.eigh(full @ known.xx @ full.T)
    leading = vectors[:, vectors.shape[1] - min(rank, vectors.shape[1]) :]
    return leading, leading.T @ full


def orthogonal_map(known: Products) -> Tensor:
    """The polar factor of YᵀX (D, C): orthogonal Procrustes."""
    return polar(known.yx)


def monomial_map(known: Products, *, scales: bool = True) -> tuple[Tensor, Tensor]:
    """The permutation P (C, C) and the scales d > 0 (C) of the best map P·diag(d).

    Output i reads input p_i with d = max(0, ⟨y_i, x_j⟩)/‖x_j‖², j = p_i, which takes max(0, ⟨y_i, x_j⟩)²/‖x_j‖² off the
    squared distance; without scales 2⟨y_i, x_j⟩ − ‖x_j‖². The best p is an assignment. An input that is 0 has scale 1;
    where d would be 0, which only the closure of the group has, it is ``LEAST_SCALE`` times the median of the others.
    """
    energy = known.xx.diagonal()
    if scales:
        # The best order has no unit: squares of products are of ordinary numbers.
        product, own = (scaled(part, exponent(part)) for part in (known.yx.relu(), energy))
        gain = product.square() / torch.where(own > 0, own, torch.ones_like(own))
        gain = torch.where(energy > 0, gain, torch.zeros_like(gain))
    else:
        gain = 2 * known.yx - energy
    order = torch.from_numpy(assign(gain.cpu().numpy())).to(gain.device)
    matched = known.yx[torch.arange(len(order)), order].relu()
    d = torch.ones_like(energy)
    if scales:
        live = energy[order] > 0
        found = matched[live] / energy[order[live]]
        positive = found[found > 0]
        least = LEAST_SCALE * (float(positive.median()) if len(positive) else 1.0)
        d[order[live]] = torch.where(found > 0, found, least)
    return permutation_matrix(order, energy.dtype), d


def polar(matrix: Tensor) -> Tensor:
    """The nearest matrix with orthonormal rows or columns: U Vᵀ of the singular value decomposition U S Vᵀ."""
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    orthonormal: Tensor = u @ v
    return orthonormal
