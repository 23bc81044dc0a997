"""Rotations by randomised Hadamard blocks."""

import pytest
import torch

from coset.errors import InputError
from coset.symmetry.hadamard import centred_hadamard_matrix, hadamard_matrix
from mixing_networks import outputs, setting


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def exact(matrix):
    one = torch.eye(len(matrix), dtype=torch.float64)
    torch.testing.assert_close(matrix @ matrix.T, one, rtol=0, atol=2e-14)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 12, 48, 64])
def test_blocks_are_orthogonal_and_fix_1_where_they_have_to(n):
    for seed in range(3):
        exact(hadamard_matrix(n, generator(seed)))
        matrix = centred_hadamard_matrix(n, generator(seed))
        exact(matrix)
        torch.testing.assert_close(matrix.sum(1), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-13)


def test_entries_are_of_one_size_and_signs_are_random():
    whole = hadamard_matrix(64, generator())
    torch.testing.assert_close(whole.abs(), torch.full((64, 64), 0.125, dtype=torch.float64), rtol=0, atol=1e-15)
    assert not torch.equal(whole, hadamard_matrix(64, generator(1)))
    # A rank-one change of a matrix whose entries are all 1/√n; a Haar rotation of 64 units has entries of 0.4.
    assert float(centred_hadamard_matrix(64, generator()).abs().max()) < 0.36


def test_an_outlier_is_spread_over_all_units():
    x = torch.randn(64, generator=generator(3), dtype=torch.float64)
    x[5] = 100.0
    turned = hadamard_matrix(64, generator()) @ x
    assert float(x.abs().max() / x.square().mean().sqrt()) > 7
    assert float(turned.abs().max() / turned.square().mean().sqrt()) < 2


@pytest.mark.parametrize("network", ["rms norm", "layer norm", "cosine head", "grouped queries"])
def test_the_function_stays(network):
    model, sym, theta, x = setting(network)
    g = sym.hadamard(generator(2))
    assert set(g.matrices) == {name for name, item in sym.continuous.items() if item.kind != "general"}
    torch.testing.assert_close(outputs(model, sym.act(g, theta), x), outputs(model, theta, x), rtol=1e-9, atol=1e-9)


def test_without_a_stream_that_turns_there_is_none():
    _, sym, _, _ = setting("bottleneck")
    with pytest.raises(InputError, match=r"no class turns in this symmetry .* is general"):
        sym.hadamard(generator())
    with pytest.raises(InputError, match=r"hadamard needs a torch\.Generator, found int"):
        sym.hadamard(0)
