"""Task arithmetic, TIES and DARE on cases that can be counted by hand, and after alignment."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import coset
from coset.alignment import averages, merge
from coset.alignment.task_vectors import KINDS, TaskVectors
from coset.errors import InputError
from coset.models import MLP

BASE = {"w": torch.tensor([1.0, 1.0, 1.0, 1.0], dtype=torch.float64)}
ONE = {"w": torch.tensor([1.0, 3.0, -3.0, 1.5], dtype=torch.float64)}  # τ = 0, 2, −4, ½
TWO = {"w": torch.tensor([2.0, 4.0, 4.0, 0.0], dtype=torch.float64)}  # τ = 1, 3, 3, −1


def averaged(kind, weights=None, **options):
    return averages.average([ONE, TWO], weights, kind=kind, base=BASE, task=TaskVectors(**options))["w"].tolist()


def test_task_arithmetic_sums_what_was_learned():
    assert averaged("task-arithmetic") == [1.5, 3.5, 0.5, 0.75]
    assert averaged("task-arithmetic", [3, 1], scale=2.0) == [1.5, 5.5, -3.5, 1.25]


def test_ties_trims_elects_and_averages_what_agrees():
    # All entries: signs of τ₁ + τ₂ are +, +, −, −; those that agree are 1; 2 and 3; −4; −1.
    assert averaged("ties") == [2.0, 3.5, -3.0, 0.0]
    # The larger half: 2 and −4 of the first, 3 and 3 of the second.
    assert averaged("ties", density=0.5) == [1.0, 3.5, -3.0, 1.0]
    # A weight of 3 turns the election of the third entry no further: 3·(−4) + 3 < 0; of the last: 1.5 − 1 > 0.
    assert averaged("ties", [3, 1]) == [2.0, 1 + (3 * 2 + 3) / 4, -3.0, 1.5]


def test_dare_keeps_the_expectation():
    assert averaged("dare") == averaged("task-arithmetic")
    assert averaged("dare-ties") == averaged("ties")
    drawn = torch.tensor([averaged("dare", density=0.5, seed=seed) for seed in range(2000)], dtype=torch.float64)
    values = sorted(set(drawn[:, 1].tolist()))
    assert values == [1.0, 3.0, 4.0, 6.0]  # none, the first's 2/½·½, the second's, both
    deviation = drawn.std(0) / 2000**0.5
    assert bool(((drawn.mean(0) - torch.tensor([1.5, 3.5, 0.5, 0.75])).abs() < 4 * deviation).all())
    assert averaged("dare", density=0.5, seed=3) == averaged("dare", density=0.5, seed=3)


@given(st.sampled_from([*KINDS]), st.integers(0, 10**6))
def test_networks_that_learned_the_same_keep_it(kind, seed):
    generator = torch.Generator().manual_seed(seed)
    base = {"w": torch.randn(7, generator=generator, dtype=torch.float64)}
    learned = {"w": torch.randn(7, generator=generator, dtype=torch.float64)}
    found = averages.average([learned, learned, learned], [1, 2, 3], kind=kind, base=base)
    torch.testing.assert_close(found["w"], learned["w"])


def test_the_base_is_aligned_with_the_networks():
    """Of networks that are moved copies the merge computes what it does of the networks themselves."""
    model = MLP(4, [6], 3, activation="tanh").double()
    sym = coset.discover(model, torch.randn(2, 4, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    base = {name: torch.randn(t.shape, generator=generator, dtype=t.dtype) for name, t in model.state_dict().items()}
    near = [
        {name: t + 0.1 * torch.randn(t.shape, generator=generator, dtype=t.dtype) for name, t in base.items()}
        for _ in "ab"
    ]
    moved = [sym.act(sym.random(generator), network) for network in (*near, base)]
    how = {"average": "ties", "average_options": {"density": 0.4}}
    data = torch.randn(64, 4, dtype=torch.float64, generator=generator)
    whole = merge(sym, near, base=base, align=False, **how).network
    again = merge(
        sym, moved[:2], base=moved[2], method="activations", model=model, options={"data": data}, **how
    ).network
    x = torch.randn(5, 4, dtype=torch.float64, generator=generator)
    was, now = (torch.func.functional_call(model, params, (x,)) for params in (whole, again))
    torch.testing.assert_close(now, was)


def test_bad_arguments_are_named():
    for given_options, message in (
        ({"density": 0}, "density is 0; expected more than 0 and at most 1"),
        ({"density": 1.5}, "density is 1.5"),
        ({"scale": float("nan")}, "scale is nan"),
    ):
        with pytest.raises(InputError, match=message):
            TaskVectors(**given_options)
    with pytest.raises(InputError, match="average 'ties' needs the network from which the others began"):
        averages.average([ONE, TWO], kind="ties")
    with pytest.raises(InputError, match="average 'mean' has no base"):
        averages.average([ONE, TWO], base=BASE)
    with pytest.raises(InputError, match="average is 'tie'; expected one of"):
        averages.average([ONE, TWO], kind="tie", base=BASE)
