"""One network of every orbit: for all networks of the tables of discovery, not for a few."""

import pytest
from form_networks import FREE, NAMES, form, moved, numbers, outputs, setting
from hypothesis import given, settings
from hypothesis import strategies as st

from coset.canonical import canonicalize, decanonicalize

SETTLED = [name for name in NAMES if name not in FREE]


def _apart(one, two):
    """The largest difference of two networks, over the largest entry of each parameter."""
    sizes = {name: float(one[name].abs().max()) or 1.0 for name in numbers(one)}
    return max((float((one[name] - two[name]).abs().max()) / size for name, size in sizes.items()), default=0.0)


@pytest.mark.parametrize("name", NAMES)
def test_the_function_is_kept_and_the_way_back_is_exact(name):
    model, _, params, inputs = setting(name)
    assert _apart(params, decanonicalize(form(name))) < 1e-12
    for before, after in zip(outputs(model, params, inputs), outputs(model, form(name).params, inputs), strict=True):
        assert float((before - after).abs().max()) < 1e-10 * float(before.abs().max())


@pytest.mark.parametrize("name", SETTLED)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=2)
def test_an_orbit_has_one_form(name, seed):
    _, sym, params, _ = setting(name)
    again = canonicalize(sym, moved(sym, params, seed))
    assert _apart(form(name).params, again.params) < 1e-8
    assert form(name).free == again.free


@pytest.mark.parametrize("name", SETTLED)
def test_a_form_is_its_own_form(name):
    _, sym, _, _ = setting(name)
    assert _apart(form(name).params, canonicalize(sym, form(name).params).params) < 1e-10


@pytest.mark.parametrize("name", sorted(FREE))
def test_what_stays_open_is_said(name):
    _, sym, params, _ = setting(name)
    assert any(item.startswith(("scales of", "GL(")) for item in form(name).free)
    again = canonicalize(sym, moved(sym, params, 1))
    assert _apart(form(name).params, again.params) > 1e-3
    assert form(name).free == again.free
