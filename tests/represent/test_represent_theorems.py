"""What Godfrey et al. 2022 prove, and what they do not, as numbers: theorems 3.3 and 4.2, lemmas 5.1, E.7 and E.44."""

import itertools
import math

import pytest
import torch
from feature_pairs import permuted
from hypothesis import given, settings
from hypothesis import strategies as st
from stitched_networks import AT_ONCE, balanced, labelled, moved, normal, seeded

from coset.errors import InputError
from coset.models import MLP
from coset.represent import (
    GROUPS,
    Interval,
    cka,
    cka_interval,
    cka_of_batches,
    procrustes,
    procrustes_interval,
    stitch,
    stitching_penalty,
)
from coset.represent.similarity import ESTIMATORS, KERNELS
from coset.symmetry import intertwiner

SEEDS = st.integers(0, 2**31)


def matrices(entries, n):
    """All n×n matrices with such entries, (count, n, n)."""
    return torch.tensor(list(itertools.product(entries, repeat=n * n)), dtype=torch.float64).reshape(-1, n, n)


def test_the_intertwiners_of_relu_are_what_permutes_the_rays_of_the_coordinates():
    """Theorem 3.3, both directions, over all 3×3 matrices of −1, 0, 2: {ℝ₊e_i} is mapped onto itself by these alone."""
    relu = intertwiner("relu")
    every = matrices((-1.0, 0.0, 2.0), 3)
    # A e_j is a column: one entry, and that positive; onto: no two columns on one ray.
    on_rays = ((every != 0).sum(1) == 1).all(1) & (every.sum(1) > 0).all(1)
    permutes = on_rays & ((every != 0).sum(2) == 1).all(1)
    # The intertwiner property itself on points, σ(Ax) = φ(A)σ(x) with φ(A) = σ(A), for invertible A.
    x = normal(30, 3).T
    invertible = torch.linalg.det(every).abs() > 1e-9
    passes = ((every @ x).relu() - every.relu() @ x.relu()).abs().amax((1, 2)) < 1e-12
    assert torch.equal(permutes, passes & invertible)
    assert int(permutes.sum()) == math.factorial(3)
    assert [relu.contains(matrix) for matrix in every[permutes]] == [True] * 6
    assert not any(relu.contains(matrix) for matrix in every[invertible & ~permutes][::500])


@given(st.lists(st.integers(-3, 3), min_size=3, max_size=3).filter(any))
def test_a_ray_off_the_coordinates_has_an_infinite_orbit(entries):
    """The second half of theorem 3.3, (E.24): of a ray with two coordinates ≠ 0, diag(t) makes another for every t."""
    v = torch.tensor(entries, dtype=torch.float64)
    support = torch.nonzero(v)[:, 0]
    stretched = []
    for t in (0.5, 1.0, 2.0, 3.0):
        d = torch.ones(3, dtype=torch.float64)
        d[support[0]] = t
        assert intertwiner("relu").contains(torch.diag(d))
        stretched.append(d * v)
    for a, b in itertools.combinations(stretched, 2):
        same_ray = bool((torch.linalg.cross(a, b) == 0).all())
        assert same_ray is (len(support) == 1)


def test_what_keeps_the_max_kernel_is_a_signed_permutation():
    """Lemma E.44 over all 19,683 matrices of −1, 0, 1: max(Ax ⊙ Ay) = max(x ⊙ y) for all x, y leaves 48 = 2³·3!."""
    every = matrices((-1.0, 0.0, 1.0), 3)
    corners = torch.tensor(list(itertools.product((-1.0, 0.0, 1.0), repeat=3)), dtype=torch.float64).T
    images = every @ corners
    # The proof needs x = y alone: the maximum norm is kept.
    keeps_norm = (images.abs().amax(1) == corners.abs().amax(0)).all(1)
    signed = ((every != 0).sum(1) == 1).all(1) & ((every != 0).sum(2) == 1).all(1)
    assert torch.equal(keeps_norm, signed)
    assert int(signed.sum()) == 48
    x, y = normal(3, 20, seed=1), normal(3, 20, seed=2)
    for matrix in every[signed]:
        assert torch.equal((matrix @ x * (matrix @ y)).amax(0), (x * y).amax(0))


@settings(max_examples=20)
@given(SEEDS, SEEDS, st.sampled_from([name for name in KERNELS if name not in ("sum", "squares")]))
def test_positive_scales_pass_after_normalisation_and_rotations_do_not(seed, other, kernel):
    """Lemma 5.1: invariance under P and D is invariance under G_ReLU; E.44: nothing beyond signs is added to it."""
    x, y = (normal(15, 4, 2, seed=s % 2**31) for s in (seed, seed + 1))
    value = cka(x, y, group="permutation", kernel=kernel)
    assert cka(permuted(x, other, scales=True, signs=True), y, group="permutation", kernel=kernel) == pytest.approx(
        value, abs=1e-10
    )
    angle = 0.5 + (other % 100) / 200
    turn = torch.eye(4, dtype=torch.float64)
    turn[:2, :2] = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    turned = torch.einsum("dc,ncp->ndp", turn, x)
    assert abs(cka(turned, y, group="permutation", kernel=kernel) - value) > 1e-6


@pytest.mark.parametrize("n", [2, 5])
def test_the_activation_of_the_identity_is_singular_exactly_where_the_lemma_says(n):
    """Lemma E.7: σ(I) = σ(0)11ᵀ + (σ(1) − σ(0))I is singular iff σ(1) = σ(0) or σ(1) = −(n − 1)σ(0)."""
    for at_zero, at_one in itertools.product((-1.0, 0.0, 0.5, 1.0), (-(n - 1.0), -1.0, 0.0, 0.5, 1.0, n - 1.0)):
        of_identity = torch.where(torch.eye(n, dtype=torch.bool), at_one, at_zero).double()
        singular = at_one in (at_zero, -(n - 1) * at_zero)
        assert (abs(float(torch.linalg.det(of_identity))) < 1e-12) is singular


@torch.no_grad()
def test_families_that_contain_the_group_stitch_without_penalty_both_ways_and_smaller_ones_do_not():
    """Theorem 4.2, from f to f̃ by φ(A) and from f̃ to f by φ(A)⁻¹."""
    x = normal(300, 5)
    f = balanced(seeded(lambda: MLP(5, [8, 7], 4)), x)
    g = moved(f, x)
    data, held_out = labelled(f, x[:240]), labelled(f, x[240:])
    for lower, upper in ((f, g), (g, f)):
        for layer in ("activations.0", "activations.1"):
            for family in ("full", "g-relu"):
                stitching = stitch(lower, upper, layer, data, family=family, training=AT_ONCE)
                torch.testing.assert_close(stitching(x), f(x), rtol=1e-6, atol=1e-6)
                assert stitching_penalty(stitching, held_out).value == 0
            low = stitch(lower, upper, layer, data, family="rank", rank=1, training=AT_ONCE)
            assert stitching_penalty(low, held_out).low > 0


def test_the_max_kernel_by_hand():
    # Channels have mean 0 and norm √2: K = I/2, for opposite examples have the products −1/2 and 0. Of one channel
    # L = zzᵀ, z = (1, −1, 0, 0)/√2, centred, of trace 1: tr(KHLH) = 1/2, tr(KHKH) = 3/4, tr(LHLH) = 1.
    x = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]], dtype=torch.float64)
    value = cka(x, x[:, :1], group="permutation", estimator="biased")
    assert value == pytest.approx(0.5 / math.sqrt(0.75), abs=1e-15)
    # Without the diagonal nothing is left of K: that is an error, and no NaN.
    with pytest.raises(InputError, match="x has features that do not tell the examples apart"):
        cka(x, x[:, :1], group="permutation")


def test_features_of_any_size_are_compared_and_batches_beyond_the_range_of_their_hsic_refused():
    x, y = normal(9, 3), normal(9, 3, seed=1)
    value = cka(x, y)
    assert cka(1e50 * x, 1e-50 * y) == pytest.approx(value, abs=1e-12)
    assert cka(1e100 * x, 1e-300 * y) == pytest.approx(value, abs=1e-12)
    with pytest.raises(InputError, match="x has features so large that its HSIC is no number"):
        cka_of_batches([(1e100 * x, y)])
    with pytest.raises(InputError, match="y has features that do not tell the examples apart"):
        cka_of_batches([(x, 1e-100 * y)])
    assert cka(1e100 * x, y, group="permutation") == pytest.approx(cka(x, y, group="permutation"), abs=1e-12)


ENTRIES = st.sampled_from(["zero", "constant", "random", "dead channel", "huge", "tiny"])


def made(kind, shape, seed):
    x = normal(*shape, seed=seed)
    if kind == "dead channel":
        x[:, 0] = 0
    return {"zero": 0 * x, "constant": 0 * x + 0.1, "huge": 1e100 * x, "tiny": 1e-100 * x}.get(kind, x)


@settings(max_examples=80)
@given(
    st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 3)),
    st.integers(1, 9),
    ENTRIES,
    ENTRIES,
    st.sampled_from(list(GROUPS)),
    SEEDS,
)
def test_every_measure_gives_a_number_or_says_why_not(shape, channels, kind_x, kind_y, group, seed):
    """Few examples, more channels than examples, dead and constant features, numbers of any size: never NaN."""
    x, y = made(kind_x, shape, seed), made(kind_y, (shape[0], channels, shape[2]), seed + 1)
    found = outcome(lambda a, b: procrustes(a, b, group=group).distance, x, y)
    between = outcome(lambda a, b: procrustes_interval(a, b, group=group, seed=0, draws=3).high, x, y)
    # Modulo all invertible matrices as many examples as channels tell nothing, and that is said.
    few = group == "general" and shape[0] * shape[2] <= max(shape[1], channels)
    assert all(isinstance(value, InputError) if few else 0 <= value <= 1 + 1e-12 for value in (found, between))
    for estimator in ESTIMATORS:
        options = {"group": group, "estimator": estimator}
        for value in (outcome(cka, x, y, **options), outcome(cka_interval, x, y, seed=0, draws=3, **options)):
            number = value.low if isinstance(value, Interval) else value
            assert isinstance(number, InputError) or math.isfinite(number)


def outcome(measure, x, y, **options):
    """What a measure gives: its value, or its complaint."""
    try:
        return measure(x, y, **options)
    except InputError as error:
        return error
