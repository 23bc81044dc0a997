"""Explicit Runge-Kutta methods as Butcher tableaus."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tableau:
    """kᵢ = f(t + cᵢh, x + h Σ_{j<i} aᵢⱼkⱼ), x₊ = x + h Σ bᵢkᵢ; of methods that choose their steps also the error.

    ``nodes``: c. ``stages``: the rows of a, the first one empty. ``weights``: b. ``order``: of x₊. ``error``: b − b̂ for
    the weights b̂ of the embedded method of one order less. The last stage of a method with an error stands at x₊, so
    that it is the first one of the next step.
    """

    order: int
    nodes: tuple[float, ...]
    stages: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    error: tuple[float, ...] | None = None


_DORMAND_PRINCE = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)
_EMBEDDED = (5179 / 57600, 0.0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40)

SOLVERS: dict[str, Tableau] = {
    "euler": Tableau(1, (0.0,), ((),), (1.0,)),
    "midpoint": Tableau(2, (0.0, 1 / 2), ((), (1 / 2,)), (0.0, 1.0)),
    "rk4": Tableau(
        4, (0.0, 1 / 2, 1 / 2, 1.0), ((), (1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6)
    ),
    # Dormand and Prince, 1980, RK5(4)7M.
    "dopri5": Tableau(
        5,
        (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0),
        (
            (),
            (1 / 5,),
            (3 / 40, 9 / 40),
            (44 / 45, -56 / 15, 32 / 9),
            (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
            (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
            _DORMAND_PRINCE,
        ),
        (*_DORMAND_PRINCE, 0.0),
        tuple(b - other for b, other in zip((*_DORMAND_PRINCE, 0.0), _EMBEDDED, strict=True)),
    ),
}
"""By name: ``euler``, ``midpoint`` and ``rk4`` take fixed steps, ``dopri5`` chooses them."""
