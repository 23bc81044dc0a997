"""What networks are worth on labelled data: loss, accuracy, of texts perplexity."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coset.cli.examples import SUFFIXES, Choice, load_examples
from coset.cli.networks import Networks

if TYPE_CHECKING:
    from torch import Tensor


def is_labelled(choice: Choice) -> bool:
    """Whether the data have targets: those of the catalog do, a file of inputs does not."""
    return not choice.name.endswith(SUFFIXES)


def worth(
    networks: Networks, named: Mapping[str, Mapping[str, "Tensor"]], choice: Choice
) -> list[dict[str, float | str]]:
    """A row for each of the networks: what it is worth on the test part of the data, or on all where there is none."""
    from coset.data.catalog import lookup
    from coset.landscape import accuracy, loss

    entry = lookup(choice.name)
    held = replace(choice, part="test") if entry.test else choice
    data = load_examples(held, networks.inputs, networks.dtype)
    measures: dict[str, Any] = {"loss": loss(networks.model, data, choice.criterion)}
    if choice.criterion == "cross-entropy":
        measures["accuracy"] = accuracy(networks.model, data, choice.criterion)
    rows: list[dict[str, float | str]] = []
    for name, params in named.items():
        values = {what: measure(params) for what, measure in measures.items()}
        if entry.text:
            values["perplexity"] = math.exp(values["loss"]) if values["loss"] < 700 else math.inf
        rows.append({"network": name, **values})
    return rows


def table(rows: Sequence[Mapping[str, float | str]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells for a terminal."""
    columns = list(rows[0])
    return columns, [
        [f"{row[name]:.4f}" if isinstance(row[name], float) else str(row[name]) for name in columns] for row in rows
    ]
