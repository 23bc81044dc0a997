"""Many networks over the whole group: planted elements, consistency, merging, both ends moved in a merge."""

import pytest
import torch

from coset.alignment import align_many, merge
from coset.errors import InputError
from mixing_networks import outputs, setting


def orbit(sym, params, count=3):
    """Networks of one function: matrices, permutations and signs, and scales that gains and matrices hold."""
    networks = [params]
    for seed in range(1, count):
        g = sym.random(torch.Generator().manual_seed(seed))
        scales = {key: d for key, d in g.scales.items() if sym.families[key].owner in sym.continuous}
        networks.append(sym.act(sym.element(g.permutations, scales, g.signs, g.matrices), params))
    return networks


@pytest.mark.parametrize("name", ["low-rank adapter", "rms norm"])
def test_networks_of_one_orbit_meet_in_the_first(name):
    model, sym, params, x = setting(name)
    networks = orbit(sym, params)
    together = align_many(sym, networks, rounds=2)
    assert together.elements[0] == sym.identity()
    for network, moved in zip(networks, together.aligned, strict=True):
        assert torch.allclose(outputs(model, moved, x), outputs(model, network, x))
        for key, tensor in params.items():
            assert torch.allclose(moved[key], tensor, atol=1e-5 * float(tensor.abs().max())), key
    assert list(together.history) == sorted(together.history)
    there = sym.act(together.between(1, 2), networks[2])
    for key, tensor in networks[1].items():
        assert torch.allclose(there[key], tensor, atol=1e-5 * float(tensor.abs().max())), key
    merged = merge(sym, networks, options={"rounds": 2}).params
    assert torch.allclose(outputs(model, merged, x), outputs(model, params, x), rtol=1e-4, atol=1e-4)


def test_without_matrices_it_is_the_monomial_group():
    _, sym, params, _ = setting("low-rank adapter")
    networks = orbit(sym, params)
    one, two = align_many(sym, networks, continuous=False), align_many(sym.monomial, networks)
    assert one.history == two.history
    assert one.elements == two.elements


def test_networks_without_a_gauge_are_permuted_and_a_note_says_so():
    _, sym, params, _ = setting("rms norm")
    dead = params | {"norm.weight": params["norm.weight"] * torch.tensor([0.0] + [1.0] * 7)}
    found = align_many(sym, [params, dead, params], rounds=1)
    assert not any(g.matrices for g in found.elements)
    assert found.notes[0].endswith("cannot be mixed: permutations and signs alone were matched")


def test_callbacks_see_every_network_and_stop():
    _, sym, params, _ = setting("low-rank adapter")
    seen = []
    found = align_many(sym, orbit(sym, params), callback=lambda step: seen.append(step.what) or len(seen) == 3)
    assert len(seen) == 3
    assert seen[0].startswith("network 1: ")
    assert found.stopped


def test_a_merge_of_two_takes_both_ends_as_they_were_moved():
    model, sym, params, x = setting("low-rank adapter")
    other = orbit(sym, params)[1]
    options = {"objective": "l2", "both": True, "start": sym.identity(), "steps": 10, "every": 5, "scales": False}
    merged = merge(sym, [params, other], method="ste", options=options)
    assert merged.elements[0].matrices
    ends = [sym.act(g, one) for g, one in zip(merged.elements, (params, other), strict=True)]
    for key, tensor in merged.params.items():
        assert torch.allclose(tensor, (ends[0][key] + ends[1][key]) / 2)
    assert torch.allclose(outputs(model, ends[0], x), outputs(model, params, x))
    with pytest.raises(InputError, match="both=True and there are 3 networks"):
        merge(sym, [params, other, other], method="ste", options=options)


def test_translations_and_scales_do_not_count():
    """Elements of the whole group and translations, planted on a network with LayerNorms."""
    _, sym, params, _ = setting("layer norm")
    moved = sym.act(sym.random(torch.Generator().manual_seed(1)), params)
    moved = sym.translate(sym.random_translation(moved, torch.Generator().manual_seed(2)), moved)
    found = align_many(sym, [params, moved], rounds=1, gauge="normalized").aligned[1]
    wanted, reached = (sym.without_translations(weights) for weights in (params, found))
    for key in ("blocks.0.q.weight", "blocks.0.o.weight", "blocks.0.up.weight"):
        assert torch.allclose(reached[key], wanted[key], atol=1e-5 * float(wanted[key].abs().max())), key
