"""Planted elements come back exactly: every architecture of the discovery tests, points and posteriors, with scales."""

import os
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
import torch

from architectures import CASES, made, randomized
from coset.alignment import align
from coset.distribution import MeanField
from coset.errors import InputError
from coset.models import ResidualMLP
from coset.symmetry import discover

sys.path.append(str(Path(__file__).parents[1] / "discovery"))
import test_discovery_models
import test_discovery_transformers
from test_discovery_models import NETWORKS
from test_discovery_transformers import MODELS

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
# Rotary pairs keep their order: there nothing is planted but signs.
ARCHITECTURES = [*(f"case: {name}" for name in CASES), *NETWORKS, *MODELS]
# Where each takes seconds, posteriors and scales are planted in one of every kind.
FEWER = [name for name in ARCHITECTURES if name not in MODELS] + [
    name for name in MODELS if name in ("BertModel", "LlamaForCausalLM", "T5EncoderModel", "ConvNextModel")
]


@cache
def _network(name):
    """A model in float64 and its monomial symmetry; what is discovered is what the tests of discovery found.

    Elements that mix units as well are planted in ``test_align_rotations``.
    """
    if name.startswith("case: "):
        model, sym, _ = made(name.removeprefix("case: "))
        return model, sym
    if name in NETWORKS:
        model, _, sym = test_discovery_models.discovered(name)
        return model, sym.monomial
    model, sym = test_discovery_transformers.discovered(name)
    return deepcopy(model).double(), sym.monomial


def _trained(sym):
    return [name for name in sym.structures if not sym.parameters[name].buffer]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_permutations_and_signs_of_a_point(name):
    model, sym = _network(name)
    generator = torch.Generator().manual_seed(0)
    reference, finite = randomized(model, generator), sym.restrict(scales=False)
    result = align(sym, reference, finite.act(finite.random(generator), reference), seed=1)
    for key in _trained(sym):
        assert torch.equal(result.params[key], reference[key]), key
    assert all(value == pytest.approx(1) for value in result.agreement.values())


@pytest.mark.parametrize("name", FEWER)
def test_permutations_and_signs_of_a_posterior(name):
    model, sym = _network(name)
    generator = torch.Generator().manual_seed(2)
    mean, finite = randomized(model, generator), sym.restrict(scales=False)
    std = {
        key: 0.1 + torch.rand(mean[key].shape, generator=generator, dtype=torch.float64)
        for key in mean
        if mean[key].is_floating_point() and not sym.parameters[key].buffer
    }
    reference = MeanField(mean, std)
    result = align(sym, reference, finite.act(finite.random(generator), reference), seed=1)
    assert isinstance(result.aligned, MeanField)
    for key in _trained(sym):
        assert torch.equal(result.aligned.mean[key], mean[key]), key
        if key in std:  # a complex weight has no deviation
            assert torch.equal(result.aligned.std[key], std[key]), key


@pytest.mark.parametrize("name", FEWER)
def test_scales_too(name):
    """Matched without their scales, and given the reference's."""
    model, sym = _network(name)
    generator = torch.Generator().manual_seed(3)
    reference = randomized(model, generator)
    other = sym.act(sym.random(generator), reference)
    if name == "spectral norm":
        # A matrix beside its singular vectors, each with a scale of its own: no order in which to normalise them.
        with pytest.raises(InputError, match="cannot be normalised one after the other"):
            align(sym, reference, other, gauge="normalized", scales=True, seed=1)
        return
    result = align(sym, reference, other, gauge="normalized", scales=True, seed=1)
    for key in _trained(sym):
        torch.testing.assert_close(result.params[key], reference[key], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "name",
    ["case: grouped+groupnorm", "case: cct", "case: resnet20, frn", "resnext block", "dense block", "lstm, projected",
     "tied autoencoder, deep", "LlamaForCausalLM", "Phi3ForCausalLM", "ConvNextModel"],
)  # fmt: skip
def test_scales_of_a_posterior(name):
    """Means and deviations come back together: |d| of what moved the means."""
    model, sym = _network(name)
    generator = torch.Generator().manual_seed(4)
    mean = randomized(model, generator)
    std = {key: 0.1 + torch.rand(mean[key].shape, generator=generator, dtype=torch.float64) for key in _trained(sym)}
    reference = MeanField(mean, std)
    result = align(sym, reference, sym.act(sym.random(generator), reference), gauge="normalized", scales=True, seed=1)
    for key in _trained(sym):
        torch.testing.assert_close(result.aligned.mean[key], mean[key], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(result.aligned.std[key], std[key], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("inputs", "blocks", "trials"), [(2, 2, 100), (10, 5, 100)])
def test_residual_mlps_a_hundred_times(inputs, blocks, trials):
    """Widths of 30 and 50: the default never fails, where one ascent from the identity often does."""
    model = ResidualMLP(inputs, inputs, width=30, inner=50, blocks=blocks).eval()
    sym = discover(model, torch.zeros(2, inputs), verify=False).restrict(scales=False, signs=False)
    found = failed = 0
    for seed in range(trials):
        generator = torch.Generator().manual_seed(seed)
        reference = {key: torch.randn(value.shape, generator=generator) for key, value in model.state_dict().items()}
        other = sym.act(sym.random(generator), reference)

        def recovered(reference=reference, other=other, seed=seed, **options):
            params = align(sym, reference, other, seed=seed, **options).params
            return all(torch.equal(params[key], reference[key]) for key in reference)

        found += recovered()
        if failed <= 0.1 * trials:  # often enough is enough
            failed += not recovered(relax=False)
    assert found == trials
    assert failed > 0.1 * trials
