"""Which measures are invariant under a layer's group: the table of what each notices, against what they do."""

import pytest
import torch
from feature_pairs import pair
from hypothesis import given, settings
from hypothesis import strategies as st

from coset.errors import InputError
from coset.represent import GROUPS, Part, UnitGroup, advice, cka, procrustes, random_element
from coset.represent.similarity import invariant
from coset.represent.unit_groups import orthogonal

ACTING = {
    "relu": UnitGroup((Part(5, permutes=True, scales=True),)),
    "tanh": UnitGroup((Part(5, permutes=True, signs=True),)),
    "gelu": UnitGroup((Part(5, permutes=True),)),
    "cube": UnitGroup((Part(5, permutes=True, scales=True, signs=True),)),
    "output": UnitGroup((Part(5),)),
    "scales in place": UnitGroup((Part(5, scales=True),)),
    "signs in place": UnitGroup((Part(5, signs=True),)),
    "one sign": UnitGroup((Part(5, permutes=True),), sign=True),
    "flatten": UnitGroup((Part(2, permutes=True, scales=True, inside=(Part(2),)), Part(1))),
    "heads": UnitGroup((Part(2, permutes=True, inside=(Part(2, permutes=True),)), Part(1)), order=(4, 0, 3, 1, 2)),
    "rotations": orthogonal(5),
}
MEASURES = {
    "cka": lambda x, y, group: cka(x, y, group=group),
    "procrustes": lambda x, y, group: procrustes(x, y, group=group).similarity,
}


def changes(measure, modulo, group, seed):
    """How much the similarity of two features changes at most when some elements of ``group`` act on one of them."""
    x, y = pair(seed, n=15)
    # Channels of very different size, or a scale more would hardly be noticed.
    y = y * torch.tensor([1.0, 2, 4, 0.5, 1.5], dtype=y.dtype)[:, None]
    value = MEASURES[measure](x, y, modulo)
    generator = torch.Generator().manual_seed(seed)
    moved = (torch.einsum("dc,ncp->ndp", random_element(group, generator), y) for _ in range(4))
    return max(abs(MEASURES[measure](x, z, modulo) - value) for z in moved)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("acting", ACTING)
@settings(max_examples=2)
@given(seed=st.integers(0, 2**31))
def test_a_measure_is_unchanged_exactly_by_the_groups_it_does_not_notice(measure, acting, seed):
    for modulo in GROUPS:
        found = changes(measure, modulo, ACTING[acting], seed)
        if invariant(measure, modulo, ACTING[acting]):
            assert found < 1e-9
        else:
            assert found > 1e-4


@pytest.mark.parametrize(
    ("acting", "words", "orthogonal_too"),
    [
        ("relu", "own only", False),
        ("cube", "own only", False),
        ("flatten", "own only", False),
        ("tanh", "own, orthogonal too", True),
        ("gelu", "own, orthogonal too", True),
        ("one sign", "own, orthogonal too", True),
        ("heads", "own, orthogonal too", True),
        ("output", "all", True),
    ],
)
def test_the_advice_names_what_is_invariant(acting, words, orthogonal_too):
    found = advice(ACTING[acting])
    assert found.invariant == words
    assert found.orthogonal is orthogonal_too
    # The smallest named group that contains it is always among them.
    assert found.named in found.cka
    assert found.named in found.procrustes
    assert found.sentence


def test_one_scale_for_all_channels_is_no_scale_of_theirs():
    single = UnitGroup((Part(1, permutes=True, scales=True),))
    assert advice(single).orthogonal
    assert advice(single).invariant == "all"
    whole = UnitGroup((Part(1, scales=True, inside=(Part(4, permutes=True),)),))
    assert advice(whole).invariant == "own, orthogonal too"


def test_wrong_input_is_named():
    with pytest.raises(InputError, match="measure is 'distance'; expected one of 'cka', 'procrustes'"):
        invariant("distance", "orthogonal", ACTING["relu"])
    with pytest.raises(InputError, match="modulo is 'rotations'; expected one of 'general'"):
        invariant("cka", "rotations", ACTING["relu"])
