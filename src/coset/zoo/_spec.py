"""What a zoo consists of: models, data, recipes, seeds, as a value and as a TOML file."""

import difflib
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from coset._checks import check_choice, check_count, is_count, is_number, is_seed
from coset._values import Frozen
from coset.data import NAMES
from coset.errors import InputError
from coset.train import Recipe

ORDERS = ("own", "shared")
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Range:
    """Values that every network draws on its own: uniform from ``low`` to ``high``, with ``log`` in the logarithm."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        numbers = is_number(self.low) and is_number(self.high) and self.low < self.high
        if not numbers or not isinstance(self.log, bool) or (self.log and self.low <= 0):
            above = " above 0" if self.log is True else ""
            raise InputError(
                f"a range has low {self.low!r}, high {self.high!r} and log {self.log!r}; expected numbers{above} with "
                f"low < high, and log true or false"
            )

    def at(self, share: float) -> float:
        """The value at a share in [0, 1) of the way."""
        if self.log:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + (self.high - self.low) * share


@dataclass(frozen=True)
class DataSpec:
    """A data set of ``coset.data`` with options of ``load``, and what is cut from its train part.

    ``subset``: so many examples of the train part; ``validation``: this share of them is held out; both are drawn with
    ``cut_seed``, so that each label keeps its share. ``label_noise``: this share of the labels that are trained on is
    replaced by other labels, drawn with ``cut_seed``, too; validation and test parts keep theirs.
    """

    name: str
    split: int = 0
    seed: int = 0
    normalize: bool = True
    flatten: bool = False
    window: int | None = None
    subset: int | None = None
    validation: float = 0.0
    cut_seed: int = 0
    label_noise: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise InputError(f"data: {self.name!r} is not a data set{meant(self.name, NAMES)}")
        if not is_number(self.validation) or not 0 <= self.validation < 1:
            raise InputError(f"data: validation is {self.validation!r}; expected a share in [0, 1)")
        if not is_number(self.label_noise) or not 0 <= self.label_noise <= 1:
            raise InputError(f"data: label_noise is {self.label_noise!r}; expected a share from 0 to 1")
        if self.subset is not None:
            check_count("data: subset", self.subset)
        for name in ("normalize", "flatten"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"data: {name} is {getattr(self, name)!r}; expected true or false")
        if not is_seed(self.cut_seed):
            raise InputError(f"data: cut_seed is {self.cut_seed!r}; expected a whole number of at least 0")

    def to_dict(self) -> dict[str, Any]:
        """Plain values; without label noise as before there was any, so that zoos of then are found."""
        content = {part.name: getattr(self, part.name) for part in fields(self)}
        return content if self.label_noise else {n: v for n, v in content.items() if n != "label_noise"}


Values = tuple[Any, ...] | Range


@dataclass(frozen=True)
class ZooSpec:
    """Which networks a zoo has: every data set with every choice of ``grid_options``, of ``grid_recipe`` and of seeds.

    ``model`` and ``options`` are those of ``coset.models.build``. ``recipe`` holds settings of ``coset.train.Recipe``
    that all networks share. ``grid_options`` and ``grid_recipe``: lists of values, all of which are combined; a
    ``Range`` does not multiply the networks, each draws a value of its own, by ``seed``. ``initial_scale``: a list or a
    ``Range`` like those; matrices and filters start as that many times what the model draws. ``snapshots``: after these
    steps or epochs ("steps" or "epochs") the weights are kept, too; 0 is before the first. ``group``: so many networks
    are trained side by side, None: as many as fit the caches. ``order``: every network reads the examples in an order
    of its "own", as ``coset.train.fit`` with its seed does, or all in a "shared" one, by ``seed``, which is
    faster but for convolutions.
    """

    model: str
    recipe: Mapping[str, Any]
    data: tuple[DataSpec, ...]
    seeds: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    grid_options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    grid_recipe: Mapping[str, Values] = field(default_factory=dict)
    initial_scale: Values = (1.0,)
    snapshots: tuple[int, ...] = ()
    snapshots_in: str = "epochs"
    group: int | None = None
    order: str = "own"
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("recipe", "options", "grid_options", "grid_recipe"):
            object.__setattr__(self, name, Frozen(getattr(self, name)))
        if not isinstance(self.model, str):
            raise InputError(f"model is {self.model!r}; expected a name, or 'module:factory'")
        if not self.data:
            raise InputError("data is empty; expected at least one data set")
        if not self.seeds or not all(is_seed(seed) for seed in self.seeds) or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds are {list(self.seeds)[:8]}; expected whole numbers of at least 0, all different")
        check_choice("order", self.order, ORDERS, quoted=True)
        check_choice("dtype", self.dtype, DTYPES, quoted=True)
        check_choice("snapshots", self.snapshots_in, ("steps", "epochs"), quoted=True)
        if not all(is_count(at, 0) for at in self.snapshots) or list(self.snapshots) != sorted(set(self.snapshots)):
            raise InputError(f"snapshots are at {list(self.snapshots)[:8]}; expected rising whole numbers from 0 on")
        if self.group is not None:
            check_count("group", self.group)
        if not is_seed(self.seed):
            raise InputError(f"seed is {self.seed!r}; expected a whole number of at least 0")
        lowest = (self.initial_scale.low,) if isinstance(self.initial_scale, Range) else self.initial_scale
        if not lowest or not all(is_number(scale) and scale > 0 for scale in lowest):
            raise InputError(f"grid: initial_scale is {self.initial_scale!r}; expected numbers > 0")
        self._check_grids()

    def _check_grids(self) -> None:
        known = [part.name for part in fields(Recipe)]
        for where, names in (("recipe", self.recipe), ("grid.recipe", self.grid_recipe)):
            check_keys(where, names, known)
        for where, grid, base in (
            ("grid.options", self.grid_options, self.options),
            ("grid.recipe", self.grid_recipe, self.recipe),
        ):
            for name, values in grid.items():
                if name in base:
                    raise InputError(f"{where}: {name} has values here and one above; expected one of both")
                if not isinstance(values, Range) and not values:
                    raise InputError(f"{where}: {name} has no values; expected a list of them")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, as ``from_dict`` takes them."""
        start = {} if self.initial_scale == (1.0,) else {"initial_scale": _plain_values(self.initial_scale)}
        content: dict[str, Any] = {
            "model": self.model,
            "options": {name: _listed(value) for name, value in self.options.items()},
            "data": [one.to_dict() for one in self.data],
            "recipe": {name: _listed(value) for name, value in self.recipe.items()},
            "grid": {
                "options": {name: _listed(values) for name, values in self.grid_options.items()},
                "recipe": {name: _plain_values(values) for name, values in self.grid_recipe.items()},
                **start,
            },
            "seeds": list(self.seeds),
            "snapshots": {self.snapshots_in: list(self.snapshots)},
            "order": self.order,
            "dtype": self.dtype,
            "seed": self.seed,
        }
        return content if self.group is None else {**content, "group": self.group}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """The specification of plain values; a key that is not known is named, with what it could be."""
        keys = ("model", "options", "data", "recipe", "grid", "seeds", "snapshots", "group", "order", "dtype", "seed")
        check_keys("the specification", content, keys)
        for name in ("model", "data", "recipe", "seeds"):
            if name not in content:
                raise InputError(f"the specification has no {name}; expected model, data, recipe and seeds at least")
        grid = _table("grid", content.get("grid", {}))
        check_keys("grid", grid, ("options", "recipe", "initial_scale"))
        snapshots = _table("snapshots", content.get("snapshots", {}))
        check_keys("snapshots", snapshots, ("steps", "epochs"))
        if len(snapshots) > 1:
            raise InputError("snapshots are given in steps and in epochs; expected one of both")
        unit, times = next(iter(snapshots.items()), ("epochs", []))
        data = content["data"]
        return cls(
            model=content["model"],
            recipe=_table("recipe", content["recipe"]),
            data=tuple(as_data(one) for one in (data if isinstance(data, Sequence) and _plain(data) else [data])),
            seeds=_seeds(content["seeds"]),
            options=_table("options", content.get("options", {})),
            grid_options={n: _values(n, v) for n, v in _table("grid.options", grid.get("options", {})).items()},
            grid_recipe={n: _drawn(n, v) for n, v in _table("grid.recipe", grid.get("recipe", {})).items()},
            initial_scale=_drawn("initial_scale", grid.get("initial_scale", [1.0])),
            snapshots=_values("snapshots", times),
            snapshots_in=unit,
            **{name: content[name] for name in ("group", "order", "dtype", "seed") if name in content},
        )


def read_spec(path: str | Path) -> ZooSpec:
    """The specification of a TOML file."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from error
    try:
        return ZooSpec.from_dict(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def as_spec(spec: "ZooSpec | Mapping[str, Any] | str | Path") -> ZooSpec:
    """A specification in any of the forms people have it."""
    if isinstance(spec, ZooSpec):
        return spec
    if isinstance(spec, Mapping):
        return ZooSpec.from_dict(spec)
    if isinstance(spec, str | Path):
        return read_spec(spec)
    raise InputError(f"spec is a {type(spec).__name__}; expected a ZooSpec, a dict, or the path of a TOML file")


def check_keys(where: str, found: Collection[str], known: Collection[str]) -> None:
    """Refuse a key that is not ``known``, and say which one may be meant."""
    for name in found:
        if name not in known:
            raise InputError(f"{where} has no key {name!r}{meant(name, known)}")


def meant(name: str, known: Collection[str]) -> str:
    """What a misspelt name could be, as the end of a sentence."""
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; expected one of {', '.join(known)}"


def _plain(data: Sequence[Any]) -> bool:
    return not isinstance(data, str)


def _table(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where} is {value!r}; expected a table of names and values")
    return value


def as_data(value: Any) -> DataSpec:
    """A data set by its name, or as a table of its options."""
    if isinstance(value, DataSpec):
        return value
    if isinstance(value, str):
        value = {"name": value}
    table = _table("data", value)
    check_keys("data", table, [part.name for part in fields(DataSpec)])
    if "name" not in table:
        raise InputError("data has no name; expected one of a data set")
    return DataSpec(**table)


def _seeds(value: Any) -> tuple[int, ...]:
    if is_count(value):
        return tuple(range(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(value)
    raise InputError(f"seeds is {value!r}; expected how many, or a list of them")


def _values(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InputError(f"{name} is {value!r}; expected a list of values")
    return tuple(value)


def _drawn(name: str, value: Any) -> Values:
    """A list of values, or a range."""
    return _range(value) if isinstance(value, Mapping) else _values(name, value)


def _plain_values(values: Values) -> Any:
    """A list of values, or a range, as JSON has them."""
    if isinstance(values, Range):
        return {"low": values.low, "high": values.high, "log": values.log}
    return _listed(values)


def _range(value: Mapping[str, Any]) -> Range:
    check_keys("a range", value, ("low", "high", "log"))
    if "low" not in value or "high" not in value:
        raise InputError(f"a range is {dict(value)!r}; expected low and high")
    return Range(**value)


def _listed(value: Any) -> Any:
    """Tuples as lists, as JSON gives them back."""
    return [_listed(one) for one in value] if isinstance(value, tuple | list) else value
