"""Nested assignments of several problems at once, against all orders and signs written out."""

import itertools

import numpy as np
import pytest
import torch

from coset.alignment.nested_assignment import Nest, nested_assignment

B, N, COUNT = 2, 3, 3
"""Blocks, units in each, problems."""

ORDERS = {"blocks": list(itertools.permutations(range(B))), "units": list(itertools.permutations(range(N)))}


def drawn(seed, fixed):
    """Blocks with signs and units with signs in them; ``fixed``: the nests whose order is given."""
    generator = torch.Generator().manual_seed(seed)

    def scores(parity, n):
        return {frozenset(parity): torch.randn(COUNT, n, n, generator=generator, dtype=torch.float64)}

    rng = np.random.default_rng(seed)
    orders = {
        "blocks": np.stack([rng.permutation(B) for _ in range(COUNT)])[:, None],
        "units": np.stack([[rng.permutation(N) for _ in range(B)] for _ in range(COUNT)]),
    }
    given = {name: order if name in fixed else None for name, order in orders.items()}
    inner = Nest("units", N, scores("ab", B * N) | scores("", B * N), ("b",), given["units"])
    outer = Nest("blocks", B, scores("a", B) | scores("", B), ("a",), given["blocks"], (inner,))
    return outer, inner


def worth(outer, inner, problem, blocks, units, signs):
    """Σ ± score; ``blocks``: the old block at each new one, ``units`` in each old block, signs of the old ones."""
    total = 0.0
    for new, old in enumerate(blocks):
        for parity, matrix in outer.scores.items():
            total += (signs["a"][old] if parity else 1) * float(matrix[problem, new, old])
        for i, j in enumerate(units[old]):
            for parity, matrix in inner.scores.items():
                sign = signs["a"][old] * signs["b"][old * N + j] if parity else 1
                total += sign * float(matrix[problem, new * N + i, old * N + j])
    return total


@pytest.mark.parametrize("fixed", [(), ("blocks",), ("units",), ("blocks", "units")])
@pytest.mark.parametrize("seed", range(2))
def test_the_best_of_all_orders_and_signs_in_every_problem(seed, fixed):
    outer, inner = drawn(seed, fixed)
    found = nested_assignment(outer, COUNT)
    assert set(found.signs) == {"a", "b"}
    for problem in range(COUNT):
        blocks = [tuple(outer.order[problem, 0])] if "blocks" in fixed else ORDERS["blocks"]
        within = [[tuple(inner.order[problem, b])] if "units" in fixed else ORDERS["units"] for b in range(B)]
        best = -np.inf
        for order, units, a in itertools.product(
            blocks, itertools.product(*within), itertools.product((1, -1), repeat=B)
        ):
            # The best sign of a unit is read off, given all else.
            ways = [worth(outer, inner, problem, order, units, {"a": a, "b": [b] * (B * N)}) for b in (1, -1)]
            even = sum(ways) / 2
            odd = sum(
                abs(float(inner.scores[frozenset("ab")][problem, new * N + i, old * N + j]))
                for new, old in enumerate(order)
                for i, j in enumerate(units[old])
            )
            best = max(best, even + odd)
        assert found.values[problem] == pytest.approx(best, abs=1e-12)
        orders = {"blocks": found.came_from["blocks"][problem], "units": found.order(inner)[problem]}
        signs = {key: values[problem] for key, values in found.signs.items()}
        reached = worth(outer, inner, problem, orders["blocks"], orders["units"], signs)
        assert reached == pytest.approx(best, abs=1e-12)
        assert (found.order(outer)[problem, 0] == orders["blocks"]).all()
        for nest in (outer, inner):
            assert nest.order is None or (found.order(nest)[problem] == nest.order[problem]).all()


def test_where_nothing_tells_a_sign_is_none():
    scores = torch.zeros(1, 2, 2, dtype=torch.float64)
    scores[0, 0, 1] = -3
    found = nested_assignment(Nest("units", 2, {frozenset("s"): scores}, ("s",)))
    assert found.came_from["units"].tolist() == [[1, 0]]
    assert found.signs["s"].tolist() == [[0, -1]]
    assert found.values.tolist() == [3]
