"""``naive_and_aligned``: a planted element is found again, and every way is what ``barrier`` says of its path."""

import pytest
import torch
from torch import Tensor, nn

from coset import align, discover
from coset.distribution import MeanField
from coset.errors import InputError
from coset.landscape import barrier, geodesic, loss, mixture, naive_and_aligned, predictive_likelihood
from coset.symmetry import Symmetry


@pytest.fixture(scope="module")
def setting() -> tuple[nn.Module, Symmetry, tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    x = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    return model, discover(model, x[:2]).restrict(scales=False), (x, torch.arange(20) % 3)


def network(model: nn.Module, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        for name, tensor in model.state_dict().items()
    }


def test_a_planted_copy_has_no_barrier_once_aligned(setting) -> None:
    model, sym, data = setting
    first = network(model, 1)
    second = sym.act(sym.random(torch.Generator().manual_seed(5)), first)
    found = naive_and_aligned(sym, first, second, {"loss": loss(model, data)}, points=5, show=False)
    assert found.profiles["aligned"]["loss"].barrier == pytest.approx(0, abs=1e-12)
    assert found.profiles["naive"]["loss"].midpoint.excess != pytest.approx(0, abs=1e-3)
    for name, tensor in first.items():
        torch.testing.assert_close(found.ends["aligned"][1][name], tensor)
    assert found.ends["naive"] == (first, second)


@pytest.mark.parametrize("path", ["geodesic", "mixture"])
def test_every_way_is_followed_as_by_hand(setting, path: str) -> None:
    model, sym, data = setting
    a, b = (
        MeanField(network(model, seed), {k: 0.1 + 0 * t for k, t in network(model, seed).items()}) for seed in (1, 2)
    )
    measured = {"log-likelihood": predictive_likelihood(model, data, samples=4, seed=0)}
    found = naive_and_aligned(sym, a, b, measured, path=path, options={"seed": 3}, points=5, show=False)
    moved = align(sym, a, b, seed=3).aligned
    join = {"geodesic": geodesic, "mixture": mixture}[path]
    for way, end in (("naive", b), ("aligned", moved)):
        assert found.profiles[way] == barrier(join(a, end), measured, points=5, show=False)


def test_one_way_alone_needs_no_more(setting) -> None:
    model, sym, data = setting
    a, b = network(model, 1), network(model, 2)
    naive = naive_and_aligned(None, a, b, {"loss": loss(model, data)}, ways=["naive"], points=3, show=False)
    assert (list(naive.profiles), naive.alignment) == (["naive"], None)
    seen = []

    def at(pair):
        seen.append(pair)
        return lambda point, tau: a

    fixed = naive_and_aligned(sym, a, b, {"loss": loss(model, data)}, ways=["aligned"], at=at, points=3, show=False)
    assert len(set(fixed.profiles["aligned"]["loss"].values)) == 1
    assert seen == [fixed.ends["aligned"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ways": []}, "ways is empty; expected some of naive, aligned"),
        ({"ways": ["sideways"]}, "sideways"),
        ({"path": "detour"}, "detour"),
        ({"sym": None}, "sym is None; expected the Symmetry"),
    ],
)
def test_bad_input_is_refused(setting, change, message: str) -> None:
    model, sym, data = setting
    a, b = network(model, 1), network(model, 2)
    with pytest.raises(InputError, match=message):
        naive_and_aligned(**{"sym": sym, "first": a, "second": b, "functionals": {"l": loss(model, data)}, **change})
