"""CKA modulo a group: invariance, closed forms, estimators, tiles and batches."""

import itertools

import pytest
import torch
from feature_pairs import pair, permuted, rotated
from hypothesis import given, settings
from hypothesis import strategies as st

from coset.errors import InputError
from coset.represent import cka, cka_of_batches, hsic
from coset.represent.channels import channel_statistics, normalization
from coset.represent.similarity import KERNELS
from coset.represent.similarity import kernels as kernels_module
from coset.represent.similarity.kernels import UnitFeatures, kernel_matrix
from coset.represent.unit_groups import permutation

SEEDS = st.integers(0, 2**31)
MONOMIAL = ["permutation", "signed-permutation"]
RIGID = ["rigid-permutation", "rigid-signed-permutation"]


def direct(x, y, kernel="max", estimator="unbiased"):
    """G_ReLU-CKA as it is written, with three indices and the textbook HSIC."""
    combine = {
        "max": lambda s: s.amax(-1),
        "min": lambda s: s.amin(-1),
        "sum": lambda s: s.sum(-1),
        "squares": lambda s: s.square().sum(-1),
        "median": lambda s: s.quantile(0.5, dim=-1),
    }[kernel]

    def matrix(z):
        z = z.reshape(*z.shape[:2], -1)
        z = z - z.mean((0, 2), keepdim=True)
        z = z / z.square().sum((0, 2), keepdim=True).sqrt()
        return combine((z[:, None] * z[None]).sum(-1))

    def textbook(k, l):  # noqa: E741
        n = len(k)
        if estimator == "biased":
            h = torch.eye(n, dtype=k.dtype) - 1 / n
            return (k @ h @ l @ h).trace() / (n - 1) ** 2
        k, l = k - k.diag().diag(), l - l.diag().diag()  # noqa: E741
        one = torch.ones(n, dtype=k.dtype)
        inner = (k @ l).trace() + (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2))
        return (inner - 2 / (n - 2) * one @ k @ l @ one) / (n * (n - 3))

    k, l = matrix(x), matrix(y)  # noqa: E741
    return float(textbook(k, l) / (textbook(k, k) * textbook(l, l)).sqrt())


@settings(max_examples=20)
@given(SEEDS, SEEDS)
def test_orthogonal_cka_is_unchanged_by_rotations(seed, other):
    x, y = pair(seed)
    for estimator in ("biased", "unbiased"):
        value = cka(x, y, estimator=estimator)
        assert cka(rotated(x, other), 3 * y, estimator=estimator) == pytest.approx(value, abs=1e-12)
        assert cka(x, rotated(y, other), estimator=estimator) == pytest.approx(value, abs=1e-12)


@settings(max_examples=20)
@given(SEEDS, SEEDS, st.sampled_from(list(KERNELS)))
def test_cka_modulo_scaled_permutations_is_unchanged_by_them_and_by_signs(seed, other, kernel):
    x, y = pair(seed)
    value = cka(x, y, group="permutation", kernel=kernel)
    assert cka(permuted(x, other, scales=True), y, group="permutation", kernel=kernel) == pytest.approx(
        value, abs=1e-10
    )
    moved = permuted(y, other, scales=True, signs=True)
    assert cka(x, moved, group="permutation", kernel=kernel) == pytest.approx(value, abs=1e-10)
    assert cka(x, moved, group="signed-permutation", kernel=kernel) == pytest.approx(value, abs=1e-10)


@settings(max_examples=20)
@given(SEEDS, SEEDS)
def test_cka_modulo_rigid_permutations_is_unchanged_by_them(seed, other):
    x, y = pair(seed)
    for group in RIGID:
        value = cka(x, y, group=group)
        assert cka(permuted(x, other, signs=True), y, group=group) == pytest.approx(value, abs=1e-10)
        assert cka(2 * x, y, group=group) == pytest.approx(value, abs=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_cka_changes_under_what_is_outside_its_group(seed):
    x, y = pair(seed, n=20)
    for group in (*MONOMIAL, *RIGID):
        assert abs(cka(rotated(x, 1), y, group=group) - cka(x, y, group=group)) > 1e-3
    scaled = permuted(x, seed, scales=True)
    for group in ("orthogonal", *RIGID):
        assert abs(cka(scaled, y, group=group) - cka(x, y, group=group)) > 1e-3
    mixed = torch.einsum(
        "dc,ncp->ndp", torch.randn(5, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), x
    )
    assert abs(cka(mixed, y) - cka(x, y)) > 1e-3


@pytest.mark.parametrize("group", ["orthogonal", *MONOMIAL, *RIGID, "trivial"])
@pytest.mark.parametrize("estimator", ["biased", "unbiased"])
def test_features_are_wholly_similar_to_themselves(group, estimator):
    x, y = pair(0)
    assert cka(x, x, group=group, estimator=estimator) == pytest.approx(1.0, abs=1e-12)
    assert cka(x, y, group=group, estimator=estimator) == pytest.approx(
        cka(y, x, group=group, estimator=estimator), abs=1e-12
    )


@pytest.mark.parametrize("kernel", list(KERNELS))
@pytest.mark.parametrize("estimator", ["biased", "unbiased"])
@pytest.mark.parametrize("shapes", [((7, 4, 2, 3), (7, 3, 5)), ((9, 2), (9, 6)), ((5, 1), (5, 1, 2))])
def test_tiles_agree_with_the_direct_form(kernel, estimator, shapes, monkeypatch):
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    expected = direct(x, y, kernel, estimator)
    assert cka(x, y, group="permutation", kernel=kernel, estimator=estimator) == pytest.approx(expected, abs=1e-12)
    monkeypatch.setattr(kernels_module, "_EDGE", 2)
    monkeypatch.setattr(kernels_module, "_HELD", 8)
    monkeypatch.setattr(kernels_module, "_ROWS", 2)
    assert cka(x, y, group="permutation", kernel=kernel, estimator=estimator) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("shapes", [((30, 3), (30, 4)), ((6, 40), (6, 5, 9))])
@pytest.mark.parametrize("estimator", ["biased", "unbiased"])
def test_both_forms_of_the_linear_kernel_agree_with_the_textbook(shapes, estimator):
    generator = torch.Generator().manual_seed(0)
    x, y = (1 + torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    k, l = (z.flatten(1) @ z.flatten(1).T for z in (x, y))  # noqa: E741
    expected = (
        hsic(k, l, estimator=estimator) / (hsic(k, k, estimator=estimator) * hsic(l, l, estimator=estimator)) ** 0.5
    )
    for form in ("auto", "features", "gram"):
        assert cka(x, y, estimator=estimator, form=form) == pytest.approx(expected, abs=1e-12)


def test_biased_linear_cka_is_the_formula_of_kornblith():
    x, y = pair(1, positions=())
    a, b = x - x.mean(0), y - y.mean(0)
    expected = (a.T @ b).square().sum() / ((a.T @ a).norm() * (b.T @ b).norm())
    assert cka(x, y, estimator="biased") == pytest.approx(float(expected), abs=1e-12)


def test_hsic_by_hand():
    # Four examples 0, 0, 1, 1 of one feature, centred: K = ±1/4. K̃ has the off-diagonal sum −1, row sums −1/4.
    z = torch.tensor([-0.5, -0.5, 0.5, 0.5], dtype=torch.float64)
    k = torch.outer(z, z)
    assert hsic(k, k, estimator="biased") == pytest.approx(1.0 / 9, abs=1e-15)
    # tr = 12/16, totals 1/6, rows 4/16: (3/4 + 1/6 − 1/4)/4.
    assert hsic(k, k) == pytest.approx((3 / 4 + 1 / 6 - 1 / 4) / 4, abs=1e-15)


def test_the_unbiased_estimator_is_unbiased_where_the_biased_is_not():
    generator = torch.Generator().manual_seed(0)
    values = {"unbiased": [], "biased": []}
    for _ in range(400):
        x, y = (torch.randn(8, 6, generator=generator, dtype=torch.float64) for _ in range(2))
        for estimator, found in values.items():
            found.append(hsic(x @ x.T, y @ y.T, estimator=estimator))
    means = {estimator: torch.tensor(found).mean() for estimator, found in values.items()}
    error = torch.tensor(values["unbiased"]).std() / 20
    assert abs(means["unbiased"]) < 3 * error
    assert means["biased"] > 20 * error


def test_terms_of_batches_average_to_those_of_all_examples():
    """Over all choices of 4 among 6 examples the unbiased HSIC averages to the one of all 6, exactly."""
    x, y = pair(0, n=6)
    side = normalization(channel_statistics([x]), permutation(5), centred=True)
    other = normalization(channel_statistics([y]), permutation(5), centred=True)
    k, l = (kernel_matrix(UnitFeatures(z, f.group.units, f), "max") for f, z in ((side, x), (other, y)))  # noqa: E741
    subsets = [torch.tensor(chosen) for chosen in itertools.combinations(range(6), 4)]
    mean = sum(hsic(k[s][:, s], l[s][:, s]) for s in subsets) / len(subsets)
    assert mean == pytest.approx(hsic(k, l), abs=1e-15)
    # And the ratio of averages is what batches give: every example four times in every position.
    pairs = [(x[s], y[s]) for s in subsets]
    expected = hsic(k, l) / (hsic(k, k) * hsic(l, l)) ** 0.5
    assert cka_of_batches(pairs, group="permutation") == pytest.approx(expected, abs=1e-12)


def test_batches_of_a_tensor_average_hsic_and_not_cka():
    x, y = pair(2, n=10)
    halves = [(x[:5], y[:5]), (x[5:], y[5:])]
    value = cka(x, y, batches=2)
    assert value == pytest.approx(cka_of_batches(halves), abs=1e-15)
    grams = [[z.flatten(1) @ z.flatten(1).T for z in part] for part in halves]
    kl, kk, ll = (sum(hsic(g[a], g[b]) for g in grams) for a, b in ((0, 1), (0, 0), (1, 1)))
    assert value == pytest.approx(kl / (kk * ll) ** 0.5, abs=1e-12)
    assert abs(value - sum(cka(*part) for part in halves) / 2) > 1e-4


def test_the_max_kernel_is_not_positive_semidefinite():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    matrix = kernel_matrix(UnitFeatures(x[:, :, None], ((0, 1), (1, 2))), "max")
    assert matrix.tolist() == [[1, 0, 1], [0, 1, 1], [1, 1, 1]]
    assert float(torch.linalg.eigvalsh(matrix).min()) == pytest.approx(1 - 2**0.5, abs=1e-15)


def test_even_the_biased_cka_of_the_max_kernel_can_be_negative():
    """Of positive semidefinite kernels the biased HSIC is never negative; y is a direction in which this one is."""
    x = torch.randn(10, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    side = normalization(channel_statistics([x[:, :, None]]), permutation(3), centred=True)
    h = torch.eye(10, dtype=torch.float64) - 0.1
    kernel = kernel_matrix(UnitFeatures(x[:, :, None], side.group.units, side), "max")
    values, vectors = torch.linalg.eigh(h @ kernel @ h)
    y = vectors[:, :1]
    expected = float(values[0] / values.norm())
    assert expected < -0.05
    assert cka(x, y, group="permutation", estimator="biased") == pytest.approx(expected, abs=1e-12)
    assert cka(x, y, group="permutation", estimator="biased", kernel="sum") >= 0


def test_dead_channels_count_for_nothing():
    x, y = pair(0)
    dead = torch.cat([x, torch.zeros(12, 2, 3, dtype=x.dtype), torch.full((12, 1, 3), 0.1, dtype=x.dtype)], 1)
    for group in ("orthogonal", "permutation"):
        value = cka(dead, y, group=group, kernel="sum")
        assert value == pytest.approx(cka(x, y, group=group, kernel="sum"), abs=1e-12)


def test_a_dead_channel_is_a_product_of_0_to_the_max_kernel():
    x, y = (part - part.mean((0, 2), keepdim=True) for part in pair(0))
    dead = torch.cat([x, torch.full((12, 1, 3), 0.1, dtype=x.dtype)], 1)
    kernels = []
    for part in (x, y):
        normed = part / part.norm(dim=(0, 2), keepdim=True)
        kernels.append(torch.einsum("mcp,ncp->mnc", normed, normed).amax(-1))
    # Where all other products are negative, the largest one is 0.
    assert float(kernels[0].min()) < 0
    cut = kernels[0].clamp(min=0)
    expected = hsic(cut, kernels[1]) / (hsic(cut, cut) * hsic(kernels[1], kernels[1])) ** 0.5
    assert cka(dead, y, group="permutation") == pytest.approx(expected, abs=1e-12)
    assert cka(x, y, group="permutation") != pytest.approx(expected, abs=1e-4)


def test_more_features_than_examples_give_a_number():
    x, y = pair(0, n=5, channels=40)
    for group in ("orthogonal", "permutation"):
        assert -1 <= cka(x, y, group=group) <= 1


def test_float32_features_are_summed_in_float64():
    x, y = pair(0, n=40)
    narrow, wide = cka((1000 + x).float(), y.float()), cka((1000 + x).float().double(), y.float().double())
    assert narrow == pytest.approx(wide, abs=1e-12)


@pytest.mark.parametrize("group", ["orthogonal", "permutation", "trivial"])
@pytest.mark.parametrize("form", ["features", "gram"])
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e10])
def test_constant_features_are_refused(group, form, constant):
    x, y = pair(0)
    flat = torch.full_like(x, constant)
    with pytest.raises(InputError, match="x has features that do not tell the examples apart"):
        cka(flat, y, group=group, form=form)
    with pytest.raises(InputError, match="y has features that do not tell the examples apart"):
        cka(x, flat, group=group, form=form)


X, Y = pair(0)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((X[:3], Y[:3]), {}, "x and y have 3 examples; the unbiased HSIC needs at least 4"),
        ((X[:1], Y[:1]), {"estimator": "biased"}, "the biased HSIC needs at least 2"),
        ((X, Y), {"batches": 4}, "batches is 4 for 12 examples, 3 in a batch; the unbiased HSIC needs at least 4"),
        ((X, Y), {"batches": 0}, "batches is 0"),
        ((X, Y[:5]), {}, "x has 12 examples and y 5"),
        ((X, Y * float("nan")), {}, "y holds NaN"),
        ((X.long(), Y), {}, "x is of type torch.int64"),
        ((X[:, 0, 0], Y), {}, r"x has shape \(12,\)"),
        ((X, Y), {"group": "rotations"}, "group is 'rotations'; expected one of 'general'"),
        ((X, Y), {"kernel": "mean"}, "kernel is 'mean'"),
        ((X, Y), {"kernel": "max"}, "kernel is 'max', which rotations change"),
        ((X, Y), {"estimator": "mean"}, "estimator is 'mean'"),
        ((X, Y), {"form": "mean"}, "form is 'mean'"),
        ((X, Y), {"group": permutation(4)}, "group acts on 4 channels"),
    ],
)
def test_bad_input_is_refused(arguments, options, message):
    with pytest.raises(InputError, match=message):
        cka(*arguments, **options)


def test_batches_that_can_be_gone_through_once_or_are_too_small_are_refused():
    with pytest.raises(InputError, match="pairs is an iterator"):
        cka_of_batches(iter([(X, Y)]))
    for few, name in (([(X, Y), (X[:2], Y[:2])], r"pairs\[1\]"), ([(X[:2], Y[:2]), (X, Y)], r"pairs\[0\]")):
        with pytest.raises(InputError, match=f"{name} has 2 examples; the unbiased HSIC needs at least 4"):
            cka_of_batches(few)
    with pytest.raises(InputError, match=r"y of pairs\[1\] holds NaN"):
        cka_of_batches([(X, Y), (X, Y * float("nan"))])
    with pytest.raises(InputError, match=r"x of pairs\[0\] has 12 examples and y 5"):
        cka_of_batches([(X, Y[:5])])
    with pytest.raises(InputError, match=r"pairs\[1\] have 5 and 4 channels, those of pairs\[0\] 5 and 5"):
        cka_of_batches([(X, Y), (X, Y[:, :4])])
    with pytest.raises(InputError, match=r"pairs\[0\] is a Tensor; expected a batch \(x, y\)"):
        cka_of_batches([X])
    with pytest.raises(InputError, match="pairs is a int; expected a sequence"):
        cka_of_batches(3)
    with pytest.raises(InputError, match="there are no features"):
        cka_of_batches([])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory_is_bounded_by_tiles(dtype):
    """Neither the kernel matrix nor a second copy of the features is made, however many examples or channels."""
    x, y = (z.to(dtype) for z in pair(0, n=600, channels=256, positions=(2,)))
    given = {z.untyped_storage().data_ptr() for z in (x, y)}
    largest = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                with torch._C.DisableTorchFunction():
                    memory = result.untyped_storage()
                    if memory.data_ptr() not in given:
                        largest = max(largest, memory.nbytes())
            return result

    with Watch():
        cka(x, y, group="permutation")
    assert largest == 512**2 * 8 < x.numel() * 8
