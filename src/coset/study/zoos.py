"""Zoos that studies share: many networks of one specification, trained together, kept in the store as stacks."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coset.study._study import Context
from coset.zoo import DataSpec, ZooSpec, train_zoo

SCHEMA = 1
"""Version of what is stored: to be raised where the same specification comes to train otherwise."""


@dataclass(frozen=True)
class TrainedZoo:
    """Networks of a zoo that can be used: their weights (N, …) at the end and after snapshots, and a row for each."""

    last: Mapping[str, Tensor]
    snapshots: Mapping[int, Mapping[str, Tensor]]
    rows: list[dict[str, Any]]


def trained_zoo(context: Context, spec: ZooSpec) -> TrainedZoo:
    """The zoo of a specification, trained or found in the store.

    A run that is interrupted goes on: until all networks are trained the zoo lies beside the store's checkpoints.
    """
    prints = [context.data(one.name, **_loaded(one)).fingerprint for one in spec.data]
    config: dict[str, object] = {"kind": "zoo", "schema": SCHEMA, "spec": spec.to_dict(), "fingerprints": prints}
    folder = context.store.checkpoint(config).with_suffix(".zoo")

    def make() -> tuple[dict[str, Tensor], dict[str, object]]:
        zoo = train_zoo(spec, folder, show=context.show)
        tensors = {f"last/{name}": tensor for name, tensor in zoo.stack().items()}
        for step in zoo.snapshots:
            tensors |= {f"{step}/{name}": tensor for name, tensor in zoo.stack(step=step).items()}
        rows = [{n: v for n, v in row.items() if v is not None} for row in zoo.rows() if row["problem"] is None]
        return tensors, {"rows": rows, "snapshots": list(zoo.snapshots), "left out": len(zoo) - len(rows)}

    entry = context.store.get_or_make(config, make)
    shutil.rmtree(folder, ignore_errors=True)

    def part(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): t for name, t in entry.params.items() if name.startswith(prefix)}

    info: Mapping[str, Any] = entry.info
    return TrainedZoo(part("last/"), {step: part(f"{step}/") for step in info["snapshots"]}, list(info["rows"]))


def _loaded(spec: DataSpec) -> dict[str, Any]:
    """What ``coset.data.load`` is told of a data set."""
    names = ("split", "seed", "normalize", "flatten", "window")
    return {name: getattr(spec, name) for name in names}
