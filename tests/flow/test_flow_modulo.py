"""Densities modulo the group: against the permanent and the enumeration of Gaussians, invariance, and the estimate."""

import itertools
import math

import pytest
import torch
from flow_spaces import generator, normal

from coset.distribution import MeanField, Samples
from coset.errors import InputError
from coset.flow import FlowRecipe, Solver, fit_flow, log_prob_modulo
from coset.flow import _modulo as modulo
from coset.models import MLP
from coset.posterior.symmetrized import log_prob_symmetrized
from coset.symmetry import Symmetry, discover
from coset.symmetry.stacks import act_stack, random_stack
from discoveries import shared


def small(widths=(3,)):
    """A perceptron in float64, its symmetry, and networks of it."""
    model = MLP(2, list(widths), 1).double()
    sym = shared(f"modulo: {widths}", model, lambda: discover(model, torch.zeros(2, 2, dtype=torch.float64)))
    start = {n: t.detach() for n, t in model.state_dict().items()}
    return sym, start, {n: t + 0.4 * normal(5, *t.shape, seed=k) for k, (n, t) in enumerate(start.items())}


def broad(start):
    return MeanField(start, {n: 0.2 + 0.3 * torch.rand(t.shape, generator=generator(4), dtype=t.dtype)
                             for n, t in start.items()})  # fmt: skip


@pytest.mark.parametrize("method", ["permanent", "enumeration"])
def test_of_gaussians_it_is_the_symmetrized_density(method):
    sym, start, stack = small()
    q = broad(start)
    torch.testing.assert_close(log_prob_modulo(sym, q, stack), log_prob_symmetrized(sym, q, stack, method=method))


@pytest.mark.parametrize("entries", [1, 60, 10**6])
def test_of_two_layers_by_brute_force_whatever_is_held_at_once(entries, monkeypatch):
    monkeypatch.setattr(modulo, "_ENTRIES", entries)
    sym, start, stack = small((3, 2))
    q = broad(start)
    total = []
    for p, r in itertools.product(itertools.permutations(range(3)), itertools.permutations(range(2))):
        moved = {
            "layers.0.weight": stack["layers.0.weight"][:, p, :],
            "layers.0.bias": stack["layers.0.bias"][:, p],
            "layers.1.weight": stack["layers.1.weight"][:, r][:, :, p],
            "layers.1.bias": stack["layers.1.bias"][:, r],
            "layers.2.weight": stack["layers.2.weight"][:, :, r],
            "layers.2.bias": stack["layers.2.bias"],
        }
        total.append(q.log_prob(moved))
    assert len(total) == 12
    torch.testing.assert_close(log_prob_modulo(sym, q, stack), torch.logsumexp(torch.stack(total), 0) - math.log(12))


def test_it_is_the_same_on_an_orbit_and_of_one_network():
    sym, start, stack = small((3, 2))
    q, finite = broad(start), sym.restrict(scales=False, signs=False)
    known = log_prob_modulo(sym, q, stack)
    moved = act_stack(finite, random_stack(finite, 5, generator(2)), stack)
    torch.testing.assert_close(log_prob_modulo(sym, q, moved), known)
    assert (q.log_prob(moved) - q.log_prob(stack)).abs().max() > 1
    one = {name: tensor[2] for name, tensor in stack.items()}
    torch.testing.assert_close(log_prob_modulo(sym, q, one), known[2])


def test_of_a_flow_that_moves_with_units_it_is_the_density_itself():
    sym, _, stack = small()
    recipe = FlowRecipe(steps=2, every=2, batch_size=4)
    options = {"sym": sym, "order": "given", "show": False, "solver": Solver("rk4", 2)}
    moving = fit_flow(stack, recipe, field="pna", field_options={"channels": 4, "layers": 1}, **options).posterior
    moving.field.double()
    torch.testing.assert_close(log_prob_modulo(sym, moving, stack), moving.log_prob(stack), rtol=1e-6, atol=1e-6)
    plain = fit_flow(stack, recipe, field_options={"hidden": 4, "layers": 1}, **options).posterior
    assert (log_prob_modulo(sym, plain, stack) - plain.log_prob(stack)).abs().max() > 0.1
    probed = {"trace": "hutchinson", "probes": 2, "seed": 1}
    estimate = log_prob_modulo(sym, plain, stack, draws=1, **probed)
    torch.testing.assert_close(estimate, plain.log_prob(stack, **probed))


def test_what_drawn_elements_estimate():
    """With K elements: a bound that decreases with K of draws of q, and of the mean over elements a bound for any θ."""
    sym, start, _ = small()
    q = broad(start)
    drawn = q.sample(200, generator(7))
    exact = log_prob_modulo(sym, q, drawn)
    means = {}
    for draws in (1, 4, 64):
        found = torch.stack([log_prob_modulo(sym, q, drawn, draws=draws, seed=seed) for seed in range(6)])
        means[draws] = float(found.mean())
        most = math.log((6 + draws - 1) / draws)
        spread = (found.std(0) / math.sqrt(6)).clamp_min(1e-9)
        # The mean over elements is at most so much larger, one network at a time; 6 errors of a mean of 6.
        assert (found.mean(0) - exact - most < 6 * spread + 1e-9).all()
    torch.testing.assert_close(log_prob_modulo(sym, q, drawn, draws=1), q.log_prob(drawn).double())
    assert means[1] > means[4] > means[64] > float(exact.mean())
    assert means[64] - float(exact.mean()) < 0.1 < means[1] - float(exact.mean()) < math.log(6)
    again = log_prob_modulo(sym, q, drawn, draws=4, seed=3)
    assert torch.equal(again, log_prob_modulo(sym, q, drawn, draws=4, seed=3))


def test_refusals():
    sym, start, stack = small()
    q = broad(start)
    wide = Symmetry.from_axes({"a": "u", "b": "u"}, {"a": torch.zeros(12), "b": torch.zeros(12)})
    flat = MeanField({n: torch.zeros(12) for n in "ab"}, {n: torch.ones(12) for n in "ab"})
    with pytest.raises(InputError, match=r"sym has 10\^8.68 permutations; expected 100,000 or fewer"):
        log_prob_modulo(wide, flat, {n: torch.zeros(1, 12) for n in "ab"})
    with pytest.raises(InputError, match="draws is 0; expected a whole number ≥ 1"):
        log_prob_modulo(sym, q, stack, draws=0)
    with pytest.raises(InputError, match="q is a dict; expected a distribution"):
        log_prob_modulo(sym, start, stack)
    with pytest.raises(InputError, match="params are no network of sym"):
        log_prob_modulo(sym, q, {n: t[None] for n, t in stack.items()})
    with pytest.raises(InputError, match="a Samples has no density"):
        log_prob_modulo(sym, Samples({n: t[None] for n, t in stack.items()}), stack)
