"""Six ways to read a number from weights, each fitted once and kept in the store."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from coset.metanet import (
    PNA,
    FittedReader,
    FlatReader,
    RelationalTransformer,
    fit_reader,
    fit_statistics,
)
from coset.study import Context
from coset.symmetry import Symmetry
from coset.train import Recipe

SCHEMA = 3
"""Version of what is stored: to be raised where the same settings come to train otherwise."""

TRANSFORMER, PNA_NAME = "relational transformer", "PNA"
STATISTICS, CANONICAL_STATISTICS = "statistics, boosted", "statistics, canonical"
FLAT, CANONICAL = "flat MLP", "flat MLP, canonical"
READERS = (TRANSFORMER, PNA_NAME)
METHODS = (*READERS, STATISTICS, CANONICAL_STATISTICS, CANONICAL, FLAT)
ON_FEWER = (*READERS, STATISTICS, CANONICAL_STATISTICS)
"""Those that are trained on fewer networks, too."""


@dataclass(frozen=True)
class Fitting:
    """How readers are trained: size of those on graphs, and settings of AdamW with a cosine schedule."""

    channels: int
    layers: int
    epochs: int
    flat_epochs: int
    warmup: int
    hidden: tuple[int, ...]
    batch_size: int = 16
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    validation: float = 0.1


class Predictor(Protocol):
    """What every method gives."""

    def predict(self, sym: Symmetry, stack: Mapping[str, Tensor]) -> Tensor:
        """A number for each of N networks, (N,)."""
        ...


Fits = Mapping[str, list[Predictor]]
"""By method, a fit of each seed."""
Set = tuple[Symmetry, Mapping[str, Tensor], Tensor]


def fitted(
    context: Context, method: str, fitting: Fitting, train: Set, about: Mapping[str, Any], seed: int
) -> Predictor:
    """A method fitted to networks by a seed, now or found in the store; ``about`` says which networks these are."""
    sym, _, _ = train
    if method in (STATISTICS, CANONICAL_STATISTICS):
        return fit_statistics(train, canonical=method == CANONICAL_STATISTICS, loss="mse", seed=seed)
    made: dict[str, Callable[[], nn.Module]] = {
        TRANSFORMER: lambda: RelationalTransformer(sym, 1, channels=fitting.channels, layers=fitting.layers, seed=seed),
        PNA_NAME: lambda: PNA(sym, 1, channels=fitting.channels, layers=fitting.layers, seed=seed),
        FLAT: lambda: FlatReader(sym, 1, hidden=fitting.hidden, dropout=0.2, seed=seed),
        CANONICAL: lambda: FlatReader(sym, 1, hidden=fitting.hidden, dropout=0.2, canonical=True, seed=seed),
    }
    graph = method in READERS
    recipe = Recipe(
        epochs=fitting.epochs if graph else fitting.flat_epochs,
        batch_size=fitting.batch_size if graph else 2 * fitting.batch_size,
        learning_rate=fitting.learning_rate if graph else fitting.learning_rate / 3,
        weight_decay=fitting.weight_decay if graph else 2 * fitting.weight_decay,
        optimizer="adamw",
        schedule="cosine",
        warmup_epochs=fitting.warmup,
        clip=1.0,
        loss="mse",
        keep="best",
    )
    config: dict[str, object] = {
        "kind": "reader of accuracies",
        "schema": SCHEMA,
        "method": method,
        "fitting": asdict(fitting),
        "recipe": recipe.to_dict(),
        "networks": dict(about),
        "seed": seed,
    }
    reader = made[method]()

    def make() -> tuple[dict[str, Tensor], dict[str, object]]:
        found = fit_reader(
            reader,
            train,
            recipe,
            seed=seed,
            validation=fitting.validation,
            checkpoint=context.store.checkpoint(config),
            show=context.show,
        )
        course = [epoch.validation.rmse for epoch in found.history if epoch.validation is not None]
        return found.reader.state_dict(), {"best epoch": found.best_epoch, "validation rmse": course}

    entry = context.store.get_or_make(config, make)
    reader.load_state_dict(entry.params)
    return FittedReader(reader.eval(), "mse", (), None)


def predictions(found: Predictor, sym: Symmetry, stack: Mapping[str, Tensor]) -> Tensor:
    """What a method reads of networks, in float64."""
    return found.predict(sym, stack).detach().to(torch.float64)
