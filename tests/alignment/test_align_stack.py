"""Many networks at once: each ends where ``align`` alone brings it, whatever the architecture."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mixing_networks
from architectures import made, randomized
from coset.alignment import align, align_stack
from coset.errors import InputError
from coset.models import MLP
from coset.symmetry import discover
from coset.symmetry.stacks import act_stack, compose_stack, inverse_stack, network_of, one_of, random_stack

TOGETHER = [
    "flatten",
    "batchnorm+depthwise",
    "tied embeddings",
    "concatenation",
    "rotary",
    "residual mlp, one stream",
    "mlp, batch norm",
    "cct",
]
"""Plain classes, signs, convolutions, streams on both axes, heads with what is inside them, tied weights."""


def stack_of(networks):
    return {name: torch.stack([network[name] for network in networks]) for name in networks[0]}


def pairs(model, count, seed):
    generator = torch.Generator().manual_seed(seed)
    return [(randomized(model, generator), randomized(model, generator)) for _ in range(count)]


def assert_as_alone(sym, networks, options, *, together=True):
    a, b = (stack_of(part) for part in zip(*networks, strict=True))
    found = align_stack(sym, a, b, **options)
    assert bool(found.notes) != together
    for number, (one, two) in enumerate(networks):
        alone = align(sym, one, two, **options)
        assert found.element(number) == alone.element
        assert float(found.objectives[number]) == pytest.approx(alone.objective, rel=1e-12)
        assert float(found.before[number]) == pytest.approx(alone.history[0], rel=1e-9, abs=1e-12)
        for name, tensor in alone.aligned.items():
            torch.testing.assert_close(found.aligned[name][number], tensor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", TOGETHER)
def test_each_network_goes_the_way_it_goes_alone(name):
    model, sym, _ = made(name)
    assert_as_alone(sym, pairs(model, 3, 1), {"seed": 5})


def test_of_a_group_without_elements_nothing_moves():
    model, sym, _ = made(TOGETHER[0])
    assert_as_alone(sym.restrict([]), pairs(model, 3, 1), {"seed": 5})


@given(seed=st.integers(0, 10**6), relax=st.booleans(), gauge=st.sampled_from(["given", "normalized"]))
@settings(max_examples=4)
def test_with_any_option_and_seed(seed, relax, gauge):
    """Orders of sweeps come from the seed; networks use up different numbers of them."""
    model, sym, _ = made("mlp, batch norm")
    options = {"seed": seed, "relax": relax, "gauge": gauge, "buffers": bool(seed % 2)}
    assert_as_alone(sym, pairs(model, 5, seed), options)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_planted_permutations_and_signs_are_found_in_every_network(activation):
    model = MLP(12, [8, 8], 3, activation=activation).double().eval()
    sym = discover(model, torch.zeros(2, 12, dtype=torch.float64), verify=False).restrict(scales=False)
    generator = torch.Generator().manual_seed(0)
    networks = stack_of([randomized(model, generator) for _ in range(20)])
    planted = random_stack(sym, 20, generator)
    found = align_stack(sym, networks, act_stack(sym, planted, networks))
    for name, tensor in networks.items():
        assert torch.equal(found.aligned[name], tensor)
    assert all(found.element(number) == sym.inverse(one_of(planted, number)) for number in range(20))


def test_one_reference_for_all():
    model, sym, _ = made("flatten")
    networks = pairs(model, 4, 3)
    reference = networks[0][0]
    b = stack_of([two for _, two in networks])
    found = align_stack(sym, reference, b, gauge="normalized")
    for number, (_, two) in enumerate(networks):
        assert found.element(number) == align(sym, reference, two, gauge="normalized").element


def test_classes_at_the_same_entries_are_aligned_one_by_one():
    model, sym, _ = made("grouped+groupnorm")
    assert_as_alone(sym, pairs(model, 2, 1), {}, together=False)


def test_units_that_mix_are_aligned_one_by_one_unless_told_otherwise():
    model, sym, _, _ = mixing_networks.setting(next(iter(mixing_networks.NETWORKS)))
    networks = pairs(model, 2, 1)
    assert sym.continuous
    a, b = (stack_of(part) for part in zip(*networks, strict=True))
    found = align_stack(sym, a, b)
    assert "one by one" in found.notes[0]
    assert found.elements.matrices
    for number, (one, two) in enumerate(networks):
        assert float(found.objectives[number]) == pytest.approx(align(sym, one, two).objective)
    assert not align_stack(sym, a, b, continuous=False).elements.matrices


def test_networks_of_extraordinary_size_and_tied_ones_keep_their_own_way():
    """Powers of two for the second network; in the third a bias that equals another parameter counts once."""
    model, sym, _ = made("residual mlp, one stream")
    networks = pairs(model, 4, 2)
    one, two = networks[1]
    networks[1] = ({k: t * 2.0**-300 if t.is_floating_point() else t for k, t in one.items()}, two)
    trained = [name for name in sym.structures if not sym.parameters[name].buffer]
    alike = [[n for n in trained if sym.structures[n] is sym.structures[name]] for name in trained]
    small = max(alike, key=len)
    assert len(small) > 1
    for network in networks[2]:
        network[small[1]] = network[small[0]].clone()
    a, b = (stack_of(part) for part in zip(*networks, strict=True))
    found = align_stack(sym, a, b)
    assert found.notes[0].startswith("1 of 4 networks")
    for number, (one, two) in enumerate(networks):
        alone = align(sym, one, two)
        assert found.element(number) == alone.element
        assert float(found.objectives[number]) == pytest.approx(alone.objective, rel=1e-12)


def test_in_single_precision_objectives_are_those_of_the_loop():
    model = MLP(20, [6, 6], 3).eval()
    sym = discover(model, torch.zeros(2, 20), verify=False)
    generator = torch.Generator().manual_seed(4)
    a, b = ({k: torch.randn(30, *t.shape, generator=generator) for k, t in model.state_dict().items()} for _ in "ab")
    found = align_stack(sym, a, b)
    alone = torch.tensor([align(sym, network_of(a, i), network_of(b, i)).objective for i in range(30)]).double()
    torch.testing.assert_close(found.objectives, alone, rtol=1e-5, atol=0)


def test_stacked_elements_form_a_group_that_acts():
    model, sym, _ = made("cct")
    generator = torch.Generator().manual_seed(1)
    networks = stack_of([randomized(model, generator) for _ in range(3)])
    g, h = (random_stack(sym, 3, generator) for _ in range(2))
    there = act_stack(sym, g, networks)
    for number in range(3):
        expected = sym.act(one_of(g, number), network_of(networks, number))
        for name, tensor in expected.items():
            torch.testing.assert_close(there[name][number], tensor, rtol=1e-12, atol=1e-12)
        assert one_of(compose_stack(sym, g, h), number) == sym.compose(one_of(g, number), one_of(h, number))
    back = act_stack(sym, inverse_stack(sym, g), there)
    for name, tensor in networks.items():
        torch.testing.assert_close(back[name], tensor, rtol=1e-9, atol=1e-12)


def test_refusals_name_what_is_wrong():
    model, sym, _ = made("flatten")
    (a, b), (c, d) = pairs(model, 2, 1)
    left, right = stack_of([a, c]), stack_of([b, d])
    name = next(iter(sym.structures))
    bad = {**right, name: right[name].clone()}
    bad[name][1] = torch.nan
    cases = [
        (lambda: align_stack(sym, a, b), "a single network"),
        (lambda: align_stack(sym, stack_of([a, c, c]), right), "3 networks and the stack 2"),
        (lambda: align_stack(sym, left, bad), f"'{name}' of network 1 of the stack"),
        (lambda: align_stack(sym, left, {**right, "odd": right[name]}), "'odd'"),
        (lambda: align_stack(sym, left, {k: t for k, t in right.items() if k != name}), f"'{name}'"),
        (lambda: align_stack(sym, left, {**right, name: right[name][:1]}), "leading axes"),
        (lambda: align_stack(sym, left, right, gauge="odd"), "gauge"),
        (lambda: align_stack(sym, left, right).element(2), "one of 2 networks"),
        (lambda: act_stack(sym, random_stack(sym, 3, torch.Generator()), left), "3 elements and 2 networks"),
    ]
    for call, words in cases:
        with pytest.raises(InputError, match=words):
            call()
