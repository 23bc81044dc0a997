"""``Flow``: a distribution over the weights of networks that a field carries a source to."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from coset._checks import check_count, check_positive
from coset._values import Frozen
from coset.distribution import Distribution, Samples
from coset.distribution.density import check_draws, monomial
from coset.errors import InputError
from coset.flow._fields import FieldSpec, FlowField
from coset.flow._frame import Frame
from coset.flow._likelihood import log_density
from coset.flow._paths import Path
from coset.flow._solvers import Solver, Velocity, integrate
from coset.flow._sources import NormalSource, Source
from coset.flow._stochastic import integrate_stochastic
from coset.flow._training import FlowRecipe
from coset.flow._unit_baseline import UnitSource
from coset.symmetry.action import Action

_MOMENTS = 256
"""Mean and deviations are those of so many draws."""

_AT_ONCE = 256
"""So many networks go through a field together."""


@dataclass(frozen=True, eq=False)
class Flow(Distribution):
    """The distribution of x(1), x(0) ~ ``source``, dx/dt = v(t, x), as networks (thesis, chapter 3).

    ``frame``: what a row is of a network; draws are in it: with the geometries "normalized" and "geometric" units have
    incoming weights of norm 1. ``field``: v in that frame. ``recipe``: how it was trained. ``solver``: how the ODE is
    solved unless a call says otherwise. ``spec``: what kind of network the field has. ``moves``: elements that have
    acted on it.

    ``mean`` and ``std`` are those of 256 draws, always the same. Densities (``log_prob``) of "euclidean" flows are by
    weights; those of "geometric" flows by the volume of the manifold of canonical weights: they have different units
    and are never to be compared. "normalized" flows have none: every network is where a line of rows is projected.
    """

    centred: ClassVar[bool] = False
    powers: ClassVar[Mapping[str, int]] = {}

    frame: Frame
    source: Source
    field: FlowField
    recipe: FlowRecipe
    spec: FieldSpec
    solver: Solver = dataclasses.field(default_factory=Solver)
    moves: tuple[tuple[Action, bool], ...] = ()

    def __repr__(self) -> str:
        return (
            f"Flow({self.frame.geometry}, {self.frame.order}, field {self.spec.name!r}, coupling "
            f"{self.recipe.coupling!r}, {self.frame.space.size:,} coordinates)"
        )

    # Draws ------------------------------------------------------------------------------------------------------------

    def sample(
        self,
        n: int,
        generator: torch.Generator,
        *,
        solver: Solver | None = None,
        condition: Any = None,
        guidance: float = 1.0,
        loss: Callable[[dict[str, Tensor]], Tensor] | None = None,
        strength: float = 0.1,
        noise: float = 0.0,
        temperature: float = 1.0,
        contrast: float = 1.0,
    ) -> dict[str, Tensor]:
        """n networks on a leading axis of every tensor.

        ``condition``: a label or number for all, or one for each; ``guidance`` w: v(untold) + w·(v(told) − v(untold)),
        of which 1 is the conditional flow. ``loss``: networks (N, …) → losses (N,); v − λ∇ℓ is followed in place of v,
        λ the ``strength``. ``noise`` η > 0: stochastic sampling (``integrate_stochastic``), of straight paths with
        independent coupling from a Gaussian source. ``temperature`` τ: it starts at m + τ(x₀ − m), m the mean of a
        Gaussian source; less than 1 gives less spread. ``contrast`` c: v_b + c·(v − v_b) is followed, v_b the baseline,
        a Gaussian's: more than 1 is farther from one than what was learned (autoguidance). With either the draws are
        no longer of the distribution that ``log_prob`` is of.
        """
        check_draws(n, generator)
        rows = self.rows(
            n,
            generator,
            solver=solver,
            condition=condition,
            guidance=guidance,
            loss=loss,
            strength=strength,
            noise=noise,
            temperature=temperature,
            contrast=contrast,
        )
        return self.placed(rows)

    def placed(self, rows: Tensor) -> dict[str, Tensor]:
        """The networks of rows (n, D) that the flow has carried: projected to the spheres, and moved."""
        found = self.frame.networks(rows)
        for action, partial in self.moves:
            found = action(found, partial=partial)
        return found

    def samples(self, n: int, generator: torch.Generator, *, chains: int = 1, **options: Any) -> Samples:
        """n draws as ``Samples``, in so many chains; options are those of ``sample``."""
        check_count("chains", chains)
        if n % chains:
            raise InputError(f"n is {n} and chains is {chains}; expected a multiple of chains")
        drawn = self.sample(n, generator, **options)
        return Samples({name: t.reshape(chains, n // chains, *t.shape[1:]) for name, t in drawn.items()})

    def rows(
        self,
        n: int,
        generator: torch.Generator,
        *,
        solver: Solver | None = None,
        condition: Any = None,
        guidance: float = 1.0,
        loss: Callable[[dict[str, Tensor]], Tensor] | None = None,
        strength: float = 0.1,
        noise: float = 0.0,
        temperature: float = 1.0,
        contrast: float = 1.0,
    ) -> Tensor:
        """``sample`` as rows (n, D) of the frame, before they are projected and moved."""
        check_positive("noise", noise, zero=True)
        chosen = self.solver if solver is None else solver
        start = self._warm(self.source.sample(n, generator), temperature)
        told = self._conditions(condition, n)
        parts = []
        for first in range(0, n, _AT_ONCE):
            part = start[first : first + _AT_ONCE]
            own = None if told is None else told[first : first + _AT_ONCE]
            velocity = self.velocity(condition=own, guidance=guidance, loss=loss, strength=strength, contrast=contrast)
            if noise:
                parts.append(self._stochastic(velocity, part, chosen, generator, noise))
            else:
                parts.append(integrate(self.frame.path_space, velocity, part, solver=chosen, differentiable=False))
        return torch.cat(parts)

    def velocity(
        self,
        *,
        condition: Tensor | None = None,
        guidance: float = 1.0,
        loss: Callable[[dict[str, Tensor]], Tensor] | None = None,
        strength: float = 0.1,
        contrast: float = 1.0,
    ) -> Velocity:
        """(t, rows) → velocities of rows, as solvers take it; see ``sample``."""
        path = Path(self.frame.path_space)
        check_positive("contrast", contrast, zero=True)
        conditional = bool(self.spec.labels or self.spec.numbers)
        if condition is None and guidance != 1:
            raise InputError(f"guidance is {guidance}, and there is no condition; expected 1, or a condition")
        if conditional and self.recipe.untold == 0 and (condition is None or guidance != 1):
            raise InputError(
                "the flow was trained with untold=0, so that it knows no networks without a condition; expected a "
                "condition, with guidance 1"
            )

        more = {} if contrast == 1 else {"contrast": contrast}

        def plain(t: Tensor, rows: Tensor, told: Tensor | None) -> Tensor:
            times = t.expand(len(rows))
            v: Tensor = self.field(times, rows, told, **more)
            if self.recipe.prediction == "end" and path.space.curved:
                left = (1 - times)[:, None]
                return path.towards(rows, rows + left * v, times)
            return v

        def guided(t: Tensor, rows: Tensor) -> Tensor:
            v = plain(t, rows, condition)
            if condition is not None and guidance != 1:
                without = plain(t, rows, None)
                v = without + guidance * (v - without)
            if loss is not None:
                v = v - strength * self._gradient(loss, rows)
            return v

        return guided

    def _warm(self, start: Tensor, temperature: float) -> Tensor:
        if check_positive("temperature", temperature, zero=True) == 1:
            return start
        if not isinstance(self.source, NormalSource | UnitSource):
            raise InputError(
                f"temperature is {temperature}, which is for Gaussian sources, and the source is a "
                f"{type(self.source).__name__}; expected 1"
            )
        return self.source.mean + temperature * (start - self.source.mean)

    def _gradient(self, loss: Callable[[dict[str, Tensor]], Tensor], rows: Tensor) -> Tensor:
        """∇ℓ of every network by its row."""
        with torch.inference_mode(False), torch.enable_grad():
            leaves = rows.detach().clone().requires_grad_()
            values = loss(self.frame.networks(leaves))
            if not isinstance(values, Tensor) or values.shape != (len(rows),):
                found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
                raise InputError(
                    f"loss gives {found} for {len(rows)} networks; expected one number each, ({len(rows)},)"
                )
            (gradient,) = torch.autograd.grad(values.sum(), leaves)
        return gradient

    def _stochastic(
        self, velocity: Velocity, rows: Tensor, solver: Solver, generator: torch.Generator, noise: float
    ) -> Tensor:
        if self.recipe.coupling != "independent" or self.recipe.sigma or not isinstance(self.source, NormalSource):
            raise InputError(
                f"noise is {noise}, which is for straight paths without sigma, independent coupling and a Gaussian "
                f"source; this flow has geometry {self.frame.geometry!r}, coupling {self.recipe.coupling!r} and the "
                f"source {type(self.source).__name__}"
            )
        with torch.no_grad():
            return integrate_stochastic(
                self.frame.path_space,
                velocity,
                rows,
                replace(solver, method="euler"),
                generator,
                noise=noise,
                mean=self.source.mean,
                std=self.source.std,
            )

    def _conditions(self, condition: Any, n: int) -> Tensor | None:
        if condition is None:
            return None
        like = self.source.mean
        try:
            given = torch.as_tensor(condition, device=like.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"condition is {condition!r}; expected labels or numbers") from error
        if self.spec.labels:
            if given.is_floating_point() or given.ndim > 1 or bool(((given < 0) | (given >= self.spec.labels)).any()):
                raise InputError(f"condition is {condition!r}; expected labels from 0 to {self.spec.labels - 1}")
            if given.shape not in ((), (n,)):
                raise InputError(f"condition has shape {tuple(given.shape)}; expected one label, or {n}")
            return given.long().expand(n)
        if not self.spec.numbers:
            raise InputError("condition is given, and the flow was trained without; expected None")
        width = self.spec.numbers
        expected = ((width,), (n, width), *(((), (n,)) if width == 1 else ()))
        if given.shape not in expected or not bool(torch.isfinite(given).all()):
            raise InputError(
                f"condition has shape {tuple(given.shape)}; expected {width} finite numbers, or ({n}, {width})"
            )
        return given.to(like).reshape(-1, width).expand(n, width)

    # Moments ----------------------------------------------------------------------------------------------------------

    @cached_property
    def _first(self) -> dict[str, str]:
        tied = self.frame.space.manifold.tied
        return {name: tied.get(name, name) for name in self.frame.space.like}

    @property
    def random_names(self) -> tuple[str, ...]:
        """The parameters that are coordinates."""
        return self.frame.space.names

    @cached_property
    def _drawn(self) -> Samples:
        return self.samples(_MOMENTS, torch.Generator().manual_seed(0))

    @property
    def mean(self) -> Mapping[str, Tensor]:
        """The mean of 256 draws."""
        return self._drawn.mean

    @property
    def std(self) -> Mapping[str, Tensor]:
        """The deviations of 256 draws."""
        return Frozen({name: self._drawn.std[name] for name in self.random_names})

    # Densities --------------------------------------------------------------------------------------------------------

    def log_prob(
        self,
        params: Mapping[str, Tensor],
        *,
        condition: Any = None,
        solver: Solver | None = None,
        trace: str = "exact",
        probes: int = 1,
        noise: str = "rademacher",
        seed: int = 0,
    ) -> Tensor:
        """log p₁ of networks in the frame of the flow, as its draws are (``canonical`` brings others there); (…) for
        leading axes (…), in float64; with a ``condition`` under it.

        That of a flow moved by g is, by weights, log p₁(g⁻¹·θ) − log|det g|, and by canonical weights log p₁(g⁻¹·θ).
        ``trace``: "exact", or "hutchinson" with so many ``probes`` of "rademacher" or "gaussian" ``noise``, as in
        ``log_density``.
        """
        if self.frame.geometry == "normalized":
            raise InputError(
                "a normalized flow has no density, since its rows are projected to spheres; expected a euclidean or a "
                "geometric one"
            )
        names = self.random_names
        if missing := [name for name in names if name not in params]:
            raise InputError(f"params lacks '{missing[0]}', over which the density runs")
        shapes = {name: tuple(tensor.shape) for name, tensor in self.frame.space.like.items()}
        leads = {tuple(t.shape[: t.ndim - len(shapes[n])]) for n, t in params.items() if n in names}
        if len(leads) > 1:
            raise InputError(f"params have the leading axes {sorted(leads)}; expected the same for all")
        (lead,) = leads
        stack = {n: t.reshape(-1, *shapes[n]) if n in names else t for n, t in params.items()}
        count = len(stack[names[0]])
        stack = {n: t.expand((count, *shapes[n])) if n in shapes and n not in names else t for n, t in stack.items()}
        volume = torch.zeros(count, dtype=torch.float64)
        for action, partial in reversed(self.moves):
            stack = Action(action.sym, action.sym.inverse(action.g))(stack, partial=partial)
            volume = volume + self._volume(action, stack)
        rest = {n: t.expand((count, *t.shape)) for n, t in self._rest.items()}
        rows = self.frame.back({**rest, **stack}).to(self.source.mean)
        generator = torch.Generator(rows.device).manual_seed(seed)
        found = log_density(
            self.frame.path_space,
            self.velocity(condition=self._conditions(condition, len(rows))),
            self.source.log_density,
            rows,
            self.solver if solver is None else solver,
            trace=trace,
            probes=probes,
            noise=noise,
            generator=None if trace == "exact" else generator,
        )
        return (found + self.frame.log_volume(rows) - volume.to(found)).reshape(lead)

    def _volume(self, action: Action, stack: Mapping[str, Tensor]) -> Tensor:
        """log|det g| at networks (N, …) that an element is to move; by weights, of canonical ones nothing."""
        count = len(stack[self.random_names[0]])
        if self.frame.geometry != "euclidean":
            return torch.zeros(count, dtype=torch.float64)
        # Where a gain makes up for a variance, the factor is one of each network.
        singles = range(count) if self.frame.offsets else range(1)
        found = [monomial(action, {n: t[i] for n, t in stack.items()}, self.random_names)[1] for i in singles]
        return torch.stack([factor.abs().log().sum() for factor in found]).double().cpu().expand(count)

    @property
    def _rest(self) -> dict[str, Tensor]:
        """What is no coordinate, of ``like``."""
        return {name: t for name, t in self.frame.space.like.items() if name not in self.frame.space.names}

    def entropy(self) -> Any:
        """Refused: there is no closed form; −``log_prob`` of draws is an estimate."""
        raise InputError("a Flow has no entropy in closed form; estimate it by the mean of −log_prob over draws")

    # Actions ----------------------------------------------------------------------------------------------------------

    def transformed(self, action: Action, *, partial: bool) -> Self:
        """The flow of g·θ: its draws are moved."""
        return replace(self, moves=(*self.moves, (action, partial)))

    def canonical(self, networks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Networks (N, *shape) of the architecture brought into the frame of the flow, as its draws are."""
        if self.moves:
            raise InputError("the flow was moved by an element; expected the flow as it was fitted")
        return self.frame.networks(self.frame.rows(networks))
