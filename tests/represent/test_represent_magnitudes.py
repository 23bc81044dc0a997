"""Features of any size: multiplied by c, in every measure, against the same features as they are."""

from functools import cache

import pytest
import torch

from coset.errors import InputError
from coset.models import MLP
from coset.represent import GROUPS, cka, cka_interval, cka_of_batches, compare_layers, procrustes, procrustes_interval
from coset.represent.similarity import KERNELS, cka_test
from coset.represent.similarity._procrustes import cross_moments, procrustes_of_moments
from coset.represent.stitching.least_squares import full_map, low_rank_map, monomial_map, orthogonal_map, products

SCALES = [
    *((torch.float32, c) for c in (1e-30, 1e-22, 1e22, 1e30)),
    *((torch.float64, c) for c in (1e-200, 1e-150, 1e150, 1e200)),
]


def pair(dtype, c=1.0, d=None):
    """Two features of 12 examples, 4 channels and 2 positions, alike in part, times c and d."""
    generator = torch.Generator().manual_seed(0)
    x, noise = (torch.randn(12, 4, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    return [(z.to(dtype).double() * s).to(dtype) for z, s in ((x, c), (x[:, [2, 0, 3, 1]] + 0.5 * noise, d or c))]


def rows(dtype, c):
    return products([tuple(z.movedim(1, -1).flatten(0, 1) for z in pair(dtype, c))])


def element(found):
    parts = (found.order, found.signs, found.rotation)
    return torch.cat([torch.tensor([found.distance]).double(), *(p.double().flatten() for p in parts if p is not None)])


def interval(found):
    return torch.tensor([found.value, found.low, found.high], dtype=torch.float64)


LAWS = {
    **{f"procrustes {g}": lambda t, c, g=g: element(procrustes(*pair(t, c), group=g)) for g in GROUPS},
    "procrustes of one": lambda t, c: element(procrustes(*pair(t, c, 1.0))),
    **{f"cka {g}": lambda t, c, g=g: torch.tensor(cka(*pair(t, c), group=g)) for g in GROUPS},
    **{
        f"cka {k}": lambda t, c, k=k: torch.tensor(cka(*pair(t, c), group="permutation", kernel=k, batches=2))
        for k in KERNELS
    },
    "cka of one": lambda t, c: torch.tensor(cka(*pair(t, c, 1.0), estimator="biased", form="gram")),
    "interval of cka": lambda t, c: interval(cka_interval(*pair(t, c), seed=0, draws=20)),
    "interval of procrustes": lambda t, c: interval(procrustes_interval(*pair(t, c), seed=0, draws=20)),
    "test of cka": lambda t, c: torch.tensor(cka_test(*pair(t, c), seed=0, draws=20, show=False).p_value),
}
# Of sums alone, which are numbers for features in float32.
OF_SUMS = {
    "batches": lambda t, c: torch.tensor(cka_of_batches([tuple(pair(t, c))], group="permutation")),
    "moments": lambda t, c: element(procrustes_of_moments(cross_moments([tuple(pair(t, c))]), "permutation")),
    "full map": lambda t, c: full_map(rows(t, c)),
    "map of low rank": lambda t, c: torch.linalg.multi_dot([*low_rank_map(rows(t, c), 2)]),
    "orthogonal map": lambda t, c: orthogonal_map(rows(t, c)),
    "monomial map": lambda t, c: monomial_map(rows(t, c))[0] * monomial_map(rows(t, c))[1],
    "permutation": lambda t, c: monomial_map(rows(t, c), scales=False)[0],
}


@cache
def as_they_are(law, dtype):
    return {**LAWS, **OF_SUMS}[law](dtype, 1.0)


def check(found, expected, dtype):
    tolerance = 1e-5 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "c"), SCALES)
@pytest.mark.parametrize("law", LAWS)
def test_measures_do_not_notice_the_size_of_features(law, dtype, c):
    check(LAWS[law](dtype, c), as_they_are(law, dtype), dtype)


@pytest.mark.parametrize("c", [1e-30, 1e-22, 1e22, 1e30])
@pytest.mark.parametrize("law", OF_SUMS)
def test_measures_of_sums_do_not_notice_the_size_of_features_in_float32(law, c):
    check(OF_SUMS[law](torch.float32, c), as_they_are(law, torch.float32), torch.float32)


@pytest.mark.parametrize("c", [1e-200, 1e200])
@pytest.mark.parametrize("law", OF_SUMS)
def test_sums_that_are_no_numbers_are_refused(law, c):
    with pytest.raises(InputError, match="whose square float64 does not hold; expected"):
        OF_SUMS[law](torch.float64, c)


@pytest.mark.parametrize(("dtype", "c"), SCALES)
def test_single_channels_of_any_size(dtype, c):
    """Modulo positive scales of the channels: one of them as small or large as it may be, the others as they are."""
    x, y = pair(dtype)
    far = x.clone()
    far[:, 1] = (far[:, 1].double() * c).to(dtype)
    check(element(procrustes(far, y)), element(procrustes(x, y)), dtype)
    check(torch.tensor(cka(far, y, group="permutation")), torch.tensor(cka(x, y, group="permutation")), dtype)


def test_a_layer_whose_activations_cannot_be_squared_is_refused():
    model = MLP(3, [4], 2).double()
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    far = {name: tensor * 1e-200 for name, tensor in model.state_dict().items()}
    layers = ["layers.0"]
    for measure, group in (("procrustes", "permutation"), ("cka", "permutation")):
        with pytest.raises(InputError, match="whose square float64 does not hold"):
            compare_layers(model, model, x, layers, measure=measure, group=group, params_x=far, show=False)
    with pytest.raises(InputError, match=r"layer 'layers.0' of x has features that do not tell the examples apart"):
        compare_layers(model, model, x, layers, params_x=far, show=False)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_features_that_are_no_numbers_are_refused(bad):
    x, y = pair(torch.float64)
    x[0, 0, 0] = bad
    for measure in (cka, procrustes):
        with pytest.raises(InputError, match="x holds NaN or infinite values"):
            measure(x, y)


def test_features_of_zeros_have_their_rule():
    """Dead features are at half the largest distance, sqrt(1/4), from any others, and tell no examples apart."""
    _, y = pair(torch.float64)
    zero = torch.zeros_like(y)
    assert procrustes(zero, y).distance == pytest.approx(0.5)
    with pytest.raises(InputError, match="x has features that do not tell the examples apart"):
        cka(zero, y)
