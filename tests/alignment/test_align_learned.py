"""Matrices learned on a loss: generators, planted rotations, functions that stay, both ends moved."""

import pytest
import torch
from torch.nn import functional as F

from coset.alignment import align
from coset.alignment.matching.free_parts import Generators, tangent
from coset.alignment.matching.rotations import reflection
from coset.distribution import MeanField
from coset.symmetry.mixing import KINDS, centred_basis
from mixing_networks import outputs, setting

METHODS = ("ste", "sinkhorn")
TURNED = ("layer norm", "low-rank adapter")


def cost(scores, targets):
    return F.cross_entropy(scores.flatten(0, -2), targets.flatten())


def other_weights(params, seed=9):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(one.shape, generator=generator, dtype=one.dtype) for name, one in params.items()}


def near_identity(sym, size, seed=3):
    """An element of small matrices of every kind: exp of random tangents."""
    generator = torch.Generator().manual_seed(seed)
    matrices = {}
    for name, mixing in sym.continuous.items():
        *outer, n = sym.shape(name)
        m = n - 1 if mixing.kind == "centred" else n
        leaf = size * torch.randn(*outer, m, m, generator=generator, dtype=torch.float64)
        matrices[name] = torch.linalg.matrix_exp(tangent(leaf, mixing.kind))
    return sym.element(matrices=matrices)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_stay_in_the_group_and_have_the_derivative_of_the_exponential(kind):
    n, generator = 5, torch.Generator().manual_seed(0)
    m = n - 1 if kind == "centred" else n
    leaf = torch.zeros(2, m, m, dtype=torch.float64, requires_grad=True)
    moving = Generators({"h": kind}, {"h": torch.eye(n, dtype=torch.float64).repeat(2, 1, 1)}, {"h": leaf})
    for _ in range(3):
        leaf.data.copy_(0.3 * torch.randn(leaf.shape, generator=generator, dtype=torch.float64))
        moving.take()
        assert not bool(leaf.any())
    a = moving.reached["h"]
    assert bool((torch.linalg.det(a) > 0).all())
    if kind != "general":
        assert torch.allclose(a @ a.mT, torch.eye(n, dtype=torch.float64).expand(2, n, n))
    if kind == "centred":
        assert torch.allclose(a.sum(-1), torch.ones(2, n, dtype=torch.float64))
        assert torch.allclose(centred_basis(n).sum(0), torch.zeros(n - 1, dtype=torch.float64))
    by = torch.randn(2, n, n, generator=generator, dtype=torch.float64)
    whole = a @ torch.linalg.matrix_exp(tangent(leaf, kind))
    (wanted,), (found,) = (
        torch.autograd.grad((matrix * by).sum(), [leaf]) for matrix in (whole, moving.matrices()["h"])
    )
    assert torch.allclose(moving.matrices()["h"], a)
    assert torch.allclose(found, wanted)


@pytest.mark.parametrize("name", TURNED)
def test_planted_matrices_are_learned(name):
    """Matrices of all kinds near the start, by the distance alone."""
    _, sym, params, _ = setting(name)
    other = sym.act(near_identity(sym, 0.2), params)
    options = {"objective": "l2", "start": sym.identity(), "scales": False, "steps": 60, "generator_rate": 0.05}
    found = align(sym, params, other, "ste", **options, every=30)
    assert -found.objective < 1e-2 * -found.history[0]


def test_the_midpoint_gets_better_than_on_activations_and_functions_stay():
    model, sym, params, x = setting("heads")
    other = other_weights(params)
    data = x, torch.randint(3, x.shape[:-1], generator=torch.Generator().manual_seed(2))
    options = {"model": model, "data": data, "criterion": cost, "objective": "midpoint", "steps": 10, "every": 5}
    found = align(sym, params, other, "ste", **options)
    middle = {key: (params[key] + found.params[key]) / 2 for key in params}
    start = align(sym, params, other, "activations", model=model, data=x).params
    begun = {key: (params[key] + start[key]) / 2 for key in params}
    losses = [float(cost(outputs(model, weights, x), data[1])) for weights in (begun, middle)]
    assert losses == pytest.approx([-found.history[0], -found.objective])
    assert losses[1] < 0.9 * losses[0]
    assert found.element.matrices.keys() == sym.continuous.keys()
    assert torch.allclose(outputs(model, found.params, x), outputs(model, other, x))
    assert found.reference is None
    assert found.reference_element is None


@pytest.mark.parametrize("method", METHODS)
def test_both_ends_move_and_keep_their_functions(method):
    model, sym, params, x = setting("layer norm")
    other = other_weights(params)
    data = x, torch.randint(12, x.shape, generator=torch.Generator().manual_seed(2))
    options = {"model": model, "data": data, "criterion": cost, "objective": "midpoint", "steps": 12, "every": 4}
    rates = {"generator_rate": 0.01, "scale_rate": 0.01, "learning_rate": 0.01}
    found = align(sym, params, other, method, **options, **rates, both=True, scales=True, start=sym.identity())
    assert found.reference_element.matrices.keys() == sym.continuous.keys()
    for key, tensor in sym.act(found.reference_element, params).items():
        assert torch.equal(found.reference[key], tensor)
    assert torch.allclose(outputs(model, found.reference, x), outputs(model, params, x))
    assert torch.allclose(outputs(model, found.params, x), outputs(model, other, x))
    middle = {key: (found.reference[key] + found.params[key]) / 2 for key in params}
    assert float(cost(outputs(model, middle, x), data[1])) == pytest.approx(-found.objective)


@pytest.mark.parametrize("method", METHODS)
def test_without_matrices_it_is_the_monomial_group(method):
    _, sym, params, _ = setting("low-rank adapter")
    other = sym.act(sym.random(torch.Generator().manual_seed(5)), params)
    options = {"objective": "l2", "steps": 20, "every": 10}
    one = align(sym, params, other, method, **options, continuous=False)
    two = align(sym.monomial, params, other, method, **options)
    assert one.history == two.history
    assert one.element == two.element
    assert not one.element.matrices
    q = MeanField(params, {name: torch.full_like(tensor, 0.1) for name, tensor in params.items()})
    assert not align(sym, q, q, method, **options).element.matrices


def test_networks_without_a_gauge_learn_no_matrices_and_a_note_says_so():
    _, sym, params, _ = setting("rms norm")
    dead = params | {"norm.weight": params["norm.weight"] * torch.tensor([0.0] + [1.0] * 7)}
    found = align(sym, dead, params, "ste", objective="l2", steps=2)
    assert not found.element.matrices
    assert found.notes[0] == (
        "'norm.weight' has entries that are 0, so that the units of 'blocks.0.norm1' cannot be mixed: no matrices were "
        "learned"
    )


@pytest.mark.parametrize("name", ["low-rank adapter", "layer norm"])
def test_a_wrong_determinant_is_turned_back(name):
    """Networks that differ by a reflection along the direction in which they agree least: no generator gets there."""
    _, sym, params, _ = setting(name)
    stream = next(key for key in sym.continuous if sym.classes[key].parent is None)
    g = reflection(sym, stream, params, params)
    assert torch.linalg.det(g.matrices[stream]) == pytest.approx(-1)
    other = sym.act(g, params)
    for key, tensor in sym.act(reflection(sym, stream, params, other), other).items():
        assert torch.allclose(tensor, params[key]), key


def test_only_the_element_between_counts_but_behind_gains():
    """The midpoint of h·a and h·b is h·(the midpoint of a and b) where h acts linearly."""
    for name, linear in (("low-rank adapter", True), ("layer norm", False)):
        model, sym, params, x = setting(name)
        other, h = other_weights(params), near_identity(sym, 0.5)
        ends = [(params, other), (sym.act(h, params), sym.act(h, other))]
        one, two = (outputs(model, {key: (a[key] + b[key]) / 2 for key in a}, x) for a, b in ends)
        assert torch.allclose(one, two) == linear
