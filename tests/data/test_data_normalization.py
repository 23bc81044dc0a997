"""Normalization: equal to the definition, undone exactly, the same for every shape of the same values."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coset.data import Normalization
from coset.data.normalization import fit_array, identity
from coset.errors import InputError


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))))
def test_images_are_fitted_per_channel(x):
    found = fit_array(x, 255.0)
    pixels = x.astype(np.float64) / 255.0
    std = pixels.std(axis=(0, 2, 3))
    np.testing.assert_allclose(found.mean, pixels.mean(axis=(0, 2, 3)), rtol=1e-12, atol=1e-15)
    constant = x.max(axis=(0, 2, 3)) == x.min(axis=(0, 2, 3))
    np.testing.assert_allclose(found.std, np.where(constant, 1.0, std), rtol=1e-9)


def test_table_is_fitted_per_feature():
    x = np.random.default_rng(0).normal([1.0, -5.0], [2.0, 0.1], (50, 2))
    found = fit_array(x)
    z = found.apply(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(z.mean(axis=0), 0.0, atol=1e-14)
    np.testing.assert_allclose(z.std(axis=0), 1.0, rtol=1e-14)
    np.testing.assert_allclose(found.std, x.std(axis=0), rtol=1e-14)


def test_constant_features_keep_their_scale():
    # The mean of many 0.1 is not 0.1 in floating point: a spread made of rounding must not count.
    x = np.stack([np.full(1000, 0.1), np.arange(1000.0)], axis=1)
    found = fit_array(x)
    assert found.std[0] == 1.0
    assert found.mean[0] == 0.1
    assert (found.apply(torch.from_numpy(x))[:, 0] == 0).all()
    assert fit_array(np.full((3, 1, 2, 2), 51, np.uint8), 255.0) == Normalization((0.2,), (1.0,))


@given(
    st.integers(0, 4),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0),
)
def test_undo_inverts_apply_in_every_shape(count, channels, side, dtype, seed):
    generator = torch.Generator().manual_seed(seed % 2**31)
    x = torch.randn(count, channels, side, side, generator=generator, dtype=dtype)
    mean, std = torch.randn(channels, generator=generator), 0.5 + torch.rand(channels, generator=generator)
    normalization = Normalization(tuple(mean.tolist()), tuple(std.tolist()))
    z = normalization.apply(x)
    broadcast = (x - mean.to(dtype)[None, :, None, None]) / std.to(dtype)[None, :, None, None]
    assert z.dtype == dtype
    torch.testing.assert_close(z, broadcast)
    torch.testing.assert_close(normalization.undo(z), x)
    assert torch.equal(normalization.apply(x.flatten(1)), z.flatten(1))
    assert torch.equal(normalization.undo(z.flatten(1)), normalization.undo(z).flatten(1))


def test_apply_leaves_its_argument_and_keeps_gradients():
    normalization = Normalization((1.0, 2.0), (2.0, 4.0))
    x = torch.ones(3, 2, requires_grad=True)
    normalization.apply(x).sum().backward()
    assert torch.equal(x.detach(), torch.ones(3, 2))
    assert torch.equal(x.grad, torch.tensor([[0.5, 0.25]]).expand(3, 2))
    transposed = torch.arange(6.0).reshape(2, 3).T
    expected = (transposed - torch.tensor([1.0, 2.0])) / torch.tensor([2.0, 4.0])
    assert torch.equal(normalization.apply(transposed), expected)


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**31))
def test_tensors_are_fitted_per_channel_like_bytes(count, channels, side, seed):
    shape, generator = (count, channels, side, side), torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    found, exact = Normalization.fit(pixels.double() / 255), fit_array(pixels.numpy(), 255.0)
    np.testing.assert_allclose(found.mean, exact.mean, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(found.std, exact.std, rtol=1e-9)
    features = pixels.flatten(1).double()
    assert Normalization.fit(features) == fit_array(features.numpy())


@pytest.mark.parametrize("shape", [(3,), (0, 2), ()])
def test_nothing_to_fit_is_refused(shape):
    with pytest.raises(InputError, match=r"x has shape .* with at least one example"):
        Normalization.fit(torch.zeros(shape))


def test_identity_changes_nothing():
    x = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(identity(3).apply(x), x)
    assert torch.equal(identity(3).undo(x), x)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 3, 4), (2, 4, 3, 3)])
def test_other_shapes_are_refused(shape):
    channels = 2 if shape == (2, 3, 4) else 3
    with pytest.raises(InputError, match="x has shape"):
        identity(channels).apply(torch.zeros(shape))
