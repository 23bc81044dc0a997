"""How a network is trained: everything that decides the outcome beside the model, the data and the seed."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Self

from coset._checks import is_count, is_number
from coset.errors import InputError
from coset.train.augment import AUGMENTATIONS
from coset.train.loss import LOSSES
from coset.train.optimizer import OPTIMIZERS
from coset.train.schedule import SCHEDULES

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a training run; checked on creation, and the same run always has the same plain dict.

    For that reason a setting that the rest of the recipe leaves without effect must keep its default: momentum with
    Adam, say, is an error. ``dataclasses.replace`` makes variants.
    """

    epochs: int
    batch_size: int
    """Examples per step; the last batch of an epoch holds what is left, nothing is dropped."""
    learning_rate: float
    """The highest rate of the schedule."""
    optimizer: str = "sgd"
    momentum: float = 0.0
    """SGD only."""
    nesterov: bool = False
    """SGD with momentum only."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam and AdamW only."""
    weight_decay: float = 0.0
    """Of all parameters; AdamW decouples it from the gradient."""
    schedule: str = "constant"
    warmup_epochs: int = 0
    """Linear warm-up before the schedule; not for the two cyclic schedules, which rise by themselves."""
    drops: int = 4
    """Schedule "step" only: evenly spaced drops of the rate."""
    drop_factor: float = 0.5
    """Schedule "step" only: the rate is multiplied by it at each drop."""
    peak: float = 0.3
    """Schedules "triangular" and "one-cycle" only: the share of the run at which the rate is highest."""
    loss: str = "cross-entropy"
    label_smoothing: float = 0.0
    """Cross-entropy only; evaluation never smooths."""
    mixup: float = 0.0
    """α of mixup's Beta(α, α); 0 is off."""
    cutmix: float = 0.0
    """α of CutMix's Beta(α, α); 0 is off."""
    augmentation: str = "none"
    shift: int = 2
    """Augmentations "shift" and "shift-flip" only: the farthest translation in pixels."""
    clip: float | None = None
    """The largest norm of the whole gradient; None is off."""
    keep: str = "last"
    """Which weights are returned: "last", or "best" on the validation data."""

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _clean(field.name, getattr(self, field.name)))
        for name, (switch, values) in _ONLY_WITH.items():
            if getattr(self, name) != _default(name) and getattr(self, switch) not in values:
                raise InputError(
                    f"recipe: {name} has no effect with {switch} {getattr(self, switch)!r}, "
                    f"expected {switch} {' or '.join(map(repr, values))}, or {name} left at {_default(name)!r}"
                )
        if self.nesterov and self.momentum == 0:
            raise InputError("recipe: nesterov needs momentum, which is 0; expected a momentum above 0")
        if self.warmup_epochs >= self.epochs:
            raise InputError(
                f"recipe: warmup_epochs is {self.warmup_epochs}, expected fewer than the {self.epochs} epochs"
            )

    def to_dict(self) -> dict[str, Any]:
        """A plain dict for JSON, with every setting and the version of the format."""
        return {"version": VERSION, **asdict(self), "betas": list(self.betas)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """The recipe of a plain dict. Unknown settings are refused, absent ones have their defaults."""
        if content.get("version") != VERSION:
            raise InputError(f"recipe: its version is {content.get('version')!r}, expected {VERSION}")
        settings = {name: value for name, value in content.items() if name != "version"}
        known = {field.name: field for field in fields(cls)}
        unknown = sorted(map(str, settings.keys() - known.keys()))
        if unknown:
            raise InputError(f"recipe: unknown setting {', '.join(unknown)}; expected some of {', '.join(known)}")
        absent = [name for name, field in known.items() if field.default is MISSING and name not in settings]
        if absent:
            raise InputError(f"recipe: {', '.join(absent)} is missing")
        return cls(**settings)


# A setting, and the switch with those of its values under which the setting has an effect.
_ONLY_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
    "momentum": ("optimizer", ("sgd",)),
    "nesterov": ("optimizer", ("sgd",)),
    "betas": ("optimizer", ("adam", "adamw")),
    "warmup_epochs": ("schedule", ("constant", "linear", "cosine", "step")),
    "drops": ("schedule", ("step",)),
    "drop_factor": ("schedule", ("step",)),
    "peak": ("schedule", ("triangular", "one-cycle")),
    "label_smoothing": ("loss", ("cross-entropy",)),
    "shift": ("augmentation", ("shift", "shift-flip")),
}

_CHOICES: dict[str, tuple[str, ...]] = {
    "optimizer": tuple(OPTIMIZERS),
    "schedule": tuple(SCHEDULES),
    "loss": tuple(LOSSES),
    "augmentation": tuple(AUGMENTATIONS),
    "keep": ("last", "best"),
}

# Whole numbers and the least value of each.
_WHOLE: dict[str, int] = {"epochs": 1, "batch_size": 1, "warmup_epochs": 0, "drops": 1, "shift": 1}

_REAL: dict[str, tuple[Callable[[float], bool], str]] = {
    "learning_rate": (lambda value: value > 0, "a number above 0"),
    "momentum": (lambda value: 0 <= value < 1, "a number in [0, 1)"),
    "weight_decay": (lambda value: value >= 0, "a number of at least 0"),
    "drop_factor": (lambda value: 0 < value < 1, "a number in (0, 1)"),
    "peak": (lambda value: 0 < value < 1, "a number in (0, 1)"),
    "label_smoothing": (lambda value: 0 <= value < 1, "a number in [0, 1)"),
    "mixup": (lambda value: value >= 0, "a number of at least 0"),
    "cutmix": (lambda value: value >= 0, "a number of at least 0"),
    "clip": (lambda value: value > 0, "a number above 0, or None"),
}


def _default(name: str) -> Any:
    return Recipe.__dataclass_fields__[name].default


def _clean(name: str, value: Any) -> Any:
    """The value of a setting in its one type (1 becomes 1.0 where a real number is meant), or an error."""
    if name in _CHOICES:
        return _require(name, value, value in _CHOICES[name], f"one of {', '.join(_CHOICES[name])}")
    if name in _WHOLE:
        least = _WHOLE[name]
        return _require(name, value, is_count(value, least), f"a whole number of at least {least}")
    if name == "nesterov":
        return _require(name, value, isinstance(value, bool), "True or False")
    if name == "betas":
        pair = isinstance(value, tuple | list) and len(value) == 2
        both = pair and all(is_number(beta) and 0 <= beta < 1 for beta in value)
        _require(name, value, both, "two numbers in [0, 1)")
        return float(value[0]), float(value[1])
    if name == "clip" and value is None:
        return None
    allowed, expected = _REAL[name]
    return float(_require(name, value, is_number(value) and allowed(value), expected))


def _require(name: str, value: Any, right: bool, expected: str) -> Any:
    if not right:
        raise InputError(f"recipe: {name} is {value!r}, expected {expected}")
    return value


RECIPES: dict[str, Recipe] = {
    # Godfrey et al. 2022, "On the Symmetries of Deep Learning Models and their Internal Representations", D.1:
    # Myrtle CNN, ResNet20 and ResNet18 on CIFAR-10. Adam with PyTorch's defaults.
    "godfrey-cifar": Recipe(
        epochs=50,
        batch_size=32,
        optimizer="adam",
        learning_rate=1e-3,
        schedule="step",
        drops=4,
        drop_factor=0.5,
        augmentation="shift-flip",
        shift=2,
        keep="best",
    ),
    # The same, D.4: Compact Convolutional Transformers with the recipe of Hassani et al. 2021 (their published
    # configuration for 300 epochs on CIFAR-10 gives the batch, warm-up, smoothing and the α of mixup and CutMix).
    # That configuration also has RandAugment and resized crops, here replaced by shifts and flips, and it stops the
    # cosine at 1e-5, here at 0.
    "godfrey-cct": Recipe(
        epochs=300,
        batch_size=128,
        optimizer="adamw",
        learning_rate=55e-5,
        weight_decay=6e-2,
        schedule="cosine",
        warmup_epochs=10,
        label_smoothing=0.1,
        mixup=0.8,
        cutmix=1.0,
        augmentation="shift-flip",
        shift=2,
    ),
    # The same, F.3: ResNet-50 on ImageNet with the cyclic schedule of FFCV (Leclerc et al. 2022), whose published
    # configuration for 88 epochs gives the momentum, and whose rate peaks after two epochs. It takes the batch per
    # device, of which it has eight, spares batch normalisation the decay, and crops images as it loads them.
    "godfrey-imagenet": Recipe(
        epochs=88,
        batch_size=512,
        optimizer="sgd",
        learning_rate=1.7,
        momentum=0.9,
        weight_decay=1e-4,
        schedule="triangular",
        peak=2 / 88,
        label_smoothing=0.1,
    ),
    # Our own, for an MLP on MNIST in a minute. Adam at 1e-3 with batches of 500 is of Git Re-Basin (Ainsworth et al.
    # 2023), which trains a hundred epochs at a constant rate; here ten epochs with a rate that falls to 0.
    "mnist-mlp": Recipe(epochs=10, batch_size=500, optimizer="adam", learning_rate=1e-3, schedule="linear"),
}
"""Recipes by name; ``dataclasses.replace`` shortens or varies them.

Those called ``godfrey-…`` are of published work, as far as the settings of a recipe go; ``mnist-mlp`` is our own.
"""
