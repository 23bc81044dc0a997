"""Intertwiner groups: the table against its definition, numerical inference against the table, published numbers."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import nn

from coset.errors import InputError
from coset.symmetry import (
    activation_function,
    activation_names,
    homogeneity_defect,
    homogeneity_slope,
    infer_intertwiner,
    intertwiner,
)

NAMES = [*activation_names(), "x^2", "x^3", "x^4", "x^7", "relu^2", "relu^3", "|x|^1.5", "|x|^3", "leaky_relu(0.3)"]
NON_LINEAR = [name for name in NAMES if name != "identity"]


def law(group):
    """What a group says, without what it is called; powers count only where something is raised to them."""
    return group.diagonal, group.scale_power if group.scales else None, group.sign_power if group.signs else None


def assert_intertwines(function, matrix, image, seed):
    """σ(Ax) = Bσ(x) in float64, the error relative to the size of the numbers summed."""
    x = torch.randn(matrix.shape[0], 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    left, right = function(matrix @ x), image @ function(x)
    scale = torch.maximum(image.abs() @ function(x).abs(), torch.ones_like(right))
    assert float(((left - right).abs() / scale).max()) <= 1e-12


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(n=st.integers(1, 6), seed=st.integers(0, 2**20))
def test_members_pass_through_the_activation(name, n, seed):
    group, function = intertwiner(name), activation_function(name)
    matrix = group.sample(n, torch.Generator().manual_seed(seed))
    assert group.contains(matrix)
    assert_intertwines(function, matrix, group.phi(matrix), seed)


@pytest.mark.parametrize("name", NON_LINEAR)
def test_the_diagonal_is_not_larger_than_said(name):
    """Scales and signs that the table leaves out do fail: no B at all can make up for them."""
    group, function = intertwiner(name), activation_function(name)
    x = torch.linspace(-8, 8, 801, dtype=torch.float64)
    for d in (1.7, 0.3, -1.0, -1.7):
        if bool(group.allows(torch.tensor(d, dtype=torch.float64))):
            continue
        moved, kept = function(d * x), function(x)
        # The best multiple in the least-squares sense leaves a residual of visible size.
        best = float(moved @ kept) / float(kept @ kept)
        assert float((moved - best * kept).abs().max()) > 1e-3 * float(kept.abs().max())


@pytest.mark.parametrize("name", NON_LINEAR)
def test_matrices_that_are_not_monomial_are_no_members(name):
    group = intertwiner(name)
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    assert not group.contains(dense)
    sheared = torch.eye(3, dtype=torch.float64)
    sheared[0, 1] = 0.5
    assert not group.contains(sheared)
    assert not group.contains(torch.zeros(2, 2, dtype=torch.float64))
    with pytest.raises(InputError, match="not in the intertwiner group"):
        group.phi(dense)
    # And rightly so: mixing two units does not pass the activation.
    function = activation_function(name)
    x = torch.randn(3, 200, generator=generator, dtype=torch.float64)
    moved = function(sheared @ x)
    solution = torch.linalg.lstsq(function(x).T, moved.T).solution
    assert float((function(x).T @ solution - moved.T).abs().max()) > 1e-3


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(n=st.integers(1, 5), seed=st.integers(0, 2**20))
def test_phi_is_a_homomorphism(name, n, seed):
    group = intertwiner(name)
    generator = torch.Generator().manual_seed(seed)
    a, b = group.sample(n, generator), group.sample(n, generator)
    product = a @ b
    torch.testing.assert_close(group.phi(product), group.phi(a) @ group.phi(b), rtol=1e-12, atol=0)
    identity = torch.eye(n, dtype=torch.float64)
    assert torch.equal(group.phi(identity), identity)


@pytest.mark.parametrize("name", NAMES)
def test_inference_agrees_with_the_table(name):
    assert law(infer_intertwiner(activation_function(name))) == law(intertwiner(name))


def test_worked_example_of_the_supplement():
    """Appendix C: A = [[0, 1], [2, 0]] passes through ReLU unchanged, and moves one network to the other one given."""
    group = intertwiner("relu")
    a = torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    assert group.contains(a)
    assert torch.equal(group.phi(a), a)
    w1, w2 = torch.diag(torch.tensor([1.0, 2.0])), torch.diag(torch.tensor([3.0, 1.0]))
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    new_w1, new_w2 = swap @ w1, w2 @ torch.linalg.inv(group.phi(swap))
    assert torch.equal(new_w1, torch.tensor([[0.0, 2.0], [1.0, 0.0]]))
    assert torch.equal(new_w2, torch.tensor([[0.0, 3.0], [1.0, 0.0]]))


def half_identity():
    module = nn.PReLU(2)
    module.weight.data = torch.tensor([1.0, 0.5])
    return module


MODULES = [
    (nn.ReLU(), "relu"), (nn.ReLU(inplace=True), "relu"), (nn.LeakyReLU(0.2), "leaky_relu"), (nn.PReLU(), "prelu"),
    (nn.PReLU(5), "prelu"), (nn.ReLU6(), "relu6"), (nn.ELU(), "elu"), (nn.ELU(0.3), "elu"), (nn.SELU(), "selu"),
    (nn.CELU(2.0), "celu"), (nn.GELU(), "gelu"), (nn.GELU("tanh"), "gelu"), (nn.SiLU(), "silu"), (nn.Mish(), "mish"),
    (nn.Softplus(3.0), "softplus"), (nn.Sigmoid(), "sigmoid"), (nn.Tanh(), "tanh"), (nn.Hardswish(), "hardswish"),
    (nn.Hardsigmoid(), "hardsigmoid"), (nn.Hardtanh(), "hardtanh"), (nn.Hardtanh(-2, 2), "hardtanh"),
    (nn.Tanhshrink(), "tanhshrink"), (nn.Softshrink(), "softshrink"), (nn.Hardshrink(), "hardshrink"),
    (nn.Softsign(), "softsign"), (nn.LogSigmoid(), "logsigmoid"), (nn.Identity(), "identity"),
    (nn.RReLU(), "leaky_relu"), (nn.Threshold(0.0, 0.0), "relu"), (nn.ELU(0.0), "relu"), (nn.Dropout(0.5), "identity"),
    (nn.PReLU(init=1.0), "identity"),
    (nn.LeakyReLU(1.0), "identity"), (nn.LeakyReLU(-1.0), "abs"), (nn.Hardtanh(0, 6), "relu6"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name"), MODULES, ids=lambda value: str(value))
def test_modules(module, name):
    assert law(intertwiner(module)) == law(intertwiner(name))


FUNCTIONS = [
    (F.relu, "relu"), (torch.relu, "relu"), (F.leaky_relu, "leaky_relu"), (F.gelu, "gelu"), (torch.tanh, "tanh"),
    (torch.sin, "sin"), (torch.cos, "cos"), (torch.abs, "abs"), (torch.square, "square"), (F.silu, "silu"),
    (torch.sigmoid, "sigmoid"), (F.softplus, "softplus"), (F.elu, "elu"), (F.selu, "selu"), (torch.erf, "erf"),
    (lambda x: x * torch.relu(x), "relu^2"), (lambda x: x * x.abs(), "signed square"), (lambda x: 5 * x, "identity"),
    (lambda x: torch.exp(-(x**2)), "rbf"), (lambda x: x.clamp(-1e5, 1e5), "hardtanh"), (lambda x: x**64, "x^64"),
    (lambda x: x.clamp(0, 1e6), "relu6"), (lambda x: torch.relu(x) + torch.relu(x - 2e5), "relu6"),
    (lambda x: 1e-15 * F.gelu(x), "gelu"), (lambda x: 1e305 * torch.relu(x), "relu"),
    (lambda x: torch.relu(x.float()).double(), "relu"), (lambda x: torch.relu(x.float()), "relu"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "name"), FUNCTIONS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_functions(function, name):
    expected = ("nonzero", 2.0, 1) if name == "signed square" else law(intertwiner(name))
    assert law(intertwiner(function)) == expected


def test_every_name_of_the_models_is_known():
    from coset.models import ACTIVATIONS, make_activation

    for name in ACTIVATIONS:
        assert law(intertwiner(name)) == law(infer_intertwiner(make_activation(name))), name
    assert law(intertwiner("leaky_relu:0.3")) == law(intertwiner("leaky_relu(0.3)"))
    assert intertwiner("Gaussian RBF") == intertwiner("rbf")


def test_functions_of_the_table_agree_with_inference():
    """Every torch function that is looked up rather than inferred has the group that inference finds."""
    from coset.symmetry.intertwiners.activations import _FUNCTIONS

    for function in _FUNCTIONS:
        assert law(intertwiner(function)) == law(infer_intertwiner(lambda x, f=function: f(x))), function


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: torch.softmax(x, -1), "not elementwise"),
        (lambda x: torch.cumsum(x, -1), "not elementwise"),
        (lambda x: x - x.mean(), "not elementwise"),
        (lambda x: torch.sort(x.flatten())[0].reshape(x.shape), "not elementwise"),
        (lambda x: torch.flip(x, [-1]), "not elementwise"),
        (lambda x: x * torch.arange(x.shape[-1]), "not elementwise"),
        (lambda x: x.sum(), "not elementwise"),
        (lambda x: (x, x), "not elementwise"),
        (lambda x: torch.rand_like(x), "two calls"),
        (lambda x: torch.exp(1j * x), "complex"),
        (lambda x: x * torch.clamp(1e6 / x.norm(), max=1), "not elementwise"),
        (lambda x: x / torch.clamp(x.abs().max() / 1e7, min=1), "not elementwise"),
        (lambda x: torch.ones_like(x), "constant"),
        (nn.LayerNorm(5), "cannot be applied"),
        (nn.Softmax(-1), "not elementwise"),
        (nn.GLU(), "cannot be applied"),
    ],
)
def test_what_is_not_an_elementwise_function_is_refused(function, message):
    with pytest.raises(InputError, match=message):
        infer_intertwiner(function)


def test_inference_leaves_a_module_as_it_was():
    module = nn.PReLU().train()
    infer_intertwiner(module)
    assert module.training
    assert module.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("activation", "message"),
    [
        ("relux", "unknown activation 'relux'"),
        ("x^2.5", "not defined for negative x"),
        ("relu^0", "not positive"),
        (3, "expected an activation"),
        (half_identity(), "some slopes of exactly 1"),
        (nn.PReLU(init=math.nan), "not finite"),
        ([1], "expected an activation"),
        ("leaky_relu(e)", "unknown activation"),
        (nn.LeakyReLU(math.nan), "finite"),
    ],
)
def test_bad_activations_are_named(activation, message):
    with pytest.raises(InputError, match=message):
        intertwiner(activation)


def test_bad_matrices_are_named():
    with pytest.raises(InputError, match=r"square matrix, found shape \(2, 3\)"):
        intertwiner("relu").contains(torch.zeros(2, 3))
    with pytest.raises(InputError, match="n is 0"):
        intertwiner("relu").sample(0, torch.Generator())
    assert not intertwiner("identity").contains(torch.tensor([[1.0, 1.0], [1.0, 1.0]]))
    assert not intertwiner("relu").contains(torch.diag(torch.tensor([1.0, math.inf])))


def test_printing_says_the_law():
    assert str(intertwiner("relu")) == "relu: P·D, D > 0; φ = P·diag(|d|^1)"
    assert str(intertwiner("cos")) == "cos: P·D, D = ±1; φ = P·diag(1)"
    assert str(intertwiner("identity")) == "identity: GL_n; φ = A"


def test_gelu_defect_slope_is_the_published_one():
    """0.127 in the supplement; 0.12675 by adaptive quadrature of E[x²(1_{x≥0} − Φ(x))²], an independent rule."""

    def integrand(x):
        return x**2 * (1 - stats.norm.cdf(x)) ** 2 * stats.norm.pdf(x)

    reference = math.sqrt(2 * integrate.quad(integrand, 0, 20, epsabs=1e-14)[0])
    assert homogeneity_slope("gelu") == pytest.approx(reference, rel=1e-9)
    assert round(homogeneity_slope("gelu"), 4) == 0.1268
    assert f"{homogeneity_slope('gelu'):.5f}" == "0.12675"
    assert homogeneity_defect("gelu", 1e5) / 1e5 == pytest.approx(reference, rel=1e-8)


@pytest.mark.parametrize("scale", [0.01, 0.5, 2.0, 30.0])
def test_gelu_defect_by_an_independent_rule(scale):
    def integrand(x):
        return (scale * x * (stats.norm.cdf(scale * x) - stats.norm.cdf(x))) ** 2 * stats.norm.pdf(x)

    parts = [integrate.quad(integrand, a, b, epsabs=1e-15)[0] for a, b in [(0, 0.05), (0.05, 1), (1, 12)]]
    assert homogeneity_defect("gelu", scale) == pytest.approx(math.sqrt(2 * sum(parts)), rel=1e-7)


def test_homogeneous_activations_have_no_defect():
    for name in ("relu", "leaky_relu(0.3)", "abs", "identity"):
        assert homogeneity_defect(name, 7.3) <= 1e-14
        assert homogeneity_slope(name) <= 1e-14
    assert homogeneity_defect("gelu", 1.0) == 0.0
    assert homogeneity_slope(nn.ReLU(inplace=True)) == homogeneity_slope("relu")
    assert homogeneity_slope(nn.SiLU(inplace=True)) == homogeneity_slope("silu")


def test_bad_scales_and_activations_without_asymptote_are_refused():
    with pytest.raises(InputError, match="scale is -1"):
        homogeneity_defect("gelu", -1)
    with pytest.raises(InputError, match="no linear asymptotes"):
        homogeneity_slope("square")
