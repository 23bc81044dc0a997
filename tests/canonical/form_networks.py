"""Every network of the tables of discovery, with weights in general position: what canonical forms are tried on."""

import sys
from functools import cache
from pathlib import Path

import torch

import architectures
import mixing_networks
import turning_networks

sys.path.insert(0, str(Path(__file__).parent.parent / "discovery"))

import test_discovery_models

from coset.canonical import canonicalize
from discoveries import shared

FREE = {"discovered: spectral norm", "mixing: deep linear", "mixing: convolutions"}
"""Networks of which the form leaves something open that acts on weights, and says so: scales that no norm settles, and
linear maps that write directions that nothing reads.
"""

NAMES = [
    *(f"discovered: {name}" for name in test_discovery_models.NETWORKS),
    *(f"mixing: {name}" for name in mixing_networks.NETWORKS),
    *(f"turning: {name}" for name in turning_networks.TURNING),
    *(f"declared: {name}" for name in architectures.CASES),
]


@cache
def setting(name):
    """A network, its symmetry, its weights, its inputs."""
    table, _, own = name.partition(": ")
    if table == "discovered":
        build, shapes, _ = test_discovery_models.NETWORKS[own]
        model, inputs = test_discovery_models.built(build), test_discovery_models.examples(shapes)
        sym = shared(name, model, lambda: test_discovery_models.discovered(own)[2])
        return model, sym, architectures.randomized(model, torch.Generator().manual_seed(5)), inputs
    if table == "declared":
        model, sym, shape = architectures.made(own)
        params = architectures.randomized(model, torch.Generator().manual_seed(5))
        return (
            model,
            sym,
            params,
            (torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(6)),),
        )
    model, sym, params, x = {"mixing": mixing_networks, "turning": turning_networks}[table].setting(own)
    return model, sym, params, (x,)


@cache
def form(name):
    """The canonical form of its weights."""
    _, sym, params, _ = setting(name)
    return canonicalize(sym, params)


def outputs(model, params, inputs):
    """All outputs of the network with these weights."""
    owners = {name: params[name] for name, _ in (*model.named_parameters(), *model.named_buffers())}
    with torch.no_grad():
        return torch.utils._pytree.tree_leaves(torch.func.functional_call(model, owners, inputs))


def moved(sym, params, seed):
    """The same function at another place: permuted, scaled, flipped, turned by half-turns, translated."""
    generator = torch.Generator().manual_seed(seed)
    g = sym.monomial.random(generator)
    if sym.turns:
        turns = sym.random(generator).turns
        result = sym.act(sym.element(g.permutations, g.scales, g.signs, turns=turns), params)
    else:
        result = sym.monomial.act(g, params)
    return sym.translate(sym.random_translation(result, generator), result) if sym.translations else result


def numbers(params):
    """The names of parameters that are not whole numbers, and not empty."""
    return [n for n, t in params.items() if (t.is_floating_point() or t.is_complex()) and t.numel()]
