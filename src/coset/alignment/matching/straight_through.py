"""``"ste"``: the straight-through estimator (Ainsworth et al. 2023, "Git Re-Basin")."""

from torch import Tensor, nn

from coset._batches import Labelled
from coset.alignment._result import Alignment, Callback, T
from coset.alignment.matching.descent import Options, descend
from coset.alignment.matching.losses import Criterion, Loss
from coset.alignment.matching.sinkhorn_operator import matrix_of, permutation_of
from coset.symmetry import Element, Symmetry


def match_straight_through(
    sym: Symmetry,
    reference: T,
    other: T,
    *,
    objective: str | Loss = "midpoint",
    model: nn.Module | None = None,
    data: Labelled | None = None,
    criterion: str | Criterion = "cross-entropy",
    scales: bool = True,
    steps: int = 400,
    learning_rate: float = 0.005,
    scale_rate: float = 0.05,
    generator_rate: float = 0.02,
    largest_scale: float | None = 2.0,
    balanced: bool = True,
    continuous: bool = True,
    both: bool = False,
    batch_size: int = 250,
    every: int = 25,
    examples: int = 1000,
    start: Element | None = None,
    seed: int = 0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Alignment[T]:
    """Free matrices, used forward through their nearest permutations and backward as if they were these.

    ``objective``: "midpoint" or "random" (the loss ``criterion`` of ``model`` on ``data``, halfway or at a random point
    of the segment), "l2" (distance between the parameters), or any function loss(reference, permuted, batch). See
    ``Options`` for the rest, and ``descend`` for what is guaranteed. Signs are those of ``start``.

    The rates are those for a good ``start``, by activations say: half of learning_rate·steps is how far an entry can
    go, and a permutation changes when two of them have gone halfway from 1 and from 0. From nowhere take 0.03.
    """
    options = Options(
        objective=objective, model=model, data=data, criterion=criterion, scales=scales, steps=steps,
        learning_rate=learning_rate, scale_rate=scale_rate, generator_rate=generator_rate,
        largest_scale=largest_scale, balanced=balanced, continuous=continuous, both=both,
        batch_size=batch_size, every=every, examples=examples, start=start, seed=seed, callback=callback, show=show,
    )  # fmt: skip
    return descend(sym, reference, other, "ste", _straight_through, options)


def _straight_through(matrix: Tensor) -> Tensor:
    """The nearest permutation matrix, with the derivative of the identity."""
    hard = matrix_of(permutation_of(matrix), matrix.dtype)
    return hard + (matrix - matrix.detach())
