"""Unknown numbers that are added to tensors, and what remains free of them where sums of them have to be 0.

A shift of a tensor is a sum of terms, factor·links(v)[index]: the entries of a vector of unknowns v, gone through
linear maps, at the places where they are added. Elimination goes entry by entry: where a sum has to be 0, the unknowns
that were met last become what cancels the others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coset.symmetry.translations import Link, Take


@dataclass(frozen=True, eq=False)
class Term:
    """factor·links(v)[index], v the unknowns called ``name``.

    ``index``: for every entry of a tensor a number, −1 for 0; of size 1 along dimensions along which all are the same.
    """

    name: str
    index: Tensor
    factor: float = 1.0
    links: tuple[Link, ...] = ()

    def at(self, index: Tensor) -> "Term":
        """The same with entries in other places."""
        return replace(self, index=squeezed(index))

    def over(self, ndim: int) -> "Term":
        """The same on a tensor of more dimensions in front."""
        return replace(self, index=self.index.reshape((1,) * (ndim - self.index.ndim) + tuple(self.index.shape)))

    def is_same_along(self, dims: Iterable[int]) -> bool:
        return all(self.index.shape[dim] == 1 for dim in dims)

    def picked(self) -> tuple[Link, ...]:
        """The links that give the entries as a vector."""
        return (*self.links, Take.of(self.index.reshape(-1)))


def squeezed(index: Tensor) -> Tensor:
    """Of size 1 along all dimensions along which a tensor is the same."""
    for dim in range(index.ndim):
        if index.shape[dim] > 1 and bool((index == index.narrow(dim, 0, 1)).all()):
            index = index.narrow(dim, 0, 1)
    return index


def numbers(count: int, ndim: int, dim: int) -> Tensor:
    """0, 1, … along one of several dimensions."""
    shape = [1] * ndim
    shape[dim] = count
    return torch.arange(count).reshape(shape)


@dataclass
class Unknowns:
    """Vectors of unknowns by name: which entries are ``free``, and what the others are: Σ terms over their entries."""

    free: dict[str, Tensor] = field(default_factory=dict)
    known: dict[str, list[Term]] = field(default_factory=dict)
    turn: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, count: int, turn: int) -> None:
        """``turn``: when they enter; later ones are eliminated first."""
        if name not in self.free:
            self.free[name] = torch.ones(count, dtype=torch.bool)
            self.known[name], self.turn[name] = [], turn

    def resolved(self, terms: Iterable[Term]) -> list[Term]:
        """The same sum over free unknowns alone, what cancels left out."""
        found: list[Term] = []
        waiting = list(terms)
        while waiting:
            term = waiting.pop(0)
            mask = self.free[term.name]
            if bool(mask.all()):
                found.append(term)
                continue
            own = torch.where(mask, torch.arange(len(mask)), torch.full((len(mask),), -1))
            found += self._behind(term, Term(term.name, own))
            for other in self.known[term.name]:
                waiting = [*self._behind(term, other), *waiting]
        return _cancelled(found)

    def _behind(self, term: Term, value: Term) -> list[Term]:
        """A term whose unknowns are ``value``."""
        factor = term.factor * value.factor
        if term.links:
            first, *further = term.links
            assert isinstance(first, Take)  # entries are picked before anything is done with them
            whole = value.index.reshape(-1)
            index = torch.where(first.index < 0, -1, whole[first.index.clamp(min=0)])
            made = Term(value.name, term.index, factor, (*value.links, Take.of(index), *further))
            return [made] if bool((index >= 0).any()) else []
        index = torch.where(term.index < 0, -1, value.index.reshape(-1)[term.index.clamp(min=0)])
        return [Term(value.name, squeezed(index), factor, value.links)] if bool((index >= 0).any()) else []

    def vanish(self, terms: Sequence[Term]) -> None:
        """Let a sum be 0 in every entry; where unknowns cannot be told from it, all of them are 0."""
        while terms := self.resolved(terms):
            plain = [term for term in terms if not term.links]
            for term in sorted(plain, key=lambda item: self.turn[item.name], reverse=True):
                others = [other for other in terms if other is not term]
                count = len(self.free[term.name])
                twice = any(other.name == term.name for other in others)
                values = None if twice else _solved(term, others, count)
                if values is not None:
                    self.known[term.name] += values
                    self.free[term.name] = self.free[term.name] & ~_met(term, count)
                    break
            else:
                for term in terms:
                    mask = self.free[term.name]
                    self.free[term.name] = mask & ~_met(term, len(mask)) if not term.links else torch.zeros_like(mask)


def _met(term: Term, count: int) -> Tensor:
    """Which entries of the unknowns a term has."""
    met = torch.zeros(count, dtype=torch.bool)
    met[term.index[term.index >= 0]] = True
    return met


def _solved(term: Term, others: Sequence[Term], count: int) -> list[Term] | None:
    """The entries of a term by the others; None where one entry would have to be two things at once."""
    found = []
    for other in others:
        mine, yours = _beside(term.index, other.index)
        here = mine >= 0
        values = torch.full((count,), -1)
        values[mine[here]] = yours[here]
        if not torch.equal(values[mine[here]], yours[here]):
            return None
        if bool((values >= 0).any()):
            found.append(Term(other.name, values, -other.factor / term.factor, other.links))
    return found


def _beside(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """Both as large as they are together."""
    shape = torch.broadcast_shapes(one.shape, two.shape)  # type: ignore[no-untyped-call]
    return one.expand(shape), two.expand(shape)


def _cancelled(terms: Sequence[Term]) -> list[Term]:
    """Terms without entries that occur twice, with factors that add up to 0; equal ones become one."""
    kept: list[Term] = []
    for term in terms:
        for number, other in enumerate(kept):
            if (other.name, other.links) != (term.name, term.links):
                continue
            mine, yours = _beside(term.index, other.index)
            if torch.equal(mine, yours):
                total = other.factor + term.factor
                kept[number] = replace(other, factor=total)
                term = replace(term, index=torch.full_like(term.index, -1))
            elif other.factor + term.factor == 0:
                both = mine == yours
                term = term.at(torch.where(both, -1, mine))
                kept[number] = other.at(torch.where(both, -1, yours))
        kept.append(term)
    return [term for term in kept if term.factor and bool((term.index >= 0).any())]
