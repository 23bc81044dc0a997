"""Probes of rules of algebra: products, diagonals, distances, reductions, complex numbers."""

import torch
import torch.nn.functional as F
from probes import Probe, image, plain, tokens
from torch import Tensor

UNITS = {"a": (5, 4), "b": (3, 5)}
SECOND = {"c": (5, 4)}


def _times(x: Tensor, factor: Tensor, b: Tensor) -> Tensor:
    """A number for each row, times a linear map whose units are inputs and outputs."""
    return factor.reshape(-1, 1) * x @ b.T


def _number(function, classes="5", scales=0, signs=0, **shapes) -> Probe:
    """A number for each row as a function of hidden units, as a factor of a linear map b: 4 → 3."""
    return plain(lambda x, a, b, *rest: _times(x, function(x @ a.T, x, *rest), b), classes, scales, signs, b=(3, 4),
                 **shapes)  # fmt: skip


def _crossed(x: Tensor, a: Tensor, c: Tensor) -> Tensor:
    return (x @ a.T)[:, :, None] * (x @ c.T)[:, None, :]


def _complex(x: Tensor, w: Tensor) -> Tensor:
    """Complex units, of weights given as pairs."""
    return (x[:, None, :] * torch.view_as_complex(w)).sum(2)


PAIRS = {"w": (5, 4, 2)}

ALGEBRA: dict[str, list[Probe]] = {
    # Σ h_i k_i: units of both against each other, and both together against b.
    "vecdot": [
        _number(lambda h, x, c: torch.linalg.vecdot(h, x @ c.T), "5", 5 + 1, 5 + 1, **SECOND),
        # A weight over uᵀWv: rows of W with u, W alone, u against v, and what passes on to b.
        Probe(lambda x, w, u, v, b: x @ (w / torch.vdot(u, torch.mv(w, v))).T @ b.T, [(4,)],
              {"w": (5, 4), "u": (5,), "v": (4,), "b": (3, 5)}, plain(None, "5", 5 + 2, 5 + 2).group),
    ],
    "tensordot": [
        plain(lambda x, a, b: torch.tensordot(x @ a.T, b, dims=([1], [1]))),
        plain(lambda x, a, b: torch.inner(x @ a.T, b)),
    ],
    "multi_dot": [plain(lambda x, a, b: torch.linalg.multi_dot([x, a.T, b.T]))],
    "addmm": [
        tokens(lambda x, a, b, c: torch.addbmm(c, x @ a.T, b.T.expand(2, 5, 3)), "5", 5, 5, **UNITS, c=(3, 3)),
        # tanh: signs of units, in c and v; u against v.
        Probe(lambda x, c, u, v, b: torch.tanh(x @ torch.addr(c, u, v)) @ b.T, [(4,)],
              {"c": (4, 5), "u": (4,), "v": (5,), "b": (3, 5)}, plain(None, "5", 1, 5 + 1).group),
    ],
    "kron": [plain(lambda x, a, b, c: torch.kron(x @ a.T, c) @ b.T, "5 2", 7, 7, b=(3, 10), c=(1, 2))],
    # Three positions as coordinates: both factors have scales of their own.
    "cross": [tokens(lambda x, a, b, c: torch.linalg.cross(x @ a.T, x @ c.T, dim=1) @ b.T, "5", 10, 10, **UNITS,
                     **SECOND)],
    # Rows of the inverted matrix are columns of its inverse.
    "inverse": [
        Probe(lambda x, w, b: x @ torch.linalg.inv(w) @ b.T, [(4,)], {"w": (4, 4), "b": (3, 4)},
              plain(None, "4", 4, 4).group),
        Probe(lambda x, w, b: b @ torch.linalg.solve(w, x.T), [(4,)], {"w": (4, 4), "b": (3, 4)},
              plain(None, "4", 4, 4).group),
        # One matrix between the units of two layers, for all in the batch; and a vector behind it.
        tokens(lambda x, a, w, b: torch.linalg.solve(w, (x @ a.T).mT).mT @ b.T, "5 5", 10, 10, a=(5, 4), w=(5, 5),
               b=(3, 5)),
        Probe(lambda x, w, v, b: x * (b @ torch.linalg.solve(w, v)), [(4,)], {"w": (5, 5), "v": (5,), "b": (5,)},
              plain(None, "5 5", 10, 10).group),
    ],
    # The diagonal of h kᵀ is h·k.
    "diagonal": [
        plain(lambda x, a, b, c: _crossed(x, a, c).diagonal(dim1=1, dim2=2) @ b.T, "5", 10, 10, **SECOND),
        Probe(lambda x, u, v, b: torch.trace(torch.outer(u, v)) * x @ b.T, [(4,)],
              {"u": (5,), "v": (5,), "b": (3, 4)}, plain(None, "5", 5 + 1, 5 + 1).group),
    ],
    "explicit_einsum": [plain(lambda x, a, b, c: torch.einsum("bii->bi", _crossed(x, a, c)) @ b.T, "5", 10, 10,
                              **SECOND)],
    "embedded": [
        plain(lambda x, a, b: (x @ a.T).diag_embed().sum(1) @ b.T),
        plain(lambda x, a, b: torch.tanh((x @ a.T).diag_embed(0, 0, 1)).sum(1).T @ b.T, scales=0),
    ],
    # Units of a lower triangle keep their order and have their scales: before it, and as signs behind it.
    "triangle": [plain(lambda x, a, b, c: torch.tanh(x @ a.T @ c.tril()) @ b.T, "", 5, 5 + 5, c=(5, 5))],
    # Features flip in both together; the cosine's sign goes with b.
    "cosine_similarity": [
        _number(lambda h, x, c: F.cosine_similarity(h, x @ c.T), "5", 0, 5 + 1, **SECOND),
        # Without ε each of the two has a scale of its own.
        _number(lambda h, x, c: F.cosine_similarity(h, x @ c.T, eps=0.0), "5", 2, 5 + 1, **SECOND),
    ],
    # Six centres; features permute and flip in both, and have one scale, with b.
    "cdist": [plain(lambda x, a, b, c: torch.cdist(x @ a.T, c) @ b.T, "5 6", 1, 5, b=(3, 6), c=(6, 5))],
    "pdist": [_number(lambda h, x: F.pdist(h), "5", 1, 5)],
    "pairwise_distance": [
        _number(lambda h, x, c: F.pairwise_distance(h, x @ c.T), "5", 0, 0, **SECOND),
        _number(lambda h, x, c: F.pairwise_distance(h, x @ c.T, p=1.0, eps=0.0), "5", 1, 5, **SECOND),
    ],
    # Over three positions: the third power of a scale and of a sign.
    "product": [tokens(lambda x, a, b: (x @ a.T).prod(1) @ b.T, "5", 5, 5, **UNITS)],
    # One power of a scale at the first position, three at the last: none passes to a reader of all.
    "accumulated": [
        tokens(lambda x, a, b: (x @ a.T).cumprod(1) @ b.T, "5", 0, 0, **UNITS),
        tokens(lambda x, a, b: (x @ a.T).logcumsumexp(1) @ b.T, "5", 0, 0, **UNITS),
    ],
    "both_reduced": [
        _number(lambda h, x: torch.std_mean(h, 1)[0], "5", 1, 1),
        _number(lambda h, x: torch.aminmax(h, dim=1)[1], "5", 1, 0),
    ],
    "reduced": [
        # The spectral norm of each (positions × units).
        tokens(lambda x, a, b: _times(x[:, 0], torch.linalg.matrix_norm(x @ a.T, 2), b), "5", 1, 5, a=(5, 4),
               b=(3, 4)),
        # A count does not see scales; they end there.
        _number(lambda h, x: torch.relu(h).count_nonzero(1), "5", 5, 0),
    ],
    "added": [
        plain(lambda x, a, b, c: torch.clamp(x @ a.T, max=x @ c.T) @ b.T, signs=0, **SECOND),
        plain(lambda x, a, b, c: (torch.complex(x @ a.T, x @ c.T) * (2 + 1j)).real @ b.T, **SECOND),
    ],
    # Both sides of a comparison have one positive scale; it ends there. Equal they are whatever their sign.
    "compared": [
        plain(lambda x, a, b, c: (x @ a.T > x @ c.T).to(x.dtype) @ b.T, signs=0, **SECOND),
        plain(lambda x, a, b, c: (torch.relu(x @ a.T) == torch.relu(x @ c.T)).to(x.dtype) @ b.T, signs=0, **SECOND),
    ],
    "unmarked": [plain(lambda x, a, b, c: (((x @ a.T) > 0) & ((x @ c.T) > 0)).to(x.dtype) @ b.T, "5", 10, 0,
                       **SECOND)],
    # Along positions; a modulus does not see signs.
    "fourier": [
        tokens(lambda x, a, b: torch.fft.fft(x @ a.T, dim=1).abs() @ b.T, "5", 5, 5, **UNITS),
        image(lambda x, a, b: F.conv2d(torch.fft.irfft2(torch.fft.rfft2(F.conv2d(x, a))), b), "3", 3, 3,
              a=(3, 2, 1, 1), b=(1, 3, 1, 1)),
        tokens(lambda x, a, b: torch.fft.rfftn(x @ a.T, dim=(1,)).real @ b.T, "5", 5, 5, **UNITS),
    ],
    "pairs": [
        Probe(lambda x, w, b: torch.einsum("bcp,ocp->bo", torch.view_as_real(_complex(x, w)), b), [(4,)],
              {**PAIRS, "b": (3, 5, 2)}, plain(None).group),
    ],
    "part": [
        Probe(lambda x, w, b: _complex(x, w).imag @ b.T, [(4,)], {**PAIRS, "b": (3, 5)}, plain(None).group),
        Probe(lambda x, w, b: (_complex(x, w).conj() * _complex(x, w)).real @ b.T, [(4,)], {**PAIRS, "b": (3, 5)},
              plain(None).group),
    ],
    # 2·Re − Im: both parts have one scale and one sign.
    # r (cos φ + sin φ): r passes on, φ keeps what it is.
    "polar": [plain(lambda x, a, b, c: torch.view_as_real(torch.polar(x @ a.T, x @ c.T)).sum(2) @ b.T, **SECOND)],
    # A phase does not see positive scales; they end there.
    "angle": [tokens(lambda x, a, b: torch.fft.fft(x @ a.T, dim=1).angle() @ b.T, "5", 5, 0, **UNITS)],
}  # fmt: skip

# Where what is known of an operation ends, not the group: what is left, and the operation that is reported.
LIMITED: dict[str, tuple[Probe, str]] = {
    "steps": (Probe(lambda x, a, b: (x @ a.T)[:, ::2] @ b.T, [(4,)], {"a": (7, 4), "b": (3, 4)},
                    plain(None, "", 1, 1).group), "slice"),
    "units picked": (plain(lambda x, a, b: (x @ a.T).index_select(1, torch.tensor([3, 0, 0])) @ b.T, "", 1, 1,
                           b=(3, 3)), "index_select"),
    "units indexed": (plain(lambda x, a, b: (x @ a.T)[:, torch.tensor([3, 0, 0])] @ b.T, "", 1, 1, b=(3, 3)), "index"),
    "rolled units": (plain(lambda x, a, b: ((x @ a.T).roll(1, 1) * (x @ a.T)) @ b.T, "", 1, 1), "roll"),
    "flipped units": (plain(lambda x, a, b: torch.tanh((x @ a.T).flip(1)) @ b.T, "", 0, 1), "flip"),
    "summed units": (plain(lambda x, a, b: torch.zeros(2, 3).index_add(1, torch.tensor([0, 1, 1, 2, 0]), x @ a.T)
                           @ b.T, "", 1, 1, b=(3, 3)), "index_add"),
    "ranks and places": (plain(lambda x, a, b: torch.mul(*(x @ a.T).topk(3, 1)) @ b.T, "", 1, 0, b=(3, 3)), "mul"),
    "frequencies of units": (plain(lambda x, a, b: torch.fft.fft(x @ a.T).real @ b.T, "", 1, 1), "fft_fft"),
    "cross product": (plain(lambda x, a, b, c: torch.linalg.cross(x @ a.T, x @ c.T) @ b.T, "", 2, 2, a=(3, 4),
                            c=(3, 4), b=(3, 3)), "linalg_cross"),
}  # fmt: skip
