"""Which measures of similarity do not notice the group that acts on a layer: what to compare it with."""

from collections.abc import Mapping
from dataclasses import dataclass

from coset._checks import check_choice
from coset.represent._layer_group import named_group
from coset.represent.unit_groups import GROUPS, Part, UnitGroup

NOTICES: Mapping[str, Mapping[str, frozenset[str]]] = {
    "cka": {
        "general": frozenset(),
        "orthogonal": frozenset({"scales"}),
        "permutation": frozenset({"rotations"}),
        "signed-permutation": frozenset({"rotations"}),
        "rigid-permutation": frozenset({"rotations", "scales"}),
        "rigid-signed-permutation": frozenset({"rotations", "scales"}),
        "trivial": frozenset({"scales"}),
    },
    "procrustes": {
        "general": frozenset(),
        "orthogonal": frozenset({"scales"}),
        "permutation": frozenset({"rotations", "signs"}),
        "signed-permutation": frozenset({"rotations"}),
        "rigid-permutation": frozenset({"rotations", "scales", "signs"}),
        "rigid-signed-permutation": frozenset({"rotations", "scales"}),
        "trivial": frozenset({"rotations", "permutations", "scales", "signs"}),
    },
}
"""What each measure notices, by name of the group that it is modulo.

One scale for all channels it never notices. The kernels of CKA are even in every unit, and so do not notice signs
(Godfrey et al. 2022, lemma E.44); where nothing changes places the kernel is linear, which rotations do not change.
What linear maps do beyond rotations is to scale; features that are made white forget both.
"""


@dataclass(frozen=True)
class Advice:
    """What a layer's ``group`` asks of a measure.

    ``named``: the smallest of ``GROUPS`` that contains it. ``cka``, ``procrustes``: the names of the groups modulo
    which these are invariant under ``group``; modulo ``group`` itself both are.
    """

    group: UnitGroup
    named: str
    cka: tuple[str, ...]
    procrustes: tuple[str, ...]

    @property
    def orthogonal(self) -> bool:
        """Whether the usual measures, linear CKA and orthogonal Procrustes, are invariant."""
        return "orthogonal" in self.cka and "orthogonal" in self.procrustes

    @property
    def invariant(self) -> str:
        """Which are invariant, in a word: those modulo the layer's "own" group, orthogonal ones "too", or "all".

        Where matrices mix channels it is their kind, "rotations" or "linear maps".
        """
        if not _moves(self.group):
            return "all"
        if self.group.kinds:
            return "rotations" if self.orthogonal else "linear maps"
        return "own, orthogonal too" if self.orthogonal else "own only"

    @property
    def sentence(self) -> str:
        """The advice as a sentence."""
        return SENTENCES[self.invariant]


SENTENCES: Mapping[str, str] = {
    "own only": "units have scales of their own, which orthogonal measures notice though the function is the same: "
    "compare modulo the layer's group",
    "own, orthogonal too": "units change places or signs, and orthogonal measures do not notice either; they do not "
    "notice rotations, which the layer does not allow: modulo its group more is seen",
    "rotations": "the layer may be turned, and single units mean nothing: Procrustes and CKA modulo rotations are the "
    "right measures",
    "linear maps": "any invertible map may mix units, which orthogonal measures notice though the function is the "
    "same: compare by canonical correlations, modulo GL",
    "all": "nothing acts on the units, and every measure is the same for equal functions: the finest compares unit "
    "with unit",
}
"""The advice for each case of ``Advice.invariant``."""


def advice(group: UnitGroup) -> Advice:
    """Which measures are the same for all networks of an orbit, where ``group`` acts on the layer (``layer_group``)."""
    cka, procrustes = (
        tuple(name for name in GROUPS if invariant(measure, name, group)) for measure in ("cka", "procrustes")
    )
    return Advice(group, named_group(group), cka, procrustes)


def invariant(measure: str, modulo: str, group: UnitGroup) -> bool:
    """Whether ``measure`` ("cka" with its own kernel, or "procrustes"), taken ``modulo`` one of ``GROUPS``, is
    unchanged when elements of ``group`` act on the channels of one side.
    """
    check_choice("measure", measure, NOTICES, quoted=True)
    check_choice("modulo", modulo, GROUPS, quoted=True)
    return not NOTICES[measure][modulo] & _moves(group)


def _moves(group: UnitGroup) -> frozenset[str]:
    """What the elements of a group do to channels, but for one scale that all of them share."""
    does = {
        "rotations": bool(group.kinds),
        "permutations": any(_shuffles(part) for part in group.parts),
        # One channel alone is scaled as a whole.
        "scales": len(set(group.scaled)) > 1 or (group.size > 1 and "general" in group.kinds),
        "signs": group.signs,
    }
    return frozenset(name for name, done in does.items() if done)


def _shuffles(part: Part) -> bool:
    return (part.permutes and part.count > 1) or any(_shuffles(inner) for inner in part.inside)
