"""``evaluate_zoo``: loss and accuracy of every network, kept in the index."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from coset._checks import check_choice
from coset._show.progress import progress
from coset.data import Split
from coset.errors import InputError
from coset.train import Recipe, evaluate
from coset.train.loss import LOSSES
from coset.zoo._data import PARTS, Data, load_data
from coset.zoo._group import plain
from coset.zoo._index import Content, change_index
from coset.zoo._measure import measure_stack
from coset.zoo._members import STACKED
from coset.zoo._spec import DataSpec, as_data
from coset.zoo._zoo import Zoo, open_zoo


def evaluate_zoo(
    directory: str | Path,
    *,
    parts: Sequence[str] = PARTS,
    data: "DataSpec | dict[str, Any] | str | None" = None,
    loss: str | None = None,
    show: bool | None = None,
) -> Zoo:
    """Measure every network that can be used on parts of its data, and keep the metrics in the index.

    ``data`` and ``loss`` are needed for zoos that were not trained here; others know theirs.
    """
    for part in parts:
        check_choice("parts", part, PARTS)
    if loss is not None:
        check_choice("loss", loss, LOSSES)
    zoo = open_zoo(directory)
    dtype = getattr(torch, zoo.content["model"]["dtype"])
    given = None if data is None else load_data(as_data(data), dtype)
    spec = zoo.content.get("spec")
    if given is None and spec is None:
        raise InputError(f"{zoo.folder} does not say which data its networks are for; expected data")
    loaded: dict[int, Data] = {}
    found: dict[int, dict[str, Any]] = {}
    with progress("evaluating", len(zoo.content["groups"]), show=show) as bar:
        for group in zoo.content["groups"]:
            usable = [index for index in group["members"] if index not in zoo.problems]
            if usable:
                number = zoo.content["members"][usable[0]].get("data", 0)
                if given is None and spec is not None and number not in loaded:
                    loaded[number] = load_data(as_data(spec["data"][number]), dtype)
                rule = loss or _loss(zoo.content, usable[0])
                try:
                    found |= _measured(zoo, usable, given or loaded[number], parts, rule)
                except InputError as error:
                    where = as_data(data if spec is None or data is not None else spec["data"][number]).name
                    raise InputError(f"networks of {zoo.folder} cannot be measured on {where}: {error}") from error
            bar.advance()

    def keep(content: Content) -> None:
        for group in content["groups"]:
            for row, index in enumerate(group["members"]):
                if index in found:
                    group["records"][row]["metrics"] |= found[index]

    change_index(zoo.folder, keep)
    return open_zoo(zoo.folder)


def zoo_task(
    zoo: Zoo, part: str = "test", *, data: "DataSpec | dict[str, Any] | str | None" = None, loss: str | None = None
) -> tuple[Split, str]:
    """The examples of a part of the data that all networks of a zoo are for, and the loss they were trained with.

    ``data`` and ``loss``: as in ``evaluate_zoo``.
    """
    check_choice("part", part, PARTS)
    if loss is not None:
        check_choice("loss", loss, LOSSES)
    spec, chosen = zoo.content.get("spec"), data
    if chosen is None:
        if spec is None:
            raise InputError(f"{zoo.folder} does not say which data its networks are for; expected data")
        numbers = {zoo.content["members"][index]["data"] for index in zoo.indices}
        if len(numbers) != 1:
            raise InputError(f"networks of {zoo.folder} are for {len(numbers)} data sets; expected data, one of them")
        chosen = spec["data"][numbers.pop()]
    found = load_data(as_data(chosen), getattr(torch, zoo.content["model"]["dtype"])).parts
    if part not in found:
        raise InputError(f"part is {part!r}, which {as_data(chosen).name} has not; expected one of {', '.join(found)}")
    return found[part], loss or _loss(zoo.content, next(iter(zoo.indices), 0))


def _measured(zoo: Zoo, usable: list[int], data: Data, parts: Sequence[str], loss: str) -> dict[int, dict[str, Any]]:
    """The metrics of networks of one group, by part."""
    model, stack = zoo.model(usable[0]), zoo.stack(usable)
    kind = zoo.content["architectures"][zoo.architecture(usable[0])]
    found: dict[int, dict[str, Any]] = {index: {} for index in usable}
    for name in parts:
        if name not in data.parts:
            continue
        part = data.parts[name]
        if kind["path"] == STACKED:
            metrics = measure_stack(model, stack, part, loss)
        else:
            rows = [{k: t[i] for k, t in stack.items()} for i in range(len(usable))]
            metrics = [evaluate(model, part.x, part.y, params=row, loss=loss) for row in rows]
        for index, one in zip(usable, metrics, strict=True):
            found[index][name] = plain(asdict(one))
    return found


def _loss(content: Content, index: int) -> str:
    default = str(Recipe.__dataclass_fields__["loss"].default)
    if content.get("spec") is None:
        return default
    settings = {**content["spec"]["recipe"], **content["members"][index]["settings"]}
    return str(settings.get("loss", default))
