"""What a study is: a function from a configuration to findings, registered by name."""

import hashlib
import importlib
import math
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, is_dataclass
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from coset._show.progress import Ticker, progress
from coset.errors import InputError
from coset.store import Entry, Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from coset.data import Dataset
    from coset.train import Recipe

PRESETS = ("quick", "small", "paper")
"""quick: seconds, embedded data. small: at most 30 minutes on two cores. paper: the published setting."""

Scalar = bool | int | float | str | None
"""A number of the findings, or a cell of a table; None where there is none (NaN and infinities are refused)."""

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_registry: dict[str, "Study"] = {}
C = TypeVar("C")


@dataclass(frozen=True)
class Table:
    """Rows under named columns; ``caption`` says what they are."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Scalar]]
    caption: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        for index, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise InputError(
                    f"row {index} has {len(row)} cells, expected {len(self.columns)}: {list(self.columns)}"
                )
        rows = tuple(
            tuple(scalar(cell, f"row {index}, column {name!r}") for name, cell in zip(self.columns, row, strict=True))
            for index, row in enumerate(self.rows)
        )
        object.__setattr__(self, "rows", rows)


@dataclass(frozen=True)
class Findings:
    """What a study found.

    ``outcome`` is a ``str.format`` template filled from ``numbers``, so that text and numbers cannot disagree. Blank
    lines part its paragraphs; other line ends are those of the code.
    ``figure`` draws the figure; it is called once, with the shared style in force.
    """

    numbers: Mapping[str, Scalar]
    tables: Mapping[str, Table]
    outcome: str
    figure: Callable[[], "Figure"]
    caption: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", {name: scalar(value, name) for name, value in self.numbers.items()})
        object.__setattr__(self, "outcome", prose(self.outcome))
        for name in self.tables:
            if not is_name(name):
                raise InputError(f"the table name {name!r} must be lower-case words joined by hyphens")


@dataclass(frozen=True)
class Context:
    """What surrounds a study while it runs.

    What takes long goes through ``trained``, or through ``store.get_or_make`` if it is not a network: an interrupted
    study then goes on where it stopped, and studies that need the same thing share it.
    """

    seed: int
    device: torch.device
    store: Store
    show: bool | None = None
    _loaded: dict[str, "Dataset"] = field(default_factory=dict, init=False, repr=False, compare=False)

    def generator(self, stream: str) -> torch.Generator:
        """A generator on the CPU for the named stream of random numbers, independent of all other streams and seeds."""
        digest = hashlib.sha256(f"{self.seed}/{stream}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    def data(self, name: str, **options: Any) -> "Dataset":
        """``coset.data.load(name, **options)``, read once however often a run asks for it."""
        from coset.data import load

        key = repr((name, sorted(options.items())))
        if key not in self._loaded:
            self._loaded[key] = load(name, **options)
        return self._loaded[key]

    def trained(
        self,
        *,
        model: str,
        data: str,
        recipe: "Recipe",
        seed: int,
        options: Mapping[str, Any] | None = None,
        data_options: Mapping[str, Any] | None = None,
    ) -> Entry:
        """The network ``model`` (of ``coset.models.MODELS``) trained on ``data`` by ``recipe``, or found in the store.

        Every study that asks for the same model and options, content of the data, recipe and seed gets the same
        network. Training that is interrupted goes on from its last checkpoint, an epoch or half a second back.
        ``params`` of the entry are on the CPU; ``info`` holds the metrics on both parts of the data under "train" and
        "test", the "steps" and the "history".
        """
        # SciPy and the training loop take a while to import, and a listing of the studies needs neither.
        from coset.studies._trained import trained_network

        return trained_network(
            self.store,
            self.data(data, **(data_options or {})),
            model=model,
            options=options or {},
            recipe=recipe,
            seed=seed,
            device=self.device,
            show=self.show,
        )

    def progress(self, description: str, total: int) -> AbstractContextManager[Ticker]:
        """A bar with the time left; see ``coset._show.progress``."""
        return progress(description, total, show=self.show)


@dataclass(frozen=True)
class Study:
    """A study under its name: what it reproduces, what the paper found, and how it is run."""

    name: str
    title: str
    reference: str
    paper: str
    presets: Mapping[str, Any]
    run: Callable[[Any, Context], Findings] = field(repr=False)


def study(
    *, name: str, title: str, reference: str, paper: str, presets: Mapping[str, C]
) -> Callable[[Callable[[C, Context], Findings]], Callable[[C, Context], Findings]]:
    """Register the decorated function as a study.

    ``reference`` names paper, figure and equation; ``paper`` says what was found there; ``presets`` holds one
    configuration, a dataclass, for each of quick, small and paper.
    """
    if not is_name(name):
        raise InputError(f"the study name {name!r} must be lower-case words joined by hyphens")
    if set(presets) != set(PRESETS):
        raise InputError(f"the study {name} has the presets {sorted(presets)}, expected {list(PRESETS)}")
    if not all(is_dataclass(config) for config in presets.values()):
        raise InputError(f"the presets of the study {name} must be dataclasses")

    def register(run: Callable[[C, Context], Findings]) -> Callable[[C, Context], Findings]:
        if name in _registry:
            raise InputError(f"two studies have the name {name!r}")
        _registry[name] = Study(name, title, reference, prose(paper), dict(presets), run)
        return run

    return register


def studies() -> Mapping[str, Study]:
    """All studies by name; each module of this package without a leading underscore is one."""
    package = importlib.import_module("coset.studies")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"coset.studies.{module.name}")
    return MappingProxyType(dict(sorted(_registry.items())))


def find_study(name: str) -> Study:
    """The study of that name."""
    known = studies()
    if name not in known:
        raise InputError(f"there is no study {name!r}; there are: {', '.join(known)}")
    return known[name]


def is_name(name: str) -> bool:
    """Whether ``name`` is lower-case words joined by hyphens, as studies and tables are called."""
    return _NAME.fullmatch(name) is not None


def prose(text: str) -> str:
    """Text written over several lines of code as paragraphs of one line each."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.strip()))


def scalar(value: object, where: str) -> Scalar:
    """``value`` as a plain finite number, text, truth value or None; anything else is refused by its place."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        if not math.isfinite(number):
            raise InputError(f"{where} is {number}; findings hold finite numbers, and None where there is none")
        return number
    raise InputError(f"{where} is a {type(value).__qualname__}; findings hold numbers, texts, truth values and None")
