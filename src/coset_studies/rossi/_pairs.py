"""Two networks or posteriors, one brought to the other, and the barriers between them (Rossi et al. 2023)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import nn

from coset.alignment import align
from coset.data import Dataset, Split
from coset.distribution import Delta, MeanField
from coset.landscape import PATHS, Profile, Profiles, barrier, predictive_on
from coset.posterior import Fit, Isotropic
from coset.study import Context
from coset.study.posteriors import Weights, inferred, network_of
from coset.symmetry import Symmetry, discover

SCHEMA = 1
"""Version of what a stored path stands for: to be raised where the same one comes to be measured otherwise."""
RESNET20 = (16, 32, 64)
"""Channels of the three stages at width 1 (appendix C, table 3)."""


class Architecture(Protocol):
    """A network of ``coset.models``: its name there, and its options for some data."""

    @property
    def model(self) -> str:
        """The name in ``coset.models.MODELS``."""
        ...

    def options(self, data: Dataset) -> dict[str, Any]:
        """The options for these data."""
        ...


@dataclass(frozen=True)
class Network:
    """A residual network of ``stages`` of ``blocks`` each, all channels times ``width``."""

    width: float = 1.0
    norm: str = "frn"
    stages: tuple[int, ...] = RESNET20
    blocks: int = 3

    def options(self, data: Dataset) -> dict[str, Any]:
        """The options of ``coset.models.ResNet`` for these data."""
        shapes = {"in_channels": data.shape[0], "classes": data.outputs}
        return {"stages": list(self.stages), "blocks": self.blocks, "width": self.width, "norm": self.norm, **shapes}

    @property
    def model(self) -> str:
        """The name in ``coset.models.MODELS``."""
        return "resnet"

    @property
    def channels(self) -> int:
        """The channels of the first stage; 16 in the paper's base network."""
        return round(self.width * self.stages[0])


@dataclass(frozen=True)
class Inference:
    """How points and posteriors are found: prior N(0, ``prior_variance``), deviations that begin at ``std``.

    Rates are for the loss per data point; table 1 gives 1e-6 for the sum over 50,000. ``point_epochs`` and
    ``point_rate``: of the MAP points.
    """

    epochs: int
    rate: float
    point_epochs: int
    point_rate: float
    batch_size: int
    optimizer: str = "adam"
    momentum: float = 0.0
    schedule: str = "cosine"
    prior_variance: float = 0.01
    std: float = 0.01
    temperature: float = 1.0

    def settings(self, epochs: int, rate: float, copies: int) -> dict[str, Any]:
        """What both ``fit_map`` and ``fit_mean_field`` take.

        Of K copies the log-likelihood is to count as its mean over them, (1/K) log p(Y|θ) + log p(θ) + T·H(q). This is
        1/K of log p(Y|θ) + log p(θ)^K + KT·H(q): a prior of K-fold precision at K-fold temperature.
        """
        return {
            "epochs": epochs,
            "batch_size": self.batch_size,
            "learning_rate": rate,
            "optimizer": self.optimizer,
            "momentum": self.momentum,
            "schedule": self.schedule,
            "prior": Isotropic((self.prior_variance / copies) ** 0.5),
            "temperature": copies * self.temperature,
        }


@dataclass(frozen=True)
class Measure:
    """Barriers: ``points`` images of each part (None: all), ``taus`` points of the path, ``samples`` draws at each."""

    points: int | None
    taus: int = 25
    samples: int = 32


@dataclass(frozen=True, eq=False)
class Pair:
    """Two posteriors (or points) of one network from different seeds, and the second brought to the first.

    ``agreement``: the mean over all classes of the cosine of what the two carry, before and after. ``traces``: the last
    record of each fit. ``rise``: of the ELBO (or the log joint) per data point from the last but one tenth of the
    epochs to the last, the larger of both.
    """

    model: nn.Module
    sym: Symmetry
    first: MeanField | Delta
    second: MeanField | Delta
    aligned: MeanField | Delta
    agreement: tuple[float, float]
    traces: tuple[Mapping[str, Any], Mapping[str, Any]]
    rise: float


def point(
    context: Context, data: Dataset, network: Architecture, how: Inference, seed: int, copies: int = 1
) -> Fit[Delta]:
    """The MAP network of a seed."""
    settings = how.settings(how.point_epochs, how.point_rate, copies)
    options = network.options(data)
    return inferred(
        context, method="map", model=network.model, data=data, seed=seed, settings=settings, options=options
    )


def posterior(
    context: Context, data: Dataset, network: Architecture, how: Inference, seed: int, copies: int = 1
) -> Fit[MeanField]:
    """The mean-field posterior of a seed."""
    settings = how.settings(how.epochs, how.rate, copies) | {"std": how.std}
    options = network.options(data)
    return inferred(
        context, method="mean-field", model=network.model, data=data, seed=seed, settings=settings, options=options
    )


KINDS: dict[str, Callable[..., Fit[Any]]] = {"VI": posterior, "SGD": point}


def pair_of(
    context: Context, data: Dataset, network: Architecture, how: Inference, kind: str = "VI", copies: int = 1
) -> Pair:
    """The networks of two seeds."""
    seeds = (2 * context.seed, 2 * context.seed + 1)
    fits = [KINDS[kind](context, data, network, how, seed, copies) for seed in seeds]
    model = network_of(network.model, network.options(data), seed=0)
    return aligned_pair(context, model, data, (fits[0], fits[1]))


def aligned_pair(context: Context, model: nn.Module, data: Dataset, fits: tuple[Fit[Any], Fit[Any]]) -> Pair:
    """Two fits of ``model``, the second aligned to the first by permutations and signs, which leave W₂ as it is."""
    first, second = (_on(fit.posterior, context.device) for fit in fits)
    model = model.eval().to(context.device)
    sym = discover(model, data.train.x[:2].to(context.device)).restrict(scales=False)
    found = align(sym, first, second, seed=context.seed, show=context.show)
    agreement = (_mean(list(found.before.values())), _mean(list(found.agreement.values())))
    last = (dict(fits[0].trace[-1]), dict(fits[1].trace[-1]))
    rise = max(_rise([objective_of(record) for record in fit.trace]) for fit in fits)
    return Pair(model, sym, first, second, found.aligned, agreement, last, rise)


def objective_of(record: Mapping[str, Any]) -> float:
    """The ELBO of a posterior, the log joint of a point, per data point."""
    return float(record["elbo"] if "elbo" in record else -record["loss"])


def _rise(values: Sequence[float]) -> float:
    tenth = max(1, len(values) // 10)
    return _mean(values[-tenth:]) - _mean(values[-2 * tenth : -tenth] or values[:1])


def barriers(context: Context, data: Dataset, pair: Pair, how: Measure) -> dict[str, Profiles]:
    """Log-likelihood, expected loss and error, train and test, on the geodesics "naive" and "aligned".

    What was measured is kept in the store.
    """
    ends = {"naive": pair.second, "aligned": pair.aligned}
    with context.progress("barriers", len(ends)) as bar:
        found = {}
        for label, end in ends.items():
            found[label] = profiles_to(context, data, pair, end, how)
            bar.advance(note=label)
    return found


def profiles_to(
    context: Context, data: Dataset, pair: Pair, end: MeanField | Delta, how: Measure, path: str = "geodesic"
) -> Profiles:
    """Log-likelihood, expected loss and error, train and test, on the way from the pair's first to ``end``; stored."""
    config = {
        "kind": "profiles",
        "schema": SCHEMA,
        "start": _named(pair.first),
        "end": _named(end),
        "fingerprint": data.fingerprint,
        "measure": asdict(how),
        **({} if path == "geodesic" else {"path": path}),
    }

    def make() -> tuple[Mapping[str, torch.Tensor], Mapping[str, object]]:
        parts = {"train": _first_of(data.train, how.points), "test": _first_of(data.test, how.points)}
        on_device = {name: (part.x.to(context.device), part.y.to(context.device)) for name, part in parts.items()}
        functionals = predictive_on(pair.model, samples=how.samples, train=on_device["train"], test=on_device["test"])
        profiles = barrier(PATHS[path](pair.first, end), functionals, points=how.taus, show=context.show)
        return {}, {name: asdict(profile) for name, profile in profiles.items()}

    info = context.store.get_or_make(config, make).info
    return Profiles({name: _profile(info[name]) for name in info})


def _profile(stored: Mapping[str, Any]) -> Profile:
    parts: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in stored.items()}
    return Profile(**parts)


def _first_of(part: Split, count: int | None) -> Split:
    return part if count is None else Split(part.x[:count], part.y[:count])


def _named(q: MeanField | Delta) -> list[str]:
    return [repr(Weights(q.mean)), repr(Weights(q.std))]


def _on(q: MeanField | Delta, device: torch.device) -> MeanField | Delta:
    mean = {name: tensor.to(device) for name, tensor in q.mean.items()}
    if isinstance(q, Delta):
        return Delta(mean)
    return MeanField(mean, {name: tensor.to(device) for name, tensor in q.std.items()})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
