"""NumPyro's and BlackJAX's samplers on the posterior of a small regression network, for ``benchmarks.sampling``."""

import importlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Drawn:
    """States (chains, draws, D); seconds of warm-up, sampling and compilation, and gradients taken while sampling."""

    draws: np.ndarray
    warmup: float
    sampling: float
    compilation: float
    gradients: float


def missing() -> str:
    """Why the peers cannot run; empty where they can."""
    for name in ("jax", "numpyro", "blackjax"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"{name} cannot be imported ({error}); expected: pip install -c constraints.txt coset[peers]"
    return ""


def log_density(widths: Sequence[int], x: np.ndarray, y: np.ndarray) -> Callable[[Any], Any]:
    """log p(Y|θ) + log p(θ) of a tanh network with a learned noise, θ as coset lays it out, prior N(0, I)."""
    import jax.numpy as jnp

    inputs, targets = jnp.asarray(x), jnp.asarray(y)

    def density(theta: Any) -> Any:
        at, hidden = 1, inputs
        for number, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
            weight = theta[at : at + fan_in * fan_out].reshape(fan_out, fan_in)
            at += fan_in * fan_out
            hidden = hidden @ weight.T + theta[at : at + fan_out]
            at += fan_out
            hidden = jnp.tanh(hidden) if number < len(widths) - 2 else hidden
        log_std = theta[0]
        residuals = (targets - hidden) * jnp.exp(-log_std)
        likelihood = (-0.5 * residuals**2 - log_std).sum()
        return likelihood - 0.5 * (theta**2).sum()

    return density


def numpyro_nuts(density: Callable[[Any], Any], start: np.ndarray, warmup: int, draws: int, seed: int) -> Drawn:
    """NumPyro's NUTS kernel, all chains by vmap."""
    import jax
    from numpyro.infer import NUTS

    kernel = NUTS(potential_fn=lambda theta: -density(theta))

    def warm(key: Any, theta: Any) -> Any:
        state = kernel.init(key, warmup, theta, (), {})
        return jax.lax.scan(lambda now, _: (kernel.sample(now, (), {}), None), state, None, length=warmup)[0]

    def sample(state: Any) -> Any:
        def one(now: Any, _: Any) -> Any:
            now = kernel.sample(now, (), {})
            return now, (now.z, now.num_steps)

        return jax.lax.scan(one, state, None, length=draws)[1]

    # The kernel keeps functions that it makes at its first use; these must not belong to a trace.
    kernel.init(jax.random.PRNGKey(seed), warmup, jax.numpy.asarray(start[0]), (), {})
    keys = jax.random.split(jax.random.PRNGKey(seed), len(start))
    warmed, warm_seconds, first = _timed(jax.jit(jax.vmap(warm)), keys, start)
    (states, steps), seconds, second = _timed(jax.jit(jax.vmap(sample)), warmed)
    return Drawn(np.asarray(states), warm_seconds, seconds, first + second, float(np.asarray(steps).sum()))


def blackjax_nuts(density: Callable[[Any], Any], start: np.ndarray, warmup: int, draws: int, seed: int) -> Drawn:
    """BlackJAX's NUTS: the window adaptation of every chain, then all chains by vmap."""
    import blackjax
    import jax

    def warm(key: Any, theta: Any) -> Any:
        adapt = blackjax.window_adaptation(blackjax.nuts, density)
        (state, parameters), _ = adapt.run(key, theta, num_steps=warmup)
        return state, parameters

    def sample(key: Any, state: Any, parameters: Any) -> Any:
        kernel = blackjax.nuts(density, **parameters)

        def one(now: Any, key: Any) -> Any:
            now, info = kernel.step(key, now)
            return now, (now.position, info.num_integration_steps)

        return jax.lax.scan(one, state, jax.random.split(key, draws))[1]

    keys = jax.random.split(jax.random.PRNGKey(seed), len(start))
    warmed, warm_seconds, first = _timed(jax.jit(jax.vmap(warm)), keys, start)
    (states, steps), seconds, second = _timed(jax.jit(jax.vmap(sample)), keys, *warmed)
    return Drawn(np.asarray(states), warm_seconds, seconds, first + second, float(np.asarray(steps).sum()))


def blackjax_mclmc(
    density: Callable[[Any], Any], start: np.ndarray, warmup: int, draws: int, thin: int, seed: int
) -> Drawn:
    """BlackJAX's MCLMC with its defaults: minimal norm, a diagonal preconditioner, each chain tuned by itself."""
    import blackjax
    import jax

    kernel = blackjax.mclmc.build_kernel()

    def warm(key: Any, theta: Any) -> Any:
        begin, tune = jax.random.split(key)
        state = blackjax.mclmc.init(position=theta, logdensity_fn=density, rng_key=begin)
        found = blackjax.mclmc_find_L_and_step_size(
            mclmc_kernel=kernel, num_steps=warmup, state=state, rng_key=tune, logdensity_fn=density,
            frac_tune1=0.4, frac_tune2=0.3, frac_tune3=0.3,
        )  # fmt: skip
        return found[0], found[1]

    def sample(key: Any, state: Any, parameters: Any) -> Any:
        sampler = blackjax.mclmc(
            density, L=parameters.L, step_size=parameters.step_size,
            inverse_mass_matrix=parameters.inverse_mass_matrix,
        )  # fmt: skip

        def step(now: Any, key: Any) -> Any:
            return sampler.step(key, now)[0], None

        def one(now: Any, key: Any) -> Any:
            now = jax.lax.scan(step, now, jax.random.split(key, thin))[0]
            return now, now.position

        return jax.lax.scan(one, state, jax.random.split(key, draws))[1]

    keys = jax.random.split(jax.random.PRNGKey(seed), len(start))
    warmed, warm_seconds, first = _timed(jax.jit(jax.vmap(warm)), keys, start)
    states, seconds, second = _timed(jax.jit(jax.vmap(sample)), keys, *warmed)
    return Drawn(np.asarray(states), warm_seconds, seconds, first + second, 2.0 * draws * thin * len(start))


def _timed(function: Any, *inputs: Any) -> tuple[Any, float, float]:
    """What a jitted function gives, the seconds it took, and those of compiling it before."""
    import jax

    begun = time.perf_counter()
    code = function.lower(*inputs).compile()
    made = time.perf_counter()
    found = jax.block_until_ready(code(*inputs))
    return found, time.perf_counter() - made, made - begun
