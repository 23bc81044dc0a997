"""The algebra: group axioms, a left action, outputs preserved, for every structure an axis can have."""

import math
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from architectures import CASES, MLP_ACTIVATIONS, Attention, attention_symmetry, evaluate, made, randomized
from coset.errors import InputError
from coset.models import ACTIVATIONS, MLP, Elementwise
from coset.symmetry import Element, Symmetry, activation_function, intertwiner
from coset.symmetry.stacks import act_stack, stacked_elements
from declared import declared

SEEDS = st.integers(0, 2**20)


def assert_same_params(a, b, tolerance=1e-12):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def assert_same_element(a, b):
    for name in a.permutations:
        assert torch.equal(a.permutations[name], b.permutations[name]), name
    for name in a.signs:
        assert torch.equal(a.signs[name], b.signs[name]), name
    for name in a.scales:
        torch.testing.assert_close(a.scales[name], b.scales[name], rtol=1e-13, atol=0)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=4)
@given(seed=SEEDS)
def test_the_function_is_preserved(name, seed):
    model, sym, shape = made(name)
    generator = torch.Generator().manual_seed(seed)
    params = randomized(model, generator)
    x = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    before = evaluate(model, params, x)
    after = evaluate(model, sym.act(sym.random(generator), params), x)
    assert float((after - before).abs().max()) <= 1e-11 * float(before.abs().max())


@pytest.mark.parametrize("name", CASES)
def test_units_that_stay_are_scaled_as_those_that_move(name):
    """Where values are hidden (``vmap``) every unit is gathered; where it is seen that units stay none is."""
    model, sym, _ = made(name)
    generator = torch.Generator().manual_seed(5)
    params = randomized(model, generator)
    drawn = sym.random(generator)
    stay = sym.element(scales=drawn.scales, signs=drawn.signs)
    some = {owner: p for number, (owner, p) in enumerate(drawn.permutations.items()) if number % 2}
    for g in (stay, sym.element(some, drawn.scales, drawn.signs), sym.element(some)):
        seen = sym.act(g, params)
        for count in (1, 2):
            stack = {key: tensor.expand(count, *tensor.shape).clone() for key, tensor in params.items()}
            hidden = act_stack(sym, stacked_elements([g] * count), stack)
            assert all(torch.equal(hidden[key][number], seen[key]) for key in seen for number in range(count))


@pytest.mark.parametrize("name", CASES)
def test_subgroups_are_those_declared_with_less(name):
    """What a subgroup takes from the whole is what it would be made of itself."""
    _, sym, _ = made(name)
    for options in ({"scales": False}, {"permutations": False}, {"signs": False, "scales": False}):
        part = sym.restrict(**options)
        again = Symmetry(**{item.name: getattr(part, item.name) for item in fields(part)})
        assert part == again
        g = part.random(torch.Generator().manual_seed(6))
        assert_same_element(g, again.random(torch.Generator().manual_seed(6)))
        params = randomized(made(name)[0], torch.Generator().manual_seed(7))
        one, other = part.act(g, params), again.act(g, params)
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", CASES)
def test_the_declared_group_moves_the_weights(name):
    """Preserving the function is worth nothing if nothing moved: every family and class changes something."""
    model, sym, _ = made(name)
    params = randomized(model, torch.Generator().manual_seed(3))
    for kind in ("permutations", "scales", "signs"):
        for part in getattr(sym.identity(), kind):
            size = sym.shape(part.partition(":")[0])
            if kind == "permutations" and size[-1] == 1:
                continue
            neutral = torch.arange(size[-1]).expand(size)
            value = {
                "permutations": neutral.roll(1, -1),
                "scales": torch.full(size, 2.0, dtype=torch.float64),
                "signs": -torch.ones(size, dtype=torch.int8),
            }[kind]
            moved = sym.act(sym.element(**{kind: {part: value}}), params)
            changed = [key for key in params if not torch.equal(moved[key], params[key])]
            assert changed, f"{kind} of {part} change nothing"


@pytest.mark.parametrize("activation", MLP_ACTIVATIONS)
@settings(max_examples=5)
@given(seed=SEEDS)
def test_mlp_with_every_activation_has_its_own_group(activation, seed):
    named = activation if activation in ACTIVATIONS else lambda: Elementwise(activation_function(activation))
    model = MLP(4, [5, 3], 2, activation=named).double().eval()
    sym = declared(model)
    group = intertwiner(activation)
    assert sym.scale_dimension == (8 if group.scales else 0)
    expected = math.lgamma(6) + math.lgamma(4) + (8 * math.log(2) if group.signs else 0)
    assert sym.log_order == pytest.approx(expected)
    generator = torch.Generator().manual_seed(seed)
    params = randomized(model, generator)
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    before, after = evaluate(model, params, x), evaluate(model, sym.act(sym.random(generator), params), x)
    assert float((after - before).abs().max()) <= 1e-11 * float(before.abs().max())


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=4)
@given(seed=SEEDS)
def test_group_axioms(name, seed):
    _, sym, _ = made(name)
    generator = torch.Generator().manual_seed(seed)
    g, h, k = (sym.random(generator) for _ in range(3))
    for element in (g, sym.compose(g, h), sym.inverse(g)):
        sym.check(element)
    assert_same_element(sym.compose(sym.compose(g, h), k), sym.compose(g, sym.compose(h, k)))
    assert_same_element(sym.compose(sym.identity(), g), g)
    assert_same_element(sym.compose(g, sym.identity()), g)
    assert_same_element(sym.compose(g, sym.inverse(g)), sym.identity())
    assert_same_element(sym.compose(sym.inverse(g), g), sym.identity())


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=4)
@given(seed=SEEDS)
def test_act_is_a_left_action(name, seed):
    model, sym, _ = made(name)
    generator = torch.Generator().manual_seed(seed)
    params = randomized(model, generator)
    g, h = sym.random(generator, spread=0.2), sym.random(generator, spread=0.2)
    assert_same_params(sym.act(sym.compose(g, h), params), sym.act(g, sym.act(h, params)))
    assert_same_params(sym.act(sym.inverse(g), sym.act(g, params)), params)
    assert_same_params(sym.act(sym.identity(), params), params, 0)


def test_composition_in_the_convention_of_matrices():
    """A = P·D with (Px)_i = x[p_i]: on an MLP the action is W1 → A W1, W2 → W2 A⁻¹, and composition multiplies A."""
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)).double()
    sym = Symmetry.from_axes({"0.weight": "h", "2.weight": "- /h"}, model, scales="positive")

    def matrix(g):
        return torch.diag(g.scales["h"])[g.permutations["h"]]

    generator = torch.Generator().manual_seed(1)
    g, h = sym.random(generator), sym.random(generator)
    params = dict(model.state_dict())
    moved = sym.act(g, params)
    torch.testing.assert_close(moved["0.weight"], matrix(g) @ params["0.weight"])
    torch.testing.assert_close(moved["2.weight"], params["2.weight"] @ torch.linalg.inv(matrix(g)))
    torch.testing.assert_close(matrix(sym.compose(g, h)), matrix(g) @ matrix(h))
    p = h.permutations["h"][g.permutations["h"]]
    assert torch.equal(sym.compose(g, h).permutations["h"], p)


def brute_force(sym, g, name, tensor):
    """The action entry by entry: walk over every index of the parameter and find where it comes from."""
    from coset.symmetry.axes import Concat, Fixed, Interleaved, Product, Units

    sizes = {key: item.size for key, item in sym.classes.items()}

    def length(node):
        if isinstance(node, Fixed):
            return node.size
        if isinstance(node, Units):
            return sizes[node.name]
        if isinstance(node, Product):
            return math.prod(length(f) for f in node.factors)
        return sum(length(s) for s in node.segments)

    def leaves(node, position):
        """[(units, number, mark)] and a function from {mark: new number} to the position."""
        if isinstance(node, Fixed):
            return [], lambda numbers: position
        if isinstance(node, Units):
            mark = object()
            return [(node, position, mark)], lambda numbers: numbers[mark]
        if isinstance(node, Interleaved):
            turn, count = position % len(node.segments), len(node.segments)
            found, back = leaves(node.segments[turn], position // count)
            return found, lambda numbers: back(numbers) * count + turn
        if isinstance(node, Concat):
            offset = 0
            for segment in node.segments:
                if position < offset + length(segment):
                    found, back = leaves(segment, position - offset)
                    return found, lambda numbers, back=back, offset=offset: back(numbers) + offset
                offset += length(segment)
        found, backs, rest = [], [], position
        for index, factor in enumerate(node.factors):
            stride = math.prod(length(f) for f in node.factors[index + 1 :])
            inner, back = leaves(factor, rest // stride)
            rest %= stride
            found += inner
            backs.append((stride, back))
        return found, lambda numbers: sum(stride * back(numbers) for stride, back in backs)

    def old_block(unit_name, at):
        """Old numbers of the classes around and of the unit, outermost first, given new numbers ``at`` by class."""
        parent = sym.classes[unit_name].parent
        outer = () if parent is None else old_block(parent, at)
        followed = sym.classes[unit_name].follows
        if followed is not None:
            number = at[unit_name] if unit_name in at else at[followed]
            return (*outer, int(g.permutations[followed][number]) if followed in g.permutations else number)
        p = g.permutations.get(unit_name)
        return (*outer, at[unit_name] if p is None else int(p[outer][at[unit_name]]))

    result = torch.empty_like(tensor)
    axes = sym.parameters[name].axes
    for index in torch.cartesian_prod(*(torch.arange(n) for n in tensor.shape)).reshape(-1, tensor.ndim).tolist():
        parts = [leaves(node, position) for node, position in zip(axes, index, strict=True)]
        everywhere = {unit.name: number for found, _ in parts for unit, number, _ in found}
        source, factor = [], 1.0
        for found, back in parts:
            beside = {**everywhere, **{unit.name: number for unit, number, _ in found}}
            numbers = {}
            for unit, number, mark in found:
                old = old_block(unit.name, {**beside, unit.name: number})
                numbers[mark] = old[-1]
                for charge in unit.charges:
                    key = f"{unit.name}:{charge.family}" if charge.family else unit.name
                    if key in g.scales:
                        factor *= float(g.scales[key][old]) ** charge.scale
                    if key in g.signs:
                        factor *= float(g.signs[key][old]) ** charge.sign
            source.append(back(numbers))
        shift = sym.parameters[name].shift
        result[tuple(index)] = factor * (tensor[tuple(source)] + shift) - shift
    return result


@pytest.mark.parametrize(
    "name", ["flatten", "grouped+groupnorm", "grouped-query attention", "concatenation", "cct", "rotary"]
)
def test_the_action_entry_by_entry(name):
    model, sym, _ = made(name)
    generator = torch.Generator().manual_seed(5)
    params = randomized(model, generator)
    g = sym.random(generator)
    moved = sym.act(g, params)
    for key, tensor in params.items():
        if tensor.numel() <= 2000:
            torch.testing.assert_close(moved[key], brute_force(sym, g, key, tensor), rtol=1e-13, atol=1e-13)


def test_parents_to_the_right_and_on_axes_apart():
    """A nested class may stand before the class around it, or be separated from it by another axis."""
    params = {"a": torch.randn(3 * 2, dtype=torch.float64), "b": torch.randn(2, 5, 3, 2, dtype=torch.float64)}
    sym = Symmetry.from_axes({"a": "inner*outer", "b": "outer - inner -"}, params, inside={"inner": "outer"})
    g = sym.random(torch.Generator().manual_seed(0))
    moved = sym.act(g, params)
    p, q = g.permutations["outer"], g.permutations["inner"]
    for block in range(2):
        for unit in range(3):
            old = int(p[block])
            inner = int(q[old, unit])
            assert moved["a"].reshape(3, 2)[unit, block] == params["a"].reshape(3, 2)[inner, old]
            assert torch.equal(moved["b"][block, :, unit], params["b"][old, :, inner])


@pytest.mark.parametrize("name", ["batchnorm+depthwise", "resnet20, batch"])
def test_batch_norm_keeps_its_variance_positive(name):
    """Where c²(var + ε) − ε would be negative the variance becomes c²·var and the gain makes up for it; still exact."""
    model, sym, shape = made(name)
    generator = torch.Generator().manual_seed(0)
    params = randomized(model, generator)
    small = {key: torch.full_like(d, 1e-4) for key, d in sym.identity().scales.items() if ":" in key}
    gains = {key: d for key, d in small.items() if key != "c:dw"}
    moved = sym.act(sym.element(scales=gains), params)
    for key in params:
        if key.endswith("running_var") and "bn2" not in key:
            assert bool((moved[key] > 0).all())
            naive = 1e-8 * (params[key] + 1e-5) - 1e-5
            assert bool((naive < 0).all())
    x = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    before, after = evaluate(model, params, x), evaluate(model, moved, x)
    assert float((after - before).abs().max()) <= 1e-11 * float(before.abs().max())


def test_tied_weights_leave_as_one_tensor():
    model, sym, _ = made("tied embeddings")
    params = randomized(model, torch.Generator().manual_seed(0))
    moved = sym.act(sym.random(torch.Generator().manual_seed(1)), params)
    assert moved["embed.weight"] is moved["head.weight"]
    assert sym.parameters["head.weight"] == sym.parameters["embed.weight"]


@pytest.mark.parametrize("name", CASES)
def test_stacks_with_leading_sample_axes(name):
    model, sym, _ = made(name)
    generator = torch.Generator().manual_seed(0)
    draws = [randomized(model, generator) for _ in range(6)]
    g = sym.random(generator)
    stacked = {key: torch.stack([draw[key] for draw in draws]).unflatten(0, (2, 3)) for key in draws[0]}
    moved = sym.act(g, stacked)
    for number, draw in enumerate(draws):
        single = sym.act(g, draw)
        assert_same_params({key: value[number // 3, number % 3] for key, value in moved.items()}, single, 0)


@pytest.mark.parametrize("name", ["grouped-query attention", "batchnorm+depthwise", "flatten"])
def test_under_vmap_and_autograd(name):
    model, sym, shape = made(name)
    generator = torch.Generator().manual_seed(0)
    g = sym.random(generator)
    draws = [randomized(model, generator) for _ in range(3)]
    stacked = {key: torch.stack([draw[key] for draw in draws]) for key in draws[0]}
    mapped = torch.vmap(lambda params: sym.act(g, params))(stacked)
    assert_same_params(mapped, sym.act(g, stacked), 0)
    # f(g·θ) = f(θ) has the same derivative by θ on both sides; the chain rule goes through the action.
    x = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    params = draws[0]
    floating = {key: value for key, value in params.items() if value.is_floating_point() and "running" not in key}
    rest = {key: value for key, value in params.items() if key not in floating}
    direct = torch.func.grad(lambda p: evaluate(model, {**p, **rest}, x).square().sum())(floating)
    through = torch.func.grad(lambda p: evaluate(model, sym.act(g, {**p, **rest}), x).square().sum())(floating)
    for key in floating:
        torch.testing.assert_close(through[key], direct[key], rtol=1e-8, atol=1e-9)


def test_gradients_reach_the_scales():
    model, sym, _ = made("flatten")
    params = randomized(model, torch.Generator().manual_seed(0))
    scales = {key: d.clone().requires_grad_() for key, d in sym.identity().scales.items()}
    moved = sym.act(sym.element(scales=scales), params)
    moved["fc.weight"].square().sum().backward()
    blocks = params["fc.weight"].reshape(3, 4, 9).square().sum((0, 2))
    # d/ds of w²s⁻² at s = 1.
    torch.testing.assert_close(scales["c2"].grad, -2 * blocks)
    assert scales["c1"].grad is None


def test_act_is_pure_and_keeps_dtype_and_order():
    model = MLP(4, [5], 2)
    sym = declared(model)
    params = {key: value.half() for key, value in model.state_dict().items()}
    copies = {key: value.clone() for key, value in params.items()}
    moved = sym.act(sym.random(torch.Generator().manual_seed(0)), params)
    assert list(moved) == list(params)
    for key in params:
        assert torch.equal(params[key], copies[key])
        assert moved[key].dtype == torch.float16
        assert moved[key].data_ptr() != params[key].data_ptr()


def test_orders_and_dimensions_by_hand():
    model = Attention(groups=2, queries=3, dim=4, width=5)
    sym = attention_symmetry(model)
    # 2 groups, 3 queries in each, 4 units for q/k and for v/o in each group.
    permutations = math.log(2) + 2 * math.log(6) + 2 * math.log(24) + 2 * math.log(24)
    assert sym.log_permutations == pytest.approx(permutations)
    assert sym.log_order == pytest.approx(permutations + (8 + 8 + 6) * math.log(2))
    assert sym.scale_dimension == 8 + 8 + 6
    assert sym.shape("qk") == (2, 4)
    assert list(sym.classes) == ["g", "h", "qk", "vo"]


def test_random_elements_are_reproducible_and_uniform():
    params = {"w": torch.zeros(3)}
    sym = Symmetry.from_axes({"w": "h"}, params)
    first = sym.random(torch.Generator().manual_seed(7))
    assert first == sym.random(torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(0)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(6000):
        key = tuple(sym.random(generator).permutations["h"].tolist())
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 6
    # χ² with 5 degrees of freedom: 20.5 is its 99.9 % quantile.
    assert sum((n - 1000) ** 2 / 1000 for n in counts.values()) < 20.5


def test_restrict_gives_subgroups():
    model, sym, _ = made("resnet20, batch")
    params = randomized(model, torch.Generator().manual_seed(0))
    finite = sym.restrict(scales=False)
    assert finite.scale_dimension == 0
    assert finite.log_order == pytest.approx(sym.log_order)
    assert sym.restrict(signs=False).log_order == pytest.approx(sym.log_permutations)
    one = sym.restrict(["block1.1"])
    assert one.log_order == pytest.approx(math.lgamma(5) + 4 * math.log(2))
    moved = one.act(one.random(torch.Generator().manual_seed(0)), params)
    changed = {key for key in params if not torch.equal(moved[key], params[key])}
    assert changed == {
        "stages.0.0.conv1.weight", "stages.0.0.norm1.weight", "stages.0.0.norm1.bias", "stages.0.0.norm1.running_mean",
        "stages.0.0.norm1.running_var", "stages.0.0.conv2.weight",
    }  # fmt: skip
    with pytest.raises(InputError, match="no class is called 'nothing'"):
        sym.restrict(["nothing"])
    with pytest.raises(InputError, match=r"found the string 'block1\.1'"):
        sym.restrict("block1.1")


def test_elements_are_checked():
    sym = Symmetry.from_axes({"a": "h", "b": "/h"}, {"a": torch.zeros(3), "b": torch.zeros(3)}, scales="nonzero")
    with pytest.raises(InputError, match="permutation of 'h' is not a permutation"):
        sym.element(permutations={"h": torch.tensor([0, 0, 2])})
    with pytest.raises(InputError, match=r"permutation of 'h' has shape \(2,\); expected \(3,\)"):
        sym.element(permutations={"h": torch.tensor([0, 1])})
    with pytest.raises(InputError, match="scales of 'h' are not all positive"):
        sym.element(scales={"h": torch.tensor([1.0, -1.0, 1.0])})
    with pytest.raises(InputError, match="signs of 'h' are not all"):
        sym.element(signs={"h": torch.tensor([1, 0, 1])})
    with pytest.raises(InputError, match="permutation of 'k' is not free"):
        sym.element(permutations={"k": torch.tensor([0])})
    with pytest.raises(InputError, match="scale of 'h' is missing"):
        sym.act(Element({"h": torch.arange(3)}), {"a": torch.zeros(3), "b": torch.zeros(3)})


def test_wrong_parameters_are_named():
    model = MLP(4, [5], 2)
    sym = declared(model)
    g, params = sym.identity(), dict(model.state_dict())
    with pytest.raises(InputError, match="'extra' is not a parameter of this symmetry"):
        sym.act(g, {**params, "extra": torch.zeros(1)})
    with pytest.raises(InputError, match=r"'layers.1.weight' moves under this symmetry but is not among"):
        sym.act(g, {"layers.0.weight": params["layers.0.weight"], "layers.0.bias": params["layers.0.bias"]})
    assert list(sym.act(g, {"layers.0.bias": params["layers.0.bias"]}, partial=True)) == ["layers.0.bias"]
    with pytest.raises(InputError, match=r"'layers.0.bias' has shape \(4,\); expected \(5,\)"):
        sym.act(g, {**params, "layers.0.bias": torch.zeros(4)})
    with pytest.raises(InputError, match="found list"):
        sym.act(g, [1, 2])
    with pytest.raises(InputError, match=r"'layers.0.bias' is of type torch.int64 and cannot be scaled"):
        sym.act(sym.random(torch.Generator().manual_seed(0)), {**params, "layers.0.bias": torch.zeros(5).long()})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_another_device():
    model, sym, _ = made("cct")
    params = randomized(model, torch.Generator().manual_seed(0))
    g = sym.random(torch.Generator().manual_seed(1))
    there = sym.act(g, {key: value.cuda() for key, value in params.items()})
    assert_same_params({key: value.cpu() for key, value in there.items()}, sym.act(g, params))


def test_the_meta_device_needs_no_data():
    """Shapes alone are enough: what holds for any device holds for one without storage."""
    model, sym, _ = made("flatten")
    params = {key: value.to("meta") for key, value in model.state_dict().items()}
    moved = sym.act(sym.random(torch.Generator().manual_seed(0)), params)
    assert all(moved[key].shape == params[key].shape and moved[key].device.type == "meta" for key in params)
