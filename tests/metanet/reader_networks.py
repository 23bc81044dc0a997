"""Networks of the tables of discovery for readers, and elements of the part of the group that a gauge removes."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "canonical"))

import form_networks

NAMES = form_networks.NAMES
OPEN = form_networks.FREE
"""Networks of whose scales or matrices canonical forms leave something open, and say so."""

setting = form_networks.setting


def half_turns(sym, seed):
    """Random turns that only flip and shift."""
    turns = sym.random(torch.Generator().manual_seed(seed)).turns
    return {key: k for key, k in turns.items() if sym.turns[key].order == 0 and not sym.turns[key].taken}


def element(sym, gauge, seed):
    """A random element of all that readers with a gauge do not see."""
    generator = torch.Generator().manual_seed(seed)
    if gauge == "none":
        return sym.element(sym.monomial.random(generator).permutations)
    g = sym.monomial.random(generator)
    if gauge == "layers":
        return sym.element(g.permutations, g.scales, g.signs, turns=half_turns(sym, seed))
    whole = sym.random(generator)
    mixed = {key: m for key, m in whole.matrices.items() if sym.continuous[key].kind == "general"}
    return sym.element(g.permutations, g.scales, g.signs, mixed, whole.turns)


def moved(sym, params, gauge, seed):
    """The network moved by it, and with the canonical gauge translated."""
    result = sym.act(element(sym, gauge, seed), params)
    if gauge == "canonical" and sym.translations:
        values = sym.random_translation(result, torch.Generator().manual_seed(seed))
        result = sym.translate(values, result)
    return result


def stacked(*networks):
    """Networks with a leading axis."""
    return {name: torch.stack([network[name] for network in networks]) for name in networks[0]}
