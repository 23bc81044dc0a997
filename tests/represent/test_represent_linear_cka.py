"""The linear kernel by products of features: symmetric products by halves, and centring with large means."""

from fractions import Fraction

import pytest
import torch

from coset.represent import cka
from coset.represent.similarity import kernels as kernels_module
from coset.represent.similarity.kernels import linear_sums


def features(n, channels, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, channels, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("d", "e"), [(7, 3), (6, 6), (1, 9)])
def test_halves_of_symmetric_products_are_the_whole(d, e, monkeypatch):
    monkeypatch.setattr(kernels_module, "_COLUMNS", 3)
    monkeypatch.setattr(kernels_module, "_ROWS", 4)
    x, y = features(11, d), features(11, e, 1)
    a, b = x - x.mean(0), y - y.mean(0)
    k, l = a @ a.T, b @ b.T  # noqa: E741
    found = linear_sums(x, y)
    for value, left, right in ((found.kl, k, l), (found.kk, k, k), (found.ll, l, l)):
        expected = float((left * right).sum() - left.diagonal() @ right.diagonal())
        assert value == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(found.rows_k, k.sum(1) - k.diagonal(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("offset", [1e3, 1e6])
@pytest.mark.parametrize("form", ["features", "gram"])
def test_means_however_large_are_subtracted_before_anything_is_multiplied(offset, form):
    """Entries of x + c are known to 1e-16·c, and no more is lost; products of them would lose the square of c."""
    x, y = features(300, 5), features(300, 4, 1)
    y[:, :3] += x[:, :3]
    value = cka(x, y)
    assert cka(x + offset, y - 3 * offset, form=form) == pytest.approx(value, abs=1e-14 * offset)


def test_whole_numbers_give_the_exact_rational():
    """Kornblith's formula in rationals, of features far from 0 whose examples are ordered."""
    x = torch.arange(60, dtype=torch.float64).reshape(20, 3) % 7 + 2.0**30
    y = (torch.arange(40, dtype=torch.float64).reshape(20, 2) ** 2) % 11
    a, b = ([[Fraction(v) for v in row] for row in z.tolist()] for z in (x, y))

    def product(p, q):
        means = [[sum(column) / len(z) for column in zip(*z, strict=True)] for z in (p, q)]
        return sum(
            sum((u[i] - means[0][i]) * (v[j] - means[1][j]) for u, v in zip(p, q, strict=True)) ** 2
            for i in range(len(p[0]))
            for j in range(len(q[0]))
        )

    expected = float(product(a, b)) / (float(product(a, a)) * float(product(b, b))) ** 0.5
    # The mean of x is rounded to 2⁻²³.
    assert cka(x, y, estimator="biased", form="features") == pytest.approx(expected, abs=1e-8)
    assert cka(x - 2.0**30, y, estimator="biased", form="features") == pytest.approx(expected, abs=1e-14)
