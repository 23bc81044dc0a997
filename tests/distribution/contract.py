"""What every kind of distribution must do: a suite that each inherits; a kind says how it is made of weights.

A kind from outside the library inherits it, too: see ``Box`` and ``Flow``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from architectures import CASES, evaluate, made, randomized
from coset.distribution import Delta, Distribution, Gaussian, LowRank, MeanField, Samples, load_distribution
from coset.distribution import save_distribution as save
from coset.distribution.density import monomial, rows, vector
from coset.distribution.files import pack
from coset.distribution.ties import map_tied, ties
from coset.errors import InputError
from coset.posterior.prediction.draws import draws_of
from coset.symmetry.action import Action

SEEDS = st.integers(0, 2**20)
SMALL = [name for name in CASES if not name.startswith(("myrtle", "cct", "resnet"))]
"""Architectures with a few hundred weights: of these a dense covariance is small."""


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def random_names(params):
    """Trained parameters, each tied tensor once."""
    return tuple(
        name
        for name, one in ties(params).items()
        if name == one and params[name].is_floating_point() and "running" not in name
    )


def covariance(size, generator, rank=None):
    root = torch.randn(size, rank or size + 3, generator=generator, dtype=torch.float64)
    return root @ root.T / size


def mean_field(params, names, generator):
    return MeanField(
        params, {key: 0.1 + torch.rand(params[key].shape, generator=generator, dtype=torch.float64) for key in names}
    )


def gaussian(params, names, generator, rank=None):
    return Gaussian(params, covariance(sum(params[key].numel() for key in names), generator, rank), names)


def low_rank(params, names, generator, rank=2):
    """Directions and a diagonal of its own, over the same names."""
    factors = {
        key: torch.randn(rank, *params[key].shape, generator=generator, dtype=torch.float64) / 2 for key in names
    }
    return LowRank(params, mean_field(params, names, generator).std, factors)


def samples(params, generator, chains=2, draws=3):
    def drawn(name):
        tensor = params[name]
        if not tensor.is_floating_point():
            return tensor.expand(chains, draws, *tensor.shape)
        noise = torch.randn(chains, draws, *tensor.shape, generator=generator, dtype=torch.float64)
        return tensor * (0.1 * noise).exp()

    return Samples(map_tied(drawn, ties(params)))


@dataclass(frozen=True, eq=False)
class Box(Distribution):
    """Uniform within ``half`` of the mean, entry by entry: a kind with a density that the library does not know."""

    centred: ClassVar[bool] = True
    powers: ClassVar[Mapping[str, int]] = {"mean": 1, "half": 1}

    mean: Mapping[str, Tensor]
    half: Mapping[str, Tensor]

    @property
    def random_names(self):
        return tuple(self.half)

    @property
    def std(self):
        return {name: width / 3**0.5 for name, width in self.half.items()}

    def sample(self, n, generator):
        def drawn(name):
            mean = self.mean[name]
            if name not in self.half:
                return mean.expand(n, *mean.shape)
            side = 2 * torch.rand(n, *mean.shape, generator=generator, dtype=mean.dtype) - 1
            return mean + side * self.half[name].to(mean)

        return map_tied(drawn, ties(self.mean))

    def transformed(self, action, *, partial):
        return Box(action(self.mean, partial=partial), action.spread(self.half, self.mean))

    def log_prob(self, params):
        inside = [
            (rows(params, name, self.mean[name]) - self.mean[name].reshape(-1)).abs() <= width.reshape(-1) * (1 + 1e-12)
            for name, width in self.half.items()
        ]
        every = torch.stack([part.all(-1) for part in inside]).all(0)
        return torch.where(every, -self.entropy(), -torch.inf)

    def entropy(self):
        return torch.stack([(2 * width).log().sum() for width in self.half.values()]).sum()


@dataclass(frozen=True, eq=False)
class Flow(Distribution):
    """Noise that is warped and then moved: it can be drawn from, and nothing else is known of it but its mean."""

    mean: Mapping[str, Tensor]
    base: Mapping[str, Tensor]
    moves: tuple[tuple[Action, bool], ...] = field(default=())

    def sample(self, n, generator):
        def drawn(name):
            tensor = self.base[name]
            if not tensor.is_floating_point() or "running" in name:
                return tensor.expand(n, *tensor.shape)
            noise = torch.randn(n, *tensor.shape, generator=generator, dtype=tensor.dtype)
            return tensor + 0.1 * torch.sinh(noise)

        draws = map_tied(drawn, ties(self.base))
        for action, partial in self.moves:
            draws = action(draws, partial=partial)
        return draws

    def transformed(self, action, *, partial):
        return Flow(action(self.mean, partial=partial), self.base, (*self.moves, (action, partial)))


def same(a, b):
    """Whether two distributions have the same bits."""
    (mine, told), (theirs, there) = pack(a), pack(b)
    return told == there and all(
        torch.equal(mine[key], theirs[key]) and mine[key].dtype == theirs[key].dtype for key in mine
    )


class Contract:
    """``make(params, names, generator)``: a distribution of the kind over ``params``, of which ``names`` may vary."""

    dense = True
    """Whether there is a density."""
    exact = False
    """Whether the same generator gives g·θ of the moved distribution where it gives θ of the other."""
    moves_mean = True
    """Whether the mean of g·θ is g times the mean; not where it is one of several networks."""
    saved = True

    def make(self, params, names, generator):
        raise NotImplementedError

    def over(self, name, seed=0, dtype=torch.float64):
        model, sym, shape = made(name)
        generator = seeded(seed)
        params = map_tied(
            lambda key: weights[key].to(dtype) if weights[key].is_floating_point() else weights[key],
            ties(weights := randomized(model, generator)),
        )
        return model, sym, shape, self.make(params, random_names(params), generator)

    @pytest.mark.parametrize("name", SMALL)
    def test_draws_can_be_run_all_at_once(self, name):
        """Every tensor has the leading axis n, tied ones stay one: a consumer may vmap over axis 0."""
        model, _, shape, q = self.over(name)
        x = torch.randn(2, *shape, generator=seeded(1), dtype=torch.float64)
        drawn = q.sample(3, seeded(2))
        assert drawn.keys() == q.mean.keys()
        assert all(tensor.shape == (3, *q.mean[key].shape) for key, tensor in drawn.items())
        assert all(tensor.dtype == q.mean[key].dtype for key, tensor in drawn.items())
        assert ties(drawn) == ties(q.mean)
        again = q.sample(3, seeded(2))
        assert all(torch.equal(tensor, again[key]) for key, tensor in drawn.items())
        # Inside vmap tied names are no longer one tensor for functional_call; one of them is enough.
        single = {key: tensor for key, tensor in drawn.items() if ties(drawn)[key] == key}
        outputs = torch.vmap(lambda params: evaluate(model, params, x))(single)
        one = evaluate(model, {key: tensor[1] for key, tensor in single.items()}, x)
        torch.testing.assert_close(outputs[1], one, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("name", SMALL)
    @settings(max_examples=3)
    @given(seed=SEEDS)
    def test_elements_move_it_as_they_move_draws(self, name, seed):
        """log (g#q)(g·θ) = log q(θ) − log|det g|, and the entropy rises by that; means and draws are moved."""
        _, sym, _, q = self.over(name, seed)
        g = sym.random(seeded(seed), spread=0.2)
        moved, names = sym.act(g, q), random_names(q.mean)
        assert type(moved) is type(q)
        if self.moves_mean:
            expected = vector(sym.act(g, q.mean), names, q.mean)
            torch.testing.assert_close(vector(moved.mean, names, q.mean), expected, rtol=1e-9, atol=1e-9)
        points = q.sample(2, seeded(seed + 1))
        image = sym.act(g, points)
        if self.exact:
            drawn = moved.sample(2, seeded(seed + 1))
            for key in names:
                torch.testing.assert_close(drawn[key], image[key], rtol=1e-12, atol=1e-12)
        if self.dense:
            volume = monomial(Action(sym, g), q.mean, names)[1].abs().log().sum()
            torch.testing.assert_close(moved.log_prob(image), q.log_prob(points) - volume, rtol=1e-9, atol=1e-7)
            self.check_entropy(moved, q, volume)

    def check_entropy(self, moved, q, volume):
        torch.testing.assert_close(moved.entropy(), q.entropy() + volume, rtol=1e-9, atol=1e-9)

    def test_it_is_a_group_that_acts(self):
        _, sym, _, q = self.over("grouped-query attention")
        g, h = sym.random(seeded(1), spread=0.2), sym.random(seeded(2), spread=0.2)
        for found, expected in (
            (sym.act(sym.identity(), q), q),
            (sym.act(h, sym.act(g, q)), sym.act(sym.compose(h, g), q)),
            (sym.act(sym.inverse(g), sym.act(g, q)), q),
        ):
            for key, tensor in expected.mean.items():
                torch.testing.assert_close(found.mean[key], tensor, rtol=1e-10, atol=1e-10)
            if self.dense:
                points = expected.sample(3, seeded())
                torch.testing.assert_close(found.log_prob(points), expected.log_prob(points), rtol=1e-9, atol=1e-7)

    def test_types_stay(self):
        _, sym, _, q = self.over("grouped-query attention", dtype=torch.float32)
        moved = sym.act(sym.random(seeded(), spread=0.2), q)
        for one in (q, moved):
            assert {tensor.dtype for tensor in one.mean.values()} == {torch.float32}
            assert {tensor.dtype for tensor in one.sample(2, seeded()).values()} == {torch.float32}

    def test_predictions_draw_by_number(self):
        """Draw j is the same whatever else was drawn, and one network with all names."""
        q = self.over("tied embeddings")[-1]
        first, again = draws_of(q, 4, 0), draws_of(q, 4, 0)
        assert first.count == again.count
        number = first.count - 1
        one, other = first.draw(number), again.draw(number)
        assert one.keys() == q.mean.keys()
        assert all(torch.equal(tensor, other[key]) and tensor.shape == q.mean[key].shape for key, tensor in one.items())

    def test_files_keep_every_bit(self, tmp_path):
        q = self.over("tied embeddings")[-1]
        if not self.saved:
            with pytest.raises(InputError, match=f"a {type(q).__name__} cannot be saved; expected one of Delta, "):
                save(q, tmp_path / "q")
            return
        save(q, tmp_path / "q")
        again = load_distribution(tmp_path / "q")
        assert type(again) is type(q)
        assert same(again, q)
        assert ties(again.mean) == ties(q.mean)

    def test_bad_counts_generators_and_densities_are_refused(self):
        q = self.over("tied embeddings")[-1]
        if type(q).__module__.startswith("coset."):
            with pytest.raises(InputError, match="n is 0; expected a whole number ≥ 1"):
                q.sample(0, seeded())
        if type(q).__module__.startswith("coset.") and not isinstance(q, Delta):
            with pytest.raises(InputError, match=r"generator is a int; expected a torch\.Generator"):
                q.sample(1, 0)
        if not self.dense:
            with pytest.raises(InputError, match="no density, so log_prob is not defined"):
                q.log_prob(q.mean)
            with pytest.raises(InputError, match="no density, so entropy is not defined"):
                q.entropy()
