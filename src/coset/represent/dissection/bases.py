"""Bases between the units of a layer and a rotation of them: Q^t, the shortest way from the identity to Q."""

import math
from collections.abc import Sequence

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset._checks import check_count, is_number
from coset.errors import InputError
from coset.symmetry.mixing import random_rotation


def special_rotation(channels: int, generator: torch.Generator) -> Tensor:
    """A uniform rotation of determinant 1, (C, C) in float64: of an element of O(C) with −1, one row is turned over."""
    check_count("channels", channels)
    rotation = random_rotation(channels, generator)
    if torch.linalg.det(rotation) < 0:
        rotation[0] = -rotation[0]
    return rotation


def rotation_powers(rotation: Tensor, powers: Sequence[float]) -> Tensor:
    """Q^t = exp(t log Q) for each t of ``powers``, (T, C, C) in float64; Q orthogonal with determinant 1.

    Q is a turn by angles θ in planes that are orthogonal to each other (its real Schur form), Q^t the turn by tθ with
    θ in [−π, π]: between t = 0, the units themselves, and t = 1 the shortest way in SO(C) (Bau et al. 2017, fig. 5;
    Godfrey et al. 2022, section 6). Eigenvalues −1, of which there is an even number, are paired to half turns. Q^0
    and Q^1 are exact.
    """
    checked = _check_rotation(rotation)
    planes, angles = _turns(checked.numpy())
    found = []
    for power in powers:
        if not is_number(power):
            raise InputError(f"powers holds {power!r}; expected finite numbers")
        if power in (0, 1):
            found.append(torch.eye(len(checked), dtype=torch.float64) if power == 0 else checked)
        else:
            found.append(torch.from_numpy(_turned(planes, power * angles)))
    if not found:
        raise InputError("powers is empty; expected at least one")
    return torch.stack(found)


def _check_rotation(rotation: Tensor) -> Tensor:
    if not isinstance(rotation, Tensor) or rotation.ndim != 2 or rotation.shape[0] != rotation.shape[1]:
        found = tuple(rotation.shape) if isinstance(rotation, Tensor) else type(rotation).__name__
        raise InputError(f"rotation is {found}; expected a square matrix")
    wide = rotation.detach().to("cpu", torch.float64)
    gap = float((wide @ wide.mT - torch.eye(len(wide), dtype=torch.float64)).abs().max())
    # What rounding leaves depends on the type that Q was computed in; NaN is not orthogonal, either.
    allowed = math.sqrt(torch.finfo(rotation.dtype if rotation.is_floating_point() else wide.dtype).eps)
    if not gap <= allowed:
        raise InputError(f"rotation is not orthogonal: QQᵀ differs from 1 by {gap:.1e}; expected an orthogonal matrix")
    if torch.linalg.det(wide) < 0:
        raise InputError("rotation has determinant −1: no way leads to it from the identity; expected determinant 1")
    return wide


Array = NDArray[np.float64]


def _turns(rotation: Array) -> tuple[Array, Array]:
    """Q in its planes: an orthogonal basis (C, C), of which columns 2j and 2j + 1 turn by angle j of (⌈C/2⌉,).

    The last column is alone if C is odd, and stays.
    """
    form, basis = scipy.linalg.schur(rotation, output="real")
    pairs: list[tuple[int, int]] = []
    angles: list[float] = []
    straight: list[int] = []
    turned: list[int] = []
    place = 0
    while place < len(form):
        # Blocks of one and of two: what stands below the diagonal is 0 or the sine of an angle.
        if place + 1 < len(form) and form[place + 1, place] != 0:
            block = form[place : place + 2, place : place + 2]
            pairs.append((place, place + 1))
            angles.append(math.atan2(block[1, 0] - block[0, 1], block[0, 0] + block[1, 1]))
            place += 2
        else:
            (straight if form[place, place] > 0 else turned).append(place)
            place += 1
    for group, angle in ((turned, math.pi), (straight, 0.0)):
        pairs += list(zip(group[::2], group[1::2], strict=False))
        angles += [angle] * (len(group) // 2)
    columns = [column for pair in pairs for column in pair] + straight[len(straight) // 2 * 2 :]
    return basis[:, columns], np.array([*angles, *[0.0] * (len(columns) % 2)])


def _turned(planes: Array, angles: Array) -> Array:
    """Z R(θ) Zᵀ: the turn by these angles in these planes."""
    each = np.repeat(angles, 2)[: planes.shape[1]]
    # R takes (x, y) to (x cos θ − y sin θ, x sin θ + y cos θ).
    partner = np.zeros_like(planes)
    partner[:, 0 : 2 * (planes.shape[1] // 2) : 2] = planes[:, 1::2]
    partner[:, 1::2] = -planes[:, 0 : 2 * (planes.shape[1] // 2) : 2]
    result: Array = (planes * np.cos(each) + partner * np.sin(each)) @ planes.T
    return result
