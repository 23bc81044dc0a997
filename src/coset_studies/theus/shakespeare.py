"""Character transformers on TinyShakespeare: barriers modulo permutations and modulo the whole group."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from coset.data import Dataset
from coset.models import build, generate
from coset.study import Context, Findings, study
from coset.train import Recipe
from coset_studies.theus._pairs import LEARNED, METHODS, NAIVE, Case, Learning, Line, Task, line, open_case
from coset_studies.theus._shakespeare_claims import claims_on
from coset_studies.theus._shakespeare_report import barrier_table, curves, merged_table, outcome, text_table

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "LayerNorm, d = 64": {"dim": 64},
    "RMSNorm, rotary, d = 64": {"dim": 64, "norm": "rms", "positions": "rotary", "bias": False},
    "LayerNorm, d = 128": {"dim": 128},
}
"""Architectures of two layers and four heads, by name."""

QUICK: Mapping[str, Mapping[str, Any]] = {
    "LayerNorm, d = 8": {"dim": 8, "depth": 1, "heads": 2},
}

PAPER: Mapping[str, Mapping[str, Any]] = {
    "LayerNorm, d = 384": {"dim": 384, "depth": 6, "heads": 6},
    "RMSNorm, rotary, d = 384": {
        "dim": 384, "depth": 6, "heads": 6, "norm": "rms", "positions": "rotary", "bias": False,
    },
}  # fmt: skip

TRAINING = Recipe(
    epochs=2, batch_size=32, learning_rate=5e-3, optimizer="adamw", weight_decay=0.1, schedule="triangular", peak=0.1,
    clip=1.0,
)  # fmt: skip

LEARNING = Learning(
    whole={"steps": 500, "batch_size": 32, "every": 100, "examples": 64},
    permutations={"steps": 200, "batch_size": 32, "every": 50, "examples": 64, "learning_rate": 0.02},
)
_FEW = {"steps": 4, "batch_size": 8, "every": 4, "examples": 8}
_MANY = {"steps": 4000, "batch_size": 64, "examples": 256, "every": 200}


@dataclass(frozen=True)
class Config:
    """The same ``task`` for all ``settings``, options of the transformer by name; ``written`` characters of text."""

    settings: Mapping[str, Mapping[str, Any]]
    task: Task
    written: int


@study(
    name="theus-shakespeare",
    title="Transformers modulo permutations and modulo their whole group",
    reference="Theus et al. 2025, Generalized linear mode connectivity for transformers, the table of barriers",
    paper="""
    Between two transformers trained from different seeds permutations leave a barrier of the test loss: on
    TinyShakespeare 2.02 nats as they are, 1.43 matched on activations, 0.63 with learned permutations. With rotations
    of the stream and linear maps of the heads, a group written by hand for each architecture, it is 0.34 nats matched
    on weights and 0.02 learned.
    """,
    presets={
        "quick": Config(
            QUICK,
            Task("digits-text", 36, Recipe(epochs=1, batch_size=128, learning_rate=1e-2, optimizer="adamw"), 2,
                 Learning(_FEW, _FEW), 16, 32, 5),
            40,
        ),
        "small": Config(SETTINGS, Task("tinyshakespeare", 64, TRAINING, 3, LEARNING, 250, 250, 11), 400),
        "paper": Config(
            {**SETTINGS, **PAPER},
            Task("tinyshakespeare", 256, Recipe(epochs=80, batch_size=64, learning_rate=1e-3, optimizer="adamw",
                 weight_decay=0.1, schedule="cosine", warmup_epochs=2, clip=1.0), 6,
                 Learning(_MANY, {**_MANY, "learning_rate": 0.02}), 500, 400, 25),
            1000,
        ),
    },
    claims=[claim for name in SETTINGS for claim in claims_on(name)],
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """Every pair of every setting, by every method."""
    dataset = context.data(config.task.data, window=config.task.window)
    pairs = list(combinations(range(config.task.networks), 2))
    found: dict[str, dict[str, list[Line]]] = {}
    texts: list[tuple[str, str, str]] = []
    with context.progress("lines", len(config.settings) * len(pairs) * len(METHODS)) as bar:
        for name, options in config.settings.items():
            case = open_case(context, config.task, options)
            found[name] = {method: [] for method in METHODS}
            for pair in pairs:
                for method in METHODS:
                    found[name][method].append(line(case, pair, method))
                    bar.advance(note=f"{name}, {pair[0]} and {pair[1]}: {method}")
            texts += [(name, *text) for text in _texts(case, found[name], pairs[0], config.written, dataset)]
    known = character_pairs(dataset, config.task.validated)
    return Findings(
        numbers={"character_pairs": known},
        tables={
            "barriers": barrier_table(found, pairs),
            "merged": merged_table(found),
            "texts": text_table(texts),
        },
        outcome=outcome(found, known),
        figure=lambda: curves(found),
        caption="Validation loss on the line between two networks, the mean over the pairs.",
    )


def character_pairs(dataset: Dataset, validated: int) -> float:
    """The loss on the validation windows of −log p(next | last), p counted on the training part with one added to all.

    In nats a character.
    """
    size = dataset.outputs
    places = dataset.train.x.flatten() * size + dataset.train.y.flatten()
    counts = torch.bincount(places, minlength=size * size).reshape(size, size).double() + 1
    logs = (counts / counts.sum(1, keepdim=True)).log()
    x, y = dataset.test.x[:validated], dataset.test.y[:validated]
    return -float(logs[x, y].mean())


def _texts(
    case: Case, lines: Mapping[str, list[Line]], pair: tuple[int, int], length: int, dataset: Dataset
) -> list[tuple[str, str]]:
    """What the first network writes, and what the networks halfway to the other one of its pair do."""
    first = case.network(pair[0]).params
    networks: dict[str, Mapping[str, Tensor]] = {"the first network": first}
    for method in (NAIVE, LEARNED):
        end = lines[method][0].end
        networks[f"halfway, {method}"] = {name: (first[name] + end[name]) / 2 for name in first}
    return [(what, _written(case, params, length, dataset)) for what, params in networks.items()]


def _written(case: Case, params: Mapping[str, Tensor], length: int, dataset: Dataset) -> str:
    """Characters drawn from what a network predicts, from the end of a line on."""
    model = build("transformer", **case.options).eval()
    model.load_state_dict(dict(params))
    prompt = torch.tensor([dataset.classes.index("\n")])
    tokens = generate(model, prompt, length, generator=case.context.generator("text"))
    return "".join(dataset.classes[token] for token in tokens[1:].tolist())
