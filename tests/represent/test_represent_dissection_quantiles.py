"""Streamed thresholds against sorted values: exact within their memory, within the stated error beyond it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coset.errors import InputError
from coset.represent.dissection.quantiles import TailThreshold


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def streamed(values: Tensor, share: float, part: int, kept: int) -> TailThreshold:
    stream = TailThreshold(share, values.shape[1], kept=kept)
    for start in range(0, values.shape[1], part):
        stream.add(values[:, start : start + part])
    return stream


def exact(values: Tensor, share: float) -> Tensor:
    return values.sort(dim=1, descending=True).values[:, int(share * values.shape[1])]


@given(
    st.integers(1, 400), st.integers(1, 97), st.floats(0.001, 0.9), st.integers(1, 64), st.integers(0, 99),
    st.booleans(),
)  # fmt: skip
def test_the_stream_gives_the_quantile(n: int, part: int, share: float, kept: int, seed: int, ties: bool) -> None:
    values = normal(3, n, seed=seed)
    values = (4 * values).round().relu() if ties else values
    stream = streamed(values, share, part, kept)
    found = stream.threshold()
    if int(share * n) < kept:
        assert stream.error == 0
        assert torch.equal(found, exact(values, share))
        assert bool(((values > found[:, None]).sum(1) <= int(share * n)).all())
    else:
        above, level = (values > found[:, None]).sum(1), (values >= found[:, None]).sum(1)
        slack = round(stream.error * n)
        # With equal values the rank of T is an interval; that of ⌊share·n⌋ + 1 must be near it.
        assert bool((above - slack <= int(share * n)).all())
        assert bool((level + slack >= int(share * n)).all())


@pytest.mark.parametrize("order", ["random", "rising", "falling"])
def test_beyond_the_memory_the_error_is_small_and_stated(order: str) -> None:
    values = normal(4, 200_000)
    if order != "random":
        values = values.sort(dim=1, descending=order == "falling").values
    stream = streamed(values, 0.005, 4000, kept=128)
    found = stream.threshold()
    share = (values > found[:, None]).double().mean(1)
    assert stream.weight == 8
    assert float((share - 0.005).abs().max()) <= stream.error
    # 128 values hold a tail of a thousand; only a stream that rises needs many runs.
    assert stream.error < {"random": 0.0015, "rising": 0.035, "falling": 0.0002}[order]


def test_memory_does_not_grow_with_the_stream() -> None:
    stream = TailThreshold(0.01, 500_000, kept=100)
    for seed in range(500):
        stream.add(normal(2, 1000, seed=seed))
        held = (0 if stream._largest is None else stream._largest.shape[1]) + sum(
            part.shape[1] for part in stream._waiting
        )
        assert held <= 2 * 100 + 1000
    assert stream.threshold().shape == (2,)


def test_single_precision_and_rows_at_rest() -> None:
    values = torch.zeros(2, 1000)
    values[1, 3] = 5.0
    found = streamed(values, 0.005, 100, kept=64).threshold()
    assert found.dtype == torch.float32
    assert found.tolist() == [0.0, 0.0]


def test_bad_input() -> None:
    with pytest.raises(InputError, match=r"share is 1\.5; expected a number between 0 and 1"):
        TailThreshold(1.5, 10)
    with pytest.raises(InputError, match="total is 0; expected a whole number"):
        TailThreshold(0.5, 0)
    with pytest.raises(InputError, match=r"values is \(3,\); expected a tensor \(rows, n\)"):
        TailThreshold(0.5, 10).add(torch.ones(3))
    stream = TailThreshold(0.5, 10)
    stream.add(torch.ones(1, 8))
    with pytest.raises(InputError, match="8 values of a row were added; total announced 10"):
        stream.threshold()
    with pytest.raises(InputError, match="more than the 10 values"):
        stream.add(torch.ones(1, 8))
