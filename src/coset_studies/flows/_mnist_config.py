"""What the study of sampled perceptrons runs: names, settings and presets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coset_studies.flows._sampled import Kind, unit_kind
from coset_studies.flows._zoos import Networks

FIRST, INTERPOLATION = "units, by inputs", "interpolation"
GUIDED, ALONE, OTHERS = f"{FIRST}, guided", "the gradient alone", "held-out networks"


@dataclass(frozen=True)
class Config:
    """``zoo``: its last ``held_out`` networks are seen by no generator. ``samples``: of each generator, ``few``
    where more is asked of each. ``bar``: the accuracy of performant networks. Guidance takes ``guided`` Euler steps, of
    the strength ``task`` by the loss on the data of the zoo, of several ``strengths`` by that on ``other`` data, to
    which networks are tuned, too, for so many ``tuning`` steps, until the loss is below ``reach``. ``width``:
    another number of hidden units. ``likelihoods``: of so many held-out networks. ``settings`` of samples of the first
    flow: contrast and temperature, of which the first is what claims speak of. What explains a miss: held-out networks
    of which so many ``components`` are kept, or all of which has ``errors``; the first flow with ``fewer`` networks,
    for ``fewer_steps``; ``remembered`` samples are compared with all networks.
    """

    zoo: Networks
    held_out: int
    kinds: Mapping[str, Kind]
    samples: int
    few: int
    steps: int
    batch_size: int
    bar: float
    compared: int
    other: Mapping[str, Any]
    strengths: tuple[float, ...]
    guided: int
    task: float
    tuning: int
    reach: float
    width: int
    settings: tuple[tuple[float, float], ...]
    components: tuple[int, ...]
    errors: tuple[float, ...]
    fewer: tuple[int, ...]
    fewer_steps: int
    remembered: int
    likelihoods: int = 8
    average: int = 64


def told(contrast: float, temperature: float) -> str:
    """The name of samples of the first flow with a contrast and a temperature."""
    return f"{FIRST}, c {contrast:g}" + (f", τ {temperature:g}" if temperature != 1 else "")


_QUICK_FIELD = {"channels": 8, "layers": 1, "heads": 2}
_FIELD = {"channels": 128, "layers": 4, "heads": 4, "dropout": 0.1}
QUICK = Config(
    Networks(
        "mlp",
        {"in_features": 64, "widths": [4], "out_features": 10},
        {"name": "digits", "flatten": True, "subset": 200},
        {"optimizer": "adam", "learning_rate": 1e-2, "batch_size": 50, "epochs": 2},
        12,
        order="shared",
    ),
    held_out=3,
    kinds={FIRST: unit_kind(_QUICK_FIELD, 5, coupling="independent", by_inputs=True)},
    samples=4,
    few=2,
    steps=2,
    batch_size=4,
    bar=0.1,
    compared=5,
    other={"name": "digits", "flatten": True},
    strengths=(0.1,),
    guided=2,
    task=1.0,
    tuning=3,
    reach=2.0,
    width=6,
    settings=((2.0, 0.8),),
    components=(2,),
    errors=(0.3,),
    fewer=(6,),
    fewer_steps=2,
    remembered=2,
    likelihoods=2,
    average=2,
)
SMALL = Config(
    Networks(
        "mlp",
        {"in_features": 784, "widths": [10], "out_features": 10},
        {"name": "mnist", "flatten": True},
        {"optimizer": "adam", "learning_rate": 3e-3, "batch_size": 100, "epochs": 3, "schedule": "cosine"},
        2000,
        order="shared",
    ),
    held_out=100,
    kinds={
        FIRST: unit_kind(_FIELD, 48, 4000, coupling="independent", by_inputs=True),
        "units, by inputs, orbits": unit_kind(_FIELD, 48, by_inputs=True),
        "units, by weights": unit_kind(_FIELD, 48, coupling="independent"),
        "units, normalized": unit_kind(_FIELD, 48, coupling="independent", by_inputs=True, geometry="normalized"),
        "units, geometric": unit_kind(_FIELD, 48, coupling="independent", geometry="geometric", source="uniform"),
        "MLP, aligned, PCA": Kind(
            {"order": "aligned", "field": "mlp", "projection": "pca", "components": 300}, {"learning_rate": 1e-3}
        ),
    },
    samples=128,
    few=32,
    steps=600,
    batch_size=64,
    bar=0.85,
    compared=100,
    other={"name": "fashion-mnist", "flatten": True},
    strengths=(0.1, 40.0, 80.0),
    guided=300,
    task=20.0,
    tuning=300,
    reach=0.6,
    width=32,
    settings=((3.0, 1.0), (1.0, 0.8), (2.0, 0.8), (2.0, 0.7)),
    components=(8, 16, 32, 48),
    errors=(0.1, 0.2, 0.3, 0.4),
    fewer=(300, 1900),
    fewer_steps=600,
    remembered=32,
)

SHARP = told(2.0, 0.8)
