"""Ways to read a number from weights, each fitted once and kept in the store."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from coset.metanet import (
    PNA,
    FittedReader,
    FlatReader,
    NeuralGraph,
    Reader,
    RelationalTransformer,
    fit_reader,
    fit_statistics,
)
from coset.running import outputs_with, suited
from coset.study import Context
from coset.symmetry import Symmetry
from coset.train import Recipe

SCHEMA = 3
"""Version of what is stored: to be raised where the same settings come to train otherwise."""

TRANSFORMER, PNA_NAME = "relational transformer", "PNA"
STATISTICS, CANONICAL_STATISTICS = "statistics, boosted", "statistics, canonical"
FLAT, CANONICAL = "flat MLP", "flat MLP, canonical"
PROBED, PROBED_STATISTICS = "PNA, probes", "statistics, probes"
READERS = (TRANSFORMER, PNA_NAME)
METHODS = (*READERS, STATISTICS, CANONICAL_STATISTICS, CANONICAL, FLAT, PROBED, PROBED_STATISTICS)
ORBITS = (*READERS, CANONICAL_STATISTICS, CANONICAL, PROBED)
"""Those that read the same from all networks of an orbit."""
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
    dropout: float = 0.3
    probes: int = 64
    validation: float = 0.1


@dataclass(frozen=True, eq=False)
class Probes:
    """Images without labels, and models of the architectures that give probabilities, by fingerprint."""

    models: Mapping[str, nn.Module]
    images: Tensor

    def outputs(self, sym: Symmetry, stack: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What N networks give for all images, (N, images · classes)."""
        model = self.models[sym.fingerprint]
        rows = []
        for number in range(len(next(iter(stack.values())))):
            own = {name: tensor[number] for name, tensor in stack.items()}
            with torch.no_grad():
                rows.append(outputs_with(model, own, suited(self.images, own)).flatten())
        return {"outputs": torch.stack(rows)}


class Probing(nn.Module):
    """A reader that is given the activations of networks on probes."""

    def __init__(self, reader: Reader, probes: Probes) -> None:
        super().__init__()
        self.reader, self.probes = reader, probes

    def calibrate(self, stack: Mapping[str, Tensor], *, sym: Symmetry) -> None:
        """Calibrate the reader."""
        self.reader.calibrate(self.read(stack, sym=sym))

    def read(self, stack: Mapping[str, Tensor], *, sym: Symmetry) -> NeuralGraph:
        """Networks as the reader reads them."""
        return self.reader.read(stack, sym=sym, model=self.probes.models[sym.fingerprint], inputs=self.probes.images)

    def forward(self, networks: Mapping[str, Tensor] | NeuralGraph, *, sym: Symmetry) -> Tensor:
        """What the reader says, (N, 1)."""
        graph = networks if isinstance(networks, NeuralGraph) else self.read(networks, sym=sym)
        answers: Tensor = self.reader(graph, sym=sym)
        return answers


class Predictor(Protocol):
    """What every method gives."""

    def predict(self, sym: Symmetry, stack: Mapping[str, Tensor]) -> Tensor:
        """A number for each of N networks, (N,)."""
        ...


Fits = Mapping[str, list[Predictor]]
"""By method, a fit of each seed."""
Set = tuple[Symmetry, Mapping[str, Tensor], Tensor]


def fitted(
    context: Context, method: str, fitting: Fitting, train: Set, probes: Probes, about: Mapping[str, Any], seed: int
) -> Predictor:
    """A method fitted to networks by a seed, now or found in the store; ``about`` says which networks these are."""
    sym, _, _ = train
    if method in (STATISTICS, CANONICAL_STATISTICS, PROBED_STATISTICS):
        further = probes.outputs if method == PROBED_STATISTICS else None
        return fit_statistics(train, canonical=method == CANONICAL_STATISTICS, further=further, loss="mse", seed=seed)
    size: dict[str, Any] = {"channels": fitting.channels, "layers": fitting.layers, "dropout": fitting.dropout}
    made: dict[str, Callable[[], nn.Module]] = {
        TRANSFORMER: lambda: RelationalTransformer(sym, 1, **size, seed=seed),
        PNA_NAME: lambda: PNA(sym, 1, **size, seed=seed),
        PROBED: lambda: Probing(PNA(sym, 1, **size, probes=len(probes.images), seed=seed), probes),
        FLAT: lambda: FlatReader(sym, 1, hidden=fitting.hidden, dropout=0.2, seed=seed),
        CANONICAL: lambda: FlatReader(sym, 1, hidden=fitting.hidden, dropout=0.2, canonical=True, seed=seed),
    }
    graph = method in (*READERS, PROBED)
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
