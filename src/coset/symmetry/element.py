"""Members of a symmetry group: permutations, positive scales, signs, matrices of classes that mix, turns of units."""

import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset._files.sealed import unsealed, write_sealed
from coset._files.tensors import read_tensors
from coset._values import Frozen, transformed_by_functorch
from coset.errors import InputError
from coset.symmetry.storage import require_fingerprint

if TYPE_CHECKING:
    from coset.symmetry.symmetry import Symmetry

KEY = "coset.element"
VERSION = 2


@dataclass(frozen=True, eq=False)
class Element:
    """A member of a symmetry group, as a value: it is never changed in place.

    ``permutations``: class → p of shape (sizes of the classes around it; size); unit i of the new network is unit p[i]
    of the old one, in every block. ``scales``: family → positive d of its class's shape. ``signs``: family → ±1.
    ``matrices``: class → invertible matrices (blocks…, n, n), one in every new block, that act after all of these, and
    for pairs that turn (blocks…, n, 2, 2); classes that are left out are not mixed. ``turns``: key → whole numbers of
    its class's shape, half-turns or reflections of the new units, which act last; units that are left out do not turn.
    In matrix form A = P·D with (Px)_i = x[p_i], so that d is indexed by the old units, and a block's inner permutation
    by the old block.
    """

    permutations: Mapping[str, Tensor] = field(default_factory=dict)
    scales: Mapping[str, Tensor] = field(default_factory=dict)
    signs: Mapping[str, Tensor] = field(default_factory=dict)
    matrices: Mapping[str, Tensor] = field(default_factory=dict)
    turns: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in ("permutations", "scales", "signs", "matrices", "turns"):
            object.__setattr__(self, part, Frozen(getattr(self, part)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Element):
            return False
        pairs = zip(self._tensors().items(), other._tensors().items(), strict=False)
        return self._tensors().keys() == other._tensors().keys() and all(
            torch.equal(mine, theirs) for (_, mine), (_, theirs) in pairs
        )

    __hash__ = None  # type: ignore[assignment]

    def _tensors(self) -> dict[str, Tensor]:
        parts = {
            "permutation": self.permutations,
            "scale": self.scales,
            "sign": self.signs,
            "matrix": self.matrices,
            "turn": self.turns,
        }
        return {f"{part}/{name}": parts[part][name] for part in parts for name in sorted(parts[part])}

    def to(self, device: torch.device | str) -> "Element":
        """The same element with its tensors on ``device``."""
        parts = (self.permutations, self.scales, self.signs, self.matrices, self.turns)
        return Element(*({name: tensor.to(device) for name, tensor in part.items()} for part in parts))

    def __repr__(self) -> str:
        moved = {
            name: int((p != torch.arange(p.shape[-1], device=p.device)).sum()) for name, p in self.permutations.items()
        }
        parts = [f"{name}: {count} of {self.permutations[name].numel()} moved" for name, count in moved.items()]
        parts += [f"{name}: scales {float(d.min()):.3g}…{float(d.max()):.3g}" for name, d in self.scales.items()]
        parts += [f"{name}: {int((s < 0).sum())} of {s.numel()} flipped" for name, s in self.signs.items()]
        parts += [f"{name}: mixed by {tuple(m.shape)}" for name, m in self.matrices.items()]
        parts += [f"{name}: {int((k != 0).sum())} of {k.numel()} turned" for name, k in self.turns.items()]
        return f"Element({'; '.join(parts)})"

    def save(self, path: str | os.PathLike[str], sym: "Symmetry | None" = None) -> None:
        """Write the element to a safetensors file with checksums, atomically; every value is kept exactly.

        With ``sym``, to which it must belong, the file says of which symmetry it is an element.
        """
        if sym is not None:
            sym.check(self)
        content = {"symmetry": None if sym is None else sym.fingerprint}
        write_sealed(Path(path), KEY, VERSION, self._tensors(), content)

    @staticmethod
    def load(path: str | os.PathLike[str], sym: "Symmetry | None" = None) -> "Element":
        """Read an element written by ``save``; with ``sym``, refuse one that is not an element of it.

        What the first version of the format holds has neither checksums nor the symmetry it belongs to.
        """
        source = Path(path)
        if not source.is_file():
            raise InputError(f"{source} does not exist; expected an element written by Element.save")
        tensors, metadata = read_tensors(source, str(source))
        if KEY in metadata:
            content = unsealed(tensors, metadata, KEY, VERSION, str(source), "element")
        elif metadata.get("format") == KEY and metadata.get("version") == "1":
            content = {"symmetry": None}
        else:
            raise InputError(
                f"{source} is not an element of version 1 or {VERSION}: its metadata are "
                f"{reprlib.repr(dict(sorted(metadata.items())))}"
            )
        parts: dict[str, dict[str, Tensor]] = {"permutation": {}, "scale": {}, "sign": {}, "matrix": {}, "turn": {}}
        for name, tensor in tensors.items():
            part, _, key = name.partition("/")
            if part not in parts:
                raise InputError(f"{source} holds {name!r}; expected names that begin with {', '.join(parts)}, then /")
            parts[part][key] = tensor
        loaded = Element(*parts.values())
        try:
            check_values(loaded)
            if sym is not None:
                require_fingerprint(content.get("symmetry"), sym, "it")
                sym.check(loaded)
        except InputError as error:
            what = "element" if sym is None else "element of the symmetry"
            raise InputError(f"{source} holds no {what}: {error}") from error
        return loaded


def check_values(g: Element) -> None:
    """Raise unless permutations are permutations, scales positive, signs ±1, matrices invertible and turns whole
    numbers; values under vmap are not looked at.
    """
    for name, p in g.permutations.items():
        if p.dtype != torch.long:
            raise InputError(f"the permutation of '{name}' is of type {p.dtype}; expected torch.int64")
        if not transformed_by_functorch(p) and not torch.equal(
            p.sort(-1).values, torch.arange(p.shape[-1], device=p.device).expand(p.shape)
        ):
            raise InputError(f"the permutation of '{name}' is not a permutation of 0…{p.shape[-1] - 1}")
    for key, d in g.scales.items():
        if not d.is_floating_point():
            raise InputError(f"the scales of '{key}' are of type {d.dtype}; expected floating point")
        if not transformed_by_functorch(d) and not bool((torch.isfinite(d) & (d > 0)).all()):
            raise InputError(f"the scales of '{key}' are not all positive and finite")
    for key, s in g.signs.items():
        if s.dtype == torch.bool or (not transformed_by_functorch(s) and not bool((s.abs() == 1).all())):
            raise InputError(f"the signs of '{key}' are not all +1 or −1")
    for name, m in g.matrices.items():
        if m.ndim < 2 or m.shape[-1] != m.shape[-2] or not m.is_floating_point():
            raise InputError(f"the matrix of '{name}' is {m.dtype} of shape {tuple(m.shape)}; expected a square one")
        if not transformed_by_functorch(m) and not bool(
            torch.isfinite(torch.linalg.slogdet(m.detach()).logabsdet).all()
        ):
            raise InputError(f"the matrix of '{name}' is singular or not finite")
    for key, k in g.turns.items():
        if k.dtype != torch.long:
            raise InputError(f"the turns of '{key}' are of type {k.dtype}; expected torch.int64")


def unit_map(permutations: Mapping[str, Tensor], name: str, chain: tuple[str, ...], shape: tuple[int, ...]) -> Tensor:
    """Where each unit of a class comes from, over all blocks: the old unit's number for every new one.

    For a nested class new block a comes from old block a' and, within it, new unit b from p[a'][b]: blocks are moved
    as a whole after their insides. Classes without an entry in ``permutations`` keep their order. Returns (∏shape,),
    which for a class that is not nested is its permutation itself.
    """
    if not chain and name in permutations:
        return permutations[name].reshape(-1)
    block = torch.zeros(1, dtype=torch.long)
    for level, outer in enumerate((*chain, name)):
        size = shape[level]
        inner = permutations.get(outer)
        if inner is None:
            block = (block[:, None] * size + torch.arange(size, device=block.device)).reshape(-1)
        else:
            rows = inner.reshape(-1, size)
            block = block.to(rows.device)
            block = (block[:, None] * size + rows[block]).reshape(-1)
    return block
