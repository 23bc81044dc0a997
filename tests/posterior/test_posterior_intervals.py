"""Quantiles, intervals and regions of predictives, pictures, and draws for other tools."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from coset.distribution import Samples
from coset.errors import InputError
from coset.posterior import ClassPredictive, RealPredictive, plot_predictive, plot_ranks, plot_trace, to_arviz, to_frame
from coset.posterior.prediction.intervals import mixture_quantile, mixture_regions, smallest_sets


def real(means, stds):
    means, stds = (torch.as_tensor(part, dtype=torch.float64) for part in (means, stds))
    noise, model = stds.square().mean(0).sqrt(), means.std(0, correction=0)
    return RealPredictive(len(means), None, means.mean(0), noise, model, means, stds)


def test_quantiles_of_one_gaussian_are_its_own():
    means, stds = torch.tensor([[1.0, -3.0]]).double(), torch.tensor([[2.0, 0.1]]).double()
    for p in (0.001, 0.3, 0.5, 0.97):
        expected = stats.norm.ppf(p, means[0], stds[0])
        np.testing.assert_allclose(mixture_quantile(means, stds, p), expected, rtol=1e-9)


def test_quantiles_have_their_probability_under_the_mixture():
    generator = torch.Generator().manual_seed(0)
    means = 3 * torch.randn(7, 4, 2, generator=generator, dtype=torch.float64)
    stds = torch.rand(7, 4, 2, generator=generator, dtype=torch.float64) + 0.05
    found = real(means, stds)
    low, high = found.interval(0.8)
    mass = (torch.special.ndtr((high - means) / stds) - torch.special.ndtr((low - means) / stds)).mean(0)
    torch.testing.assert_close(mass, torch.full_like(mass, 0.8), rtol=0, atol=1e-12)
    assert (found.quantile(0.5) > low).all()


def test_a_region_of_a_gaussian_is_its_central_interval():
    ((low, high),) = mixture_regions(torch.tensor([1.0]).double(), torch.tensor([0.5]).double(), 0.9)
    np.testing.assert_allclose([low, high], stats.norm.interval(0.9, 1, 0.5), atol=5e-3)


def test_a_region_of_two_modes_is_two_intervals_of_the_mass():
    means, stds = torch.tensor([-3.0, 3.0, 3.0]).double(), torch.tensor([0.5, 0.4, 0.4]).double()
    regions = mixture_regions(means, stds, 0.9)
    assert len(regions) == 2
    ends = torch.tensor(regions, dtype=torch.float64)
    cdf = torch.special.ndtr((ends[..., None] - means) / stds).mean(-1)
    assert float((cdf[:, 1] - cdf[:, 0]).sum()) == pytest.approx(0.9, abs=3e-3)
    density = (torch.exp(-0.5 * ((ends[..., None] - means) / stds).square()) / stds).mean(-1)
    assert float(density.max() / density.min()) == pytest.approx(1, abs=0.01)
    assert real(means[:, None, None], stds[:, None, None]).highest_density(0.9) == [[regions]]


def test_the_smallest_sets_of_labels():
    probabilities = torch.tensor([[0.5, 0.1, 0.4], [0.05, 0.9, 0.05]])
    assert smallest_sets(probabilities, 0.85).tolist() == [[True, False, True], [False, True, False]]
    assert smallest_sets(probabilities, 0.95).sum(1).tolist() == [3, 2]


def test_intervals_of_class_probabilities_are_over_the_draws():
    draws = torch.rand(50, 3, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    probabilities = torch.cat([draws, 1 - draws], -1)
    found = ClassPredictive(50, None, probabilities.mean(0).log(), torch.zeros(3), probabilities.log())
    low, high = found.interval(0.5)
    torch.testing.assert_close(low, probabilities.quantile(0.25, dim=0))
    torch.testing.assert_close(high, probabilities.quantile(0.75, dim=0))
    bare = ClassPredictive(50, None, probabilities.mean(0).log(), torch.zeros(3), None)
    with pytest.raises(InputError, match="were not kept"):
        bare.quantile(0.5)


@pytest.mark.parametrize("level", [0.0, 1.0, -1, True, math.nan])
def test_levels_are_checked(level):
    with pytest.raises(InputError, match="expected a number between 0 and 1"):
        real([[[0.0]]], [[[1.0]]]).interval(level)


def some_samples(chains=3, draws=40):
    generator = torch.Generator().manual_seed(0)
    return Samples({
        "weight": torch.randn(chains, draws, 2, 3, generator=generator),
        "noise": torch.randn(chains, draws, generator=generator),
    })  # fmt: skip


def test_pictures_show_what_they_are_given():
    x = torch.linspace(-1, 1, 9)
    predicted = real(torch.randn(5, 9, 1, generator=torch.Generator().manual_seed(0)), torch.ones(5, 9, 1))
    (axes,) = plot_predictive(predicted, x[:, None], data=(x, x)).axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), predicted.mean[:, 0])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["90 %", "50 %", "mean", "data"]
    samples = some_samples()
    panels = plot_trace(samples, ["weight[1, 2]", "noise"]).axes
    np.testing.assert_allclose(panels[0].lines[1].get_ydata(), samples.params["weight"][1, :, 1, 2])
    ranks = plot_ranks(samples, bins=4).axes
    assert len(ranks) == 4
    for axes in ranks:
        steps = [patch.get_data().values for patch in axes.patches]
        np.testing.assert_array_equal(np.sum(steps, 1), [40] * 3)
        np.testing.assert_array_equal(np.sum(steps, 0), [30] * 4)


def test_pictures_name_what_is_wrong():
    predicted = real(torch.zeros(2, 4, 1), torch.ones(2, 4, 1))
    with pytest.raises(InputError, match="x has 3 points; expected the 4"):
        plot_predictive(predicted, torch.zeros(3))
    with pytest.raises(InputError, match=r"x is \(4, 2\)"):
        plot_predictive(predicted, torch.zeros(4, 2))
    with pytest.raises(InputError, match="names has 'nope'"):
        plot_trace(some_samples(), ["nope"])


def test_a_frame_has_a_row_a_draw_and_a_column_a_weight():
    pytest.importorskip("pandas")
    samples = some_samples()
    frame = to_frame(samples)
    assert frame.shape == (120, 7)
    assert list(frame.columns[:2]) == ["weight[0, 0]", "weight[0, 1]"]
    assert frame.loc[(2, 7), "weight[1, 2]"] == float(samples.params["weight"][2, 7, 1, 2])


def test_a_data_tree_has_chains_and_draws():
    pytest.importorskip("xarray")
    samples = some_samples()
    tree = to_arviz(samples)
    assert tree["posterior"].sizes["chain"] == 3
    np.testing.assert_array_equal(tree["posterior"]["weight"].values, samples.params["weight"])
    assert tree["posterior"]["weight"].dims == ("chain", "draw", "weight_dim_0", "weight_dim_1")
