"""``open_zoo``: many trained networks in a folder, read when they are asked for and checked when they are read."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from coset._checks import check_count
from coset.errors import InputError
from coset.models import build, example_input
from coset.symmetry import Symmetry, discover
from coset.zoo._index import Content, finite, member_checksum, read_index, read_rows

UNTRAINED = "not trained yet"
DAMAGED = "damaged: it does not have the checksum it was written with"
NOT_FINITE = "weights are not finite"


def open_zoo(directory: str | Path) -> "Zoo":
    """The zoo in a folder; weights are read when they are asked for."""
    folder = Path(directory)
    return Zoo(folder, read_index(folder))


@dataclass(frozen=True, eq=False)
class Zoo:
    """Networks in a folder, each by its number; ``content`` is the index.

    Weights are read when they are asked for, and each network is compared with its checksum then. Networks that are not
    there, diverged, are not finite or are damaged are in ``problems`` with the reason, and never among ``indices``.
    """

    folder: Path
    content: Content = field(repr=False)

    def __len__(self) -> int:
        return len(self.content["members"])

    def __repr__(self) -> str:
        kinds = len(self.content["architectures"])
        many = f", {kinds} architectures" if kinds > 1 else ""
        return f"Zoo({self.folder}: {len(self)} networks of {self.content['model']['name']}{many})"

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """The weights of one network, names as in ``state_dict()``."""
        return {name: tensor[0] for name, tensor in self.stack([index]).items()}

    @cached_property
    def problems(self) -> dict[int, str]:
        """The networks that cannot be used, and why. The first time, all weights are read and compared."""
        found = {index: problem for index in range(len(self)) if (problem := self._known_problem(index))}
        for number, entry in enumerate(self.content["groups"]):
            rows = [row for row, index in enumerate(entry["members"]) if index not in found]
            if entry["file"] is not None and rows:
                found |= self._read(number, rows, None)[1]
        return dict(sorted(found.items()))

    @cached_property
    def indices(self) -> tuple[int, ...]:
        """The numbers of all networks that can be used."""
        return tuple(index for index in range(len(self)) if index not in self.problems)

    @cached_property
    def by_architecture(self) -> dict[int, tuple[int, ...]]:
        """The usable networks of every architecture that has some, by its number."""
        found: dict[int, list[int]] = {}
        for index in self.indices:
            found.setdefault(self.architecture(index), []).append(index)
        return {number: tuple(found[number]) for number in sorted(found)}

    @property
    def snapshots(self) -> tuple[int, ...]:
        """The steps after which weights of all networks were kept."""
        steps = [set(group.get("snapshots", {})) for group in self.content["groups"] if group["file"] is not None]
        return tuple(sorted(map(int, set.intersection(*steps)))) if steps else ()

    def stack(self, indices: Iterable[int] | None = None, *, step: int | None = None) -> dict[str, Tensor]:
        """Weights (N, …) of networks of one architecture: of these, or of all ``indices``; or those after a step.

        A network that was asked for by its number and cannot be used is an error.
        """
        chosen = list(self.indices if indices is None else indices)
        if not chosen:
            raise InputError(f"no network of {self.folder} was asked for, or none can be used")
        self.require_one_architecture(chosen)
        by_group: dict[int, list[int]] = {}
        for index in chosen:
            by_group.setdefault(self._place(index)[0], []).append(index)
        read: dict[int, dict[str, Tensor]] = {}
        for group, asked in by_group.items():
            for index in asked:
                if problem := self._known_problem(index):
                    raise InputError(f"network {index} of {self.folder}: {problem}")
            rows = sorted({self._place(index)[1] for index in asked})
            tensors, wrong = self._read(group, rows, step)
            for index in asked:
                if index in wrong:
                    raise InputError(f"network {index} of {self.folder}: {wrong[index]}")
            for number, row in enumerate(rows):
                member = self.content["groups"][group]["members"][row]
                read[member] = {name: tensor[number] for name, tensor in tensors.items()}
        return {name: torch.stack([read[index][name] for index in chosen]) for name in read[chosen[0]]}

    def readable(self, indices: Iterable[int], *, step: int | None = None) -> list[int]:
        """Those of some networks whose weights, or those after a step, can be used."""
        chosen = list(indices)
        found: set[int] = set()
        for group in sorted({self._place(index)[0] for index in chosen}):
            members = self.content["groups"][group]["members"]
            rows = [members.index(index) for index in chosen if index in members and not self._known_problem(index)]
            wrong = self._read(group, rows, step)[1] if rows else {}
            found |= {members[row] for row in rows if members[row] not in wrong}
        return [index for index in chosen if index in found]

    def broken_groups(self) -> list[int]:
        """The groups that were written and of which a file is missing or not as it was written."""
        found = []
        for number, entry in enumerate(self.content["groups"]):
            rows = list(range(len(entry["members"])))
            steps = [None, *map(int, entry.get("snapshots", {}))] if entry["file"] is not None else []
            problems = (problem for step in steps for problem in self._read(number, rows, step)[1].values())
            if any(problem != NOT_FINITE for problem in problems):
                found.append(number)
        return found

    def where(self, **wanted: Any) -> tuple[int, ...]:
        """The usable networks whose row of the table has these values, as in ``where(seed=3)``."""
        rows = self.rows()
        known = {name for row in rows for name in row}
        for name in wanted:
            if name not in known:
                raise InputError(f"networks of {self.folder} have no {name!r}; they have {', '.join(sorted(known))}")
        wished = {name: _listed(value) for name, value in wanted.items()}
        return tuple(
            row["index"] for row in rows if all(row.get(n) == v for n, v in wished.items()) and not row["problem"]
        )

    def architecture(self, index: int) -> int:
        """The number of a network's architecture."""
        self._place(index)
        number: int = self.content["members"][index].get("architecture", 0)
        return number

    def require_one_architecture(self, indices: Iterable[int]) -> int:
        """The number of the architecture that networks share; if they do not, an error that says which differ."""
        found: dict[int, int] = {}
        for index in indices:
            found.setdefault(self.architecture(index), index)
        if len(found) > 1:
            (one, first), (two, second), *_ = found.items()
            kinds = self.content["architectures"]
            raise InputError(
                f"networks {first} and {second} of {self.folder} have architectures {kinds[one]['options']} and "
                f"{kinds[two]['options']}; expected networks of one, as zoo.where(…) chooses them"
            )
        return next(iter(found))

    def model(self, index: int | None = None) -> nn.Module:
        """The model of all networks, or of one where they differ, in evaluation mode, with fresh weights."""
        number = self.require_one_architecture(range(len(self)) if index is None else [index])
        about = self.content["model"]
        options = {**about["options"], **self.content["architectures"][number]["options"]}
        return build(about["name"], seed=0, **options).to(getattr(torch, about["dtype"])).eval()

    def symmetry(self, index: int | None = None) -> Symmetry:
        """The symmetry of the model, discovered once on inputs as its data have them; of an architecture it is one."""
        number = self.require_one_architecture(range(len(self)) if index is None else [index])
        if number not in self._symmetries:
            first = next(i for i, about in enumerate(self.content["members"]) if about.get("architecture", 0) == number)
            self._symmetries[number] = self._discovered(self.model(first))
        return self._symmetries[number]

    @cached_property
    def _symmetries(self) -> dict[int, Symmetry]:
        return {}

    def _discovered(self, model: nn.Module) -> Symmetry:
        about = self.content["model"]
        shape, tokens = about.get("input"), about.get("tokens")
        generator = torch.Generator("cpu").manual_seed(0)
        if shape is not None and tokens is not None:
            return discover(model, torch.randint(tokens, (2, *shape), generator=generator, device="cpu"))
        if shape is not None and getattr(model, "vocabulary", None) is None:
            like = next(model.parameters())
            return discover(model, torch.randn(2, *shape, generator=generator, device="cpu").to(like))
        return discover(model, example_input(model))

    def rows(self) -> list[dict[str, Any]]:
        """One row per network: its number, seed, data, what the specification varies, metrics, and its problem."""
        spec = self.content.get("spec")
        rows = []
        for index, about in enumerate(self.content["members"]):
            group, place = self._places[index]
            entry = self.content["groups"][group]
            row: dict[str, Any] = {"index": index, **{n: v for n, v in about.items() if n in ("seed", "source")}}
            row["architecture"] = self.architecture(index)
            if spec is not None:
                row["data"] = spec["data"][about["data"]]["name"]
            row |= {**about.get("options", {}), **about.get("settings", {})}
            if "records" in entry:
                record = entry["records"][place]
                row |= {name: record[name] for name in ("logit_factor",) if name in record}
                if record.get("losses"):
                    row["last_train_loss"] = record["losses"][-1]
                for part, metrics in record["metrics"].items():
                    row |= {f"{part}_{name}": value for name, value in metrics.items() if value is not None}
            row["problem"] = self.problems.get(index)
            rows.append(row)
        return rows

    def table(self) -> Any:
        """The rows as a pandas data frame if pandas is installed, else as a list of dicts."""
        try:
            return import_module("pandas").DataFrame(self.rows())
        except ImportError:
            return self.rows()

    def dataset(self, indices: Iterable[int] | None = None, *, step: int | None = None) -> "ZooDataset":
        """Networks as a torch dataset: weights and row of each; all that can be used, or these.

        One that cannot be used, or of which the weights after the step cannot, is an error here.
        """
        chosen = tuple(self.indices if indices is None else indices)
        for index in chosen:
            self._place(index)
            if index in self.problems:
                raise InputError(f"network {index} of {self.folder}: {self.problems[index]}")
        if step is not None and len(usable := self.readable(chosen, step=step)) < len(chosen):
            lost = next(index for index in chosen if index not in usable)
            raise InputError(f"network {lost} of {self.folder} has no weights after step {step} that can be used")
        return ZooDataset(self, chosen, step)

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        """The group and the row of every network."""
        groups = self.content["groups"]
        return {index: (g, row) for g, group in enumerate(groups) for row, index in enumerate(group["members"])}

    def _place(self, index: int) -> tuple[int, int]:
        if index not in self._places:
            raise InputError(f"{self.folder} has no network {index!r}; expected 0 to {len(self) - 1}")
        return self._places[index]

    def _known_problem(self, index: int) -> str | None:
        """What the index says against a network."""
        group, row = self._place(index)
        entry = self.content["groups"][group]
        problem: str | None = entry["records"][row]["problem"] if "records" in entry else None
        return problem or (UNTRAINED if entry["file"] is None else None)

    def _read(self, group: int, rows: list[int], step: int | None) -> tuple[dict[str, Tensor], dict[int, str]]:
        """Rows of a shard, and of those that cannot be used the network and the reason."""
        entry = self.content["groups"][group]
        wrong: dict[int, str] = {}
        about = entry
        if step is not None:
            if str(step) not in entry["snapshots"]:
                had = ", ".join(map(str, self.snapshots)) or "none"
                raise InputError(f"{self.folder} has no snapshot after step {step!r}; it has {had}")
            about = entry["snapshots"][str(step)]
        try:
            tensors = read_rows(self.folder / about["file"], rows)
        except InputError as error:
            return {}, {entry["members"][row]: str(error) for row in rows}
        # In the order of the model's state_dict(), which files do not keep.
        kind = self.content["architectures"][self.architecture(entry["members"][0])]
        if tensors.keys() != kind["tensors"].keys():
            problem = f"shard {about['file']} has other tensors than its architecture"
            return {}, {entry["members"][row]: problem for row in rows}
        tensors = {name: tensors[name] for name in kind["tensors"]}
        usable = finite(tensors)
        for number, row in enumerate(rows):
            own = {name: tensor[number] for name, tensor in tensors.items()}
            if member_checksum(own) != about["checksums"][row]:
                wrong[entry["members"][row]] = DAMAGED
            elif not usable[number]:
                wrong[entry["members"][row]] = NOT_FINITE
        return tensors, wrong


class ZooDataset(Dataset[tuple[dict[str, Tensor], dict[str, Any]]]):
    """Networks of a zoo one by one: weights, and the row of the table, of it what all of them have.

    A ``DataLoader`` puts networks of one architecture together as a stack; where there are several, ``batches`` says
    which: ``DataLoader(dataset, batch_sampler=list(dataset.batches(16)))``.
    """

    def __init__(self, zoo: Zoo, indices: tuple[int, ...], step: int | None) -> None:
        self.zoo, self.indices, self.step = zoo, indices, step
        rows = zoo.rows()
        self._rows = {index: {n: v for n, v in rows[index].items() if v is not None} for index in indices}
        kept = set.intersection(*map(set, self._rows.values())) if indices else set()
        self._rows = {index: {n: v for n, v in row.items() if n in kept} for index, row in self._rows.items()}

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: list[int]) -> list[tuple[dict[str, Tensor], dict[str, Any]]]:
        """Several networks, each file of them opened once: what a ``DataLoader`` asks for."""
        chosen = [self.indices[number] for number in numbers]
        found: dict[int, dict[str, Tensor]] = {}
        for number in dict.fromkeys(self.zoo.architecture(index) for index in chosen):
            own = list(dict.fromkeys(index for index in chosen if self.zoo.architecture(index) == number))
            stack = self.zoo.stack(own, step=self.step)
            found |= {index: {name: tensor[i] for name, tensor in stack.items()} for i, index in enumerate(own)}
        return [(found[index], self._rows[index]) for index in chosen]

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[list[int]]:
        """Numbers in this dataset, up to ``size`` at a time, of one architecture each; with a generator in random
        order.
        """
        check_count("size", size)
        kinds: dict[int, list[int]] = {}
        for number, index in enumerate(self.indices):
            kinds.setdefault(self.zoo.architecture(index), []).append(number)
        found: list[list[int]] = []
        for own in kinds.values():
            shuffled = own if generator is None else [own[i] for i in _order(len(own), generator)]
            found.extend(shuffled[start : start + size] for start in range(0, len(shuffled), size))
        yield from found if generator is None else (found[i] for i in _order(len(found), generator))


def _order(count: int, generator: torch.Generator) -> list[int]:
    order: list[int] = torch.randperm(count, generator=generator, device=generator.device).tolist()
    return order


def _listed(value: Any) -> Any:
    """Tuples as lists, as the index has them."""
    return [_listed(one) for one in value] if isinstance(value, tuple | list) else value
