"""What a study is: a function from a configuration to findings, registered by name."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from coset._show.progress import Ticker, progress
from coset.errors import InputError
from coset.store import Entry, Store
from coset.study._claims import Claim, Results
from coset.study._findings import Findings, is_name, prose
from coset.study._text import paragraphs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from coset.data import Dataset
    from coset.train import Recipe

PRESETS = ("quick", "small", "paper")
"""quick: seconds, embedded data. small: at most 30 minutes on two cores. paper: the published setting."""

REGISTRY: dict[str, "Study"] = {}
"""The studies of all modules that were imported so far."""
C = TypeVar("C")


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
        from coset.study.networks import trained_network

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
    claims: tuple[Claim, ...] = ()
    text: str | Mapping[str, str] | None = None
    tables: Mapping[str, str] | None = None
    figure: "Callable[[Results], Figure] | None" = field(default=None, repr=False)
    caption: str = ""

    def template(self, preset: str, seed: int) -> str | None:
        """The text of a run, None where it is not declared; "small" is of seed 0, "small, seed 1" of that one."""
        if self.text is None or isinstance(self.text, str):
            return self.text
        return self.text.get(f"{preset}, seed {seed}" if seed else preset, "")


def study(
    *,
    name: str,
    title: str,
    reference: str,
    paper: str,
    presets: Mapping[str, C],
    claims: Sequence[Claim] = (),
    text: str | Mapping[str, str] | None = None,
    tables: Mapping[str, str] | None = None,
    figure: "Callable[[Results], Figure] | None" = None,
    caption: str = "",
) -> Callable[[Callable[[C, Context], Findings]], Callable[[C, Context], Findings]]:
    """Register the decorated function as a study.

    ``reference`` names paper, figure and equation; ``paper`` says what was found there; ``presets`` holds one
    configuration, a dataclass, for each of quick, small and paper; ``claims`` are statements of the paper that the
    findings can refute, and open the page with their verdicts.

    ``text`` is what stands below them, in Markdown, written by hand: ``{name:.3f}`` is filled with a number of the
    findings, ``{table[row][column]:.3f}`` with the cell of a table, where ``row`` tells the row by its first cells,
    joined by ", ". A mapping gives a text for some presets, which stands on the page of their run with seed 0 only
    ("small, seed 1": of that one): use
    it for what was written with those results in view. ``tables`` are those that the page shows, with their captions;
    the others are in results.json only. ``figure`` draws the figure from numbers and tables, in the shared style, and
    ``caption`` stands below it. Of text, figure and captions that are not declared, those of the findings are taken.
    """
    if not is_name(name):
        raise InputError(f"the study name {name!r} must be lower-case words joined by hyphens")
    if set(presets) != set(PRESETS):
        raise InputError(f"the study {name} has the presets {sorted(presets)}, expected {list(PRESETS)}")
    if not all(is_dataclass(config) for config in presets.values()):
        raise InputError(f"the presets of the study {name} must be dataclasses")
    for index, claim in enumerate(claims):
        if not isinstance(claim, Claim):
            raise InputError(f"claim {index} of the study {name} is a {type(claim).__qualname__}, expected a Claim")
        if claim in claims[:index]:
            raise InputError(f"the study {name} makes one claim twice: {claim.statistic!r}, {claim.criterion}")

    texts: str | Mapping[str, str] | None
    if text is None or isinstance(text, str):
        texts = text and paragraphs(text)
    else:
        if not {run.partition(", seed ")[0] for run in text} <= presets.keys():
            raise InputError(f"the study {name} has texts of {sorted(text)}, expected some of {list(PRESETS)}")
        texts = {preset: paragraphs(words) for preset, words in text.items()}

    def register(run: Callable[[C, Context], Findings]) -> Callable[[C, Context], Findings]:
        if name in REGISTRY:
            raise InputError(f"two studies have the name {name!r}")
        shown = None if tables is None else {key: prose(words) for key, words in tables.items()}
        REGISTRY[name] = Study(
            name,
            title,
            reference,
            prose(paper),
            dict(presets),
            run,
            tuple(claims),
            texts,
            shown,
            figure,
            prose(caption),
        )
        return run

    return register
