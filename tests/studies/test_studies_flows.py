"""Studies of zoos: their measures on cases counted by hand, their quick runs, and zoos that resume in the store."""

import torch
from torch import nn

import coset
from coset.landscape import linear
from coset.store import Store
from coset.study import Context
from coset.study.zoos import trained_zoo
from coset.symmetry.stacks import act_stack, random_stack
from coset.zoo import DataSpec, ZooSpec
from coset_studies.flows import _sampled, breast_cancer, trajectories, variance

MODEL = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()


def copies(count):
    return {name: tensor.expand(count, *tensor.shape).clone() for name, tensor in MODEL.state_dict().items()}


def found():
    return coset.discover(MODEL, torch.randn(2, 5, dtype=torch.float64))


def test_networks_of_one_orbit_have_no_variance_modulo_it():
    sym, stack = found(), copies(6)
    assert variance.variance(sym, stack)[0] < 1e-28
    moved = act_stack(sym, random_stack(sym, 6, torch.Generator().manual_seed(0)), stack)
    frames = variance.frames(sym, moved, 6)
    left = {name: variance.left_of_variance(sym, moved, frame) for name, frame in frames.items()}
    assert left[variance.RAW] == 1
    assert left[variance.SCALED] < 1e-20
    assert 1e-3 < left[variance.PERMUTED] <= 1 + 1e-12


def test_removed_scales_are_put_back_the_same_in_all_networks():
    """So nothing changes where they do not vary, and each unit has the geometric mean of its own where they do."""
    sym, stack = found(), copies(2)
    permuted = sym.restrict(scales=False)
    moved = act_stack(permuted, random_stack(permuted, 2, torch.Generator().manual_seed(3)), stack)
    frame = variance.frames(sym, moved, 2)[variance.SCALED]
    for name, tensor in frame.items():
        torch.testing.assert_close(tensor, moved[name][0].expand_as(tensor))
    scales = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64)
    (key,) = sym.scaling
    both = [MODEL.state_dict(), sym.act(sym.element(scales={key: scales}), MODEL.state_dict())]
    frame = variance.frames(sym, {name: torch.stack([one[name] for one in both]) for name in both[0]}, 2)
    halfway = sym.act(sym.element(scales={key: scales.sqrt()}), MODEL.state_dict())
    for name, tensor in frame[variance.SCALED].items():
        torch.testing.assert_close(tensor, halfway[name].expand_as(tensor))


def test_variance_of_opposite_networks():
    stack = {name: torch.stack([tensor, -tensor]) for name, tensor in MODEL.state_dict().items()}
    squares = sum(float(tensor.square().sum()) for tensor in MODEL.state_dict().values())
    apart, total = variance.variance(found(), stack)
    assert abs(total - squares) < 1e-12
    assert abs(apart - 2 * squares) < 1e-12


def test_nearest_neighbours():
    values = torch.tensor([[0.0, 1, 5, 5], [1, 0, 5, 5], [5, 4, 0, 9], [5, 5, 1, 0]])
    owners = torch.tensor([0, 0, 1, 1])
    assert trajectories.nearest_is_own(values, owners) == 0.75


def test_trajectories_are_found_modulo_the_group():
    sym, generator = found(), torch.Generator().manual_seed(1)
    starts = {name: torch.randn(5, *t.shape, generator=generator, dtype=t.dtype) for name, t in copies(1).items()}
    starts = {name: tensor.squeeze(1) for name, tensor in starts.items()}
    later = {name: tensor + 1e-3 * torch.ones_like(tensor) for name, tensor in starts.items()}
    both = {name: torch.cat([starts[name], later[name]]) for name in starts}
    moved = act_stack(sym, random_stack(sym, 10, generator), both)
    values, violations = trajectories.measured(sym, moved)
    owners = torch.arange(5).repeat(2)
    assert violations is None  # 4! elements are gone through
    assert trajectories.nearest_is_own(values[trajectories.MODULO], owners) == 1.0
    assert trajectories.nearest_is_own(values[trajectories.RAW], owners) < 1.0


def test_barriers_halfway_are_those_of_single_lines():
    generator = torch.Generator().manual_seed(2)
    stack = {
        name: torch.randn(3, *t.shape, generator=generator, dtype=t.dtype) for name, t in MODEL.state_dict().items()
    }
    x = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    part = type("Part", (), {"x": x, "y": torch.arange(20) % 3})()
    matrix = breast_cancer.of_all_pairs(MODEL, part, stack)
    losses = {}
    for i, j in ((0, 1), (0, 2), (1, 2)):
        ends = [{name: tensor[k] for name, tensor in stack.items()} for k in (i, j)]
        at = [torch.func.functional_call(MODEL, linear(*ends)(tau), (x,)) for tau in (0.0, 0.5, 1.0)]
        losses[i, j] = [float(nn.functional.cross_entropy(outputs, part.y)) for outputs in at]
        expected = losses[i, j][1] - (losses[i, j][0] + losses[i, j][2]) / 2
        torch.testing.assert_close(float(matrix[i, j]), expected)
    assert float(matrix.diagonal().abs().max()) == 0
    torch.testing.assert_close(breast_cancer.mean_of_pairs(matrix), float(matrix.sum()) / 6)


def test_a_zoo_is_kept_in_the_store(tmp_path, monkeypatch):
    recipe = {"epochs": 2, "batch_size": 50, "learning_rate": 1e-2}
    options = {"in_features": 30, "widths": [3], "out_features": 2}
    data = (DataSpec("breast-cancer", subset=100),)
    spec = ZooSpec("mlp", recipe, data, (0, 1, 2), options, snapshots=(1,))
    context = Context(0, torch.device("cpu"), Store(tmp_path), show=False)
    first = trained_zoo(context, spec)
    assert {len(tensor) for tensor in first.last.values()} == {3}
    assert list(first.snapshots) == [2]  # steps: two batches an epoch
    assert [row["seed"] for row in first.rows] == [0, 1, 2]
    assert not list(tmp_path.rglob("*.zoo"))
    monkeypatch.setattr("coset.study.zoos.train_zoo", None)  # nothing is trained again
    second = trained_zoo(context, spec)
    assert all(torch.equal(first.last[name], second.last[name]) for name in first.last)
    assert first.rows == second.rows


def test_steps_until_a_loss_is_reached():
    losses = torch.tensor([[4.0, 2.0], [2.0, 2.0], [1.0, 0.0], [0.0, 0.0]])
    assert _sampled.steps_to(losses, 2.6, 2) == 2  # means of two batches: 2.5, 1.25, 0.25
    assert _sampled.steps_to(losses, 1.0, 2) == 4
    assert _sampled.steps_to(losses, 0.1, 2) is None


def test_tuning_steps_are_those_of_adam_for_every_network():
    generator = torch.Generator().manual_seed(4)
    x, y = torch.randn(6, 5, generator=generator, dtype=torch.float64), torch.arange(6) % 3
    part = type("Part", (), {"x": x, "y": y})()
    stack = {name: torch.stack([tensor, 2 * tensor]) for name, tensor in MODEL.state_dict().items()}
    found = _sampled.tuned(MODEL, part, stack, 3, torch.Generator().manual_seed(5), rate=0.1, batch=4)
    for number in range(2):
        draws = torch.Generator().manual_seed(5)
        own = {name: tensor[number].clone().requires_grad_() for name, tensor in stack.items()}
        optimizer = torch.optim.Adam(own.values(), lr=0.1)
        for step in range(3):
            chosen = torch.randint(6, (4,), generator=draws)
            loss = nn.functional.cross_entropy(torch.func.functional_call(MODEL, own, (x[chosen],)), y[chosen])
            torch.testing.assert_close(found[step, number], loss.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
