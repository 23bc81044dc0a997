"""Posteriors that studies share: one address for model, data, method, settings and seed, and inference that resumes."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from coset._checks import check_choice
from coset._files.sealed import checksum
from coset._values import Frozen
from coset.distribution import Distribution
from coset.distribution.files import pack, unpack
from coset.models import build
from coset.posterior import FITS, Fit, NoiseParameter, Trace
from coset.store import Entry
from coset.study.networks import Made, all_options, resumed

if TYPE_CHECKING:
    from torch import nn

    from coset.data import Dataset
    from coset.study._study import Context

SCHEMA = 1
"""Version of the configuration and of what it stands for: to be raised where the same one comes to infer otherwise."""
Q = TypeVar("Q", bound=Distribution)


class Weights(Frozen[str, Tensor]):
    """Weights to begin at, told apart by a checksum in their ``repr``: so they can be settings of what is stored."""

    __slots__ = ()

    def __repr__(self) -> str:
        total = 0
        for tensor in self.values():
            total = checksum(tensor, total)
        return f"weights of checksum {total:08x}"


def network_of(model: str, options: Mapping[str, Any], *, seed: int, noise: float | None = None) -> "nn.Module":
    """The untrained network; if ``noise`` is given, with a parameter for the noise of its targets that begins there."""
    network = build(model, seed=seed, **options)
    return network if noise is None else NoiseParameter(network, outputs=_outputs(network), start=noise)


def inferred(
    context: "Context",
    *,
    method: str,
    model: str,
    data: "str | Dataset",
    seed: int,
    settings: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    noise: float | None = None,
) -> Fit[Any]:
    """The posterior that ``method`` (of ``coset.posterior.FITS``) finds on ``data`` (the train part), or the store has.

    ``data`` is the name of a dataset, read with ``data_options``, or one that the study made itself. ``settings`` are
    those of the method; likelihoods and priors among them count by their ``repr``, so they must be
    those of coset. Initial weights and inference follow from ``seed``.
    """
    check_choice("method", method, FITS)
    dataset = context.data(data, **(data_options or {})) if isinstance(data, str) else data
    config = {
        "kind": "posterior",
        "schema": SCHEMA,
        "method": method,
        "model": model,
        "options": all_options(model, options or {}),
        "noise": noise,
        "data": dataset.name,
        "fingerprint": dataset.fingerprint,
        "settings": {name: _plain(value) for name, value in settings.items()},
        "seed": seed,
    }
    fit: Callable[..., Fit[Any]] = FITS[method]

    def make(**keep: Any) -> Made:
        network = network_of(model, options or {}, seed=seed, noise=noise).to(context.device)
        found = fit(network, dataset.train, **settings, seed=seed, show=context.show, **keep)
        tensors, description = pack(found.posterior)
        return tensors, {
            "distribution": description,
            "trace": [dict(record) for record in found.trace],
            "seconds": found.seconds,
            "notes": list(found.notes),
        }

    return _fit_of(resumed(context.store, config, make), method)


def _fit_of(entry: Entry, method: str) -> Fit[Any]:
    info = entry.info
    posterior = unpack(entry.params, info["distribution"])
    return Fit(posterior, Trace(info["trace"]), method, info["seconds"], tuple(info["notes"]))


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _outputs(network: "nn.Module") -> int:
    from coset.models import example_input

    return int(network(example_input(network, 1)).shape[-1])
