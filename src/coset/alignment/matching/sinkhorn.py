"""``"sinkhorn"``: differentiable re-basin, gradient descent over the Birkhoff polytope (Peña et al. 2023)."""

from torch import Tensor, nn

from coset._batches import Labelled
from coset._checks import check_positive
from coset.alignment._result import Alignment, Callback, T
from coset.alignment.matching.descent import Options, descend
from coset.alignment.matching.losses import Criterion, Loss
from coset.alignment.matching.sinkhorn_operator import sinkhorn
from coset.symmetry import Element, Symmetry

# Of the row sums of relaxed permutations: the descent needs no more.
_TOLERANCE = 1e-4


def match_sinkhorn(
    sym: Symmetry,
    reference: T,
    other: T,
    *,
    objective: str | Loss = "l2",
    model: nn.Module | None = None,
    data: Labelled | None = None,
    criterion: str | Criterion = "cross-entropy",
    temperature: float = 0.3,
    scales: bool = False,
    steps: int = 300,
    learning_rate: float = 0.05,
    scale_rate: float = 0.05,
    generator_rate: float = 0.02,
    largest_scale: float | None = 2.0,
    balanced: bool = True,
    continuous: bool = True,
    both: bool = False,
    batch_size: int = 250,
    every: int = 10,
    examples: int = 1000,
    start: Element | None = None,
    seed: int = 0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Alignment[T]:
    """Permutations relaxed to X = sinkhorn(scores, temperature), free scores for every class, descended by Adam.

    ``objective``: "l2" (distance between the parameters), "midpoint" or "random" (the loss ``criterion`` of ``model``
    on ``data``, halfway or at a random point of the segment), or any function loss(reference, permuted, batch). The
    lower the temperature, the closer X is to a permutation and the less it moves. A nested class has one matrix of
    scores for the blocks and one inside each block. See ``Options`` for the rest, and ``descend`` for what is
    guaranteed. Signs are those of ``start``.
    """
    check_positive("temperature", temperature)

    def relaxation(scores: Tensor) -> Tensor:
        return sinkhorn(scores, temperature, tolerance=_TOLERANCE)

    options = Options(
        objective=objective, model=model, data=data, criterion=criterion, scales=scales, steps=steps,
        learning_rate=learning_rate, scale_rate=scale_rate, generator_rate=generator_rate,
        largest_scale=largest_scale, balanced=balanced, continuous=continuous, both=both,
        batch_size=batch_size, every=every, examples=examples, start=start, seed=seed, callback=callback, show=show,
    )  # fmt: skip
    return descend(sym, reference, other, "sinkhorn", relaxation, options)
