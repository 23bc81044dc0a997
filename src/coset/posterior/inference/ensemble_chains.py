"""Chains from the members of a deep ensemble (Sommer et al. 2025): an optimizer finds modes, chains their width."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from coset._checks import check_choice
from coset.distribution.samples import Samples
from coset.errors import InputError
from coset.posterior.fit import Callback, Fit
from coset.posterior.inference.ensemble import fit_ensemble
from coset.posterior.inference.hmc import fit_hmc
from coset.posterior.inference.mclmc import fit_mclmc
from coset.posterior.likelihoods import Likelihood
from coset.posterior.problem import Data, PriorLike

SAMPLERS: dict[str, Callable[..., Fit[Samples]]] = {"mclmc": fit_mclmc, "hmc": fit_hmc}
"""What moves the chains, by name."""

TAKEN = ("chains", "start", "spread", "draws", "warmup")
"""Settings of a sampler that are given here."""


def fit_ensemble_chains(
    model: nn.Module,
    data: Data,
    *,
    members: int,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    draws: int,
    warmup: int,
    sampler: str = "mclmc",
    sampling: Mapping[str, Any] | None = None,
    optimizer: str = "adam",
    schedule: str = "constant",
    likelihood: Likelihood | str = "categorical",
    prior: PriorLike = 1.0,
    temperature: float = 1.0,
    seed: int = 0,
    checkpoint: Path | str | None = None,
    checkpoint_seconds: float = 5.0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Fit[Samples]:
    """``fit_ensemble``, and a chain from each of its ``members``: ``warmup`` iterations, then ``draws`` that are kept.

    ``sampler``: "mclmc" or "hmc"; ``sampling``: its further settings. Chains stay near the modes where they began: the
    draws are a mixture of their surroundings, all weighted alike, which predicts well and is no sample of a posterior
    whose modes have other weights. The trace and the callback are those of the chains. With ``checkpoint=FILE`` the
    ensemble is kept in FILE.ensemble.
    """
    how = dict(sampling or {})
    chosen = SAMPLERS[check_choice("sampler", sampler, SAMPLERS)]
    if taken := [name for name in how if name in TAKEN]:
        raise InputError(f"sampling has {taken[0]!r}, which is given beside it; expected further settings of {sampler}")
    common: dict[str, Any] = {
        "likelihood": likelihood, "prior": prior, "temperature": temperature, "seed": seed,
        "checkpoint_seconds": checkpoint_seconds, "show": show,
    }  # fmt: skip
    beside = None if checkpoint is None else Path(f"{checkpoint}.ensemble")
    ensemble = fit_ensemble(
        model, data, members=members, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate,
        optimizer=optimizer, schedule=schedule, checkpoint=beside, **common,
    )  # fmt: skip
    found = chosen(
        model, data, draws=draws, warmup=warmup, chains=members, start=ensemble, checkpoint=checkpoint,
        callback=callback, **common, **how,
    )  # fmt: skip
    return replace(found, method="ensemble-chains", seconds=ensemble.seconds + found.seconds)
