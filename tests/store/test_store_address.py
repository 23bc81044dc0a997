"""The address of a configuration: one for each value, whatever the order of its keys."""

import hashlib
from enum import IntEnum

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coset.errors import InputError
from coset.store import Store

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)
_CONFIGS = st.dictionaries(st.text(), _VALUES, max_size=4)
key = Store("unused").key


def _reversed(value: object) -> object:
    """The same value with the keys of every mapping in the other order."""
    if isinstance(value, dict):
        return {name: _reversed(item) for name, item in reversed(value.items())}
    if isinstance(value, list):
        return [_reversed(item) for item in value]
    return value


def _typed(value: object) -> object:
    """A value that compares equal only to one of the same types: 1, 1.0 and True, and 0.0 and -0.0, stay apart."""
    if isinstance(value, dict):
        return frozenset((name, _typed(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(_typed(item) for item in value)
    return (type(value), repr(value))


def test_key_is_the_documented_hash() -> None:
    text = 'coset.store/1\n{"kind":"mlp","lr":0.1,"name":"\\u03bb","seed":0,"widths":[2,3]}'
    expected = hashlib.sha256(text.encode()).hexdigest()
    # Written down, so that no change of the code can move the networks people have stored.
    assert expected == "f30eb877dbb5e1ccdc222f32377e5ef60bd02a7561d665625e9ca183341ae131"
    assert key({"widths": (2, 3), "lr": 0.1, "kind": "mlp", "seed": 0, "name": "λ"}) == expected


@given(_CONFIGS)
def test_key_ignores_the_order_of_keys(config: dict[str, object]) -> None:
    assert key(_reversed(config)) == key(config)  # type: ignore[arg-type]


@given(_CONFIGS, _CONFIGS)
def test_keys_agree_exactly_where_values_do(one: dict[str, object], two: dict[str, object]) -> None:
    assert (key(one) == key(two)) == (_typed(one) == _typed(two))


def test_int_float_and_bool_are_three_values() -> None:
    assert len({key({"a": value}) for value in (1, 1.0, True, "1", None, [1], {"a": 1})}) == 7


class _Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"lr": float("nan")}, r"config\['lr'\] is nan"),
        ({"lr": float("inf")}, r"config\['lr'\] is inf"),
        ({"net": {"init": torch.zeros(2)}}, r"config\['net'\]\['init'\] is a torch.Tensor"),
        ({"widths": [2, np.float64(3)]}, r"config\['widths'\]\[1\] is a numpy.float64"),
        ({"colour": _Colour.RED}, r"config\['colour'\] is a .*_Colour"),
        ({"names": {"a"}}, r"config\['names'\] is a set"),
        ({"net": {3: "a"}}, r"config\['net'\] has the key 3 \(int\)"),
        ([("a", 1)], "config must be a mapping .* found list"),
    ],
)
def test_what_has_no_exact_json_is_refused_by_name(config: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        key(config)
