"""The temperature of a posterior: barriers between mean fields of an MLP, with and without alignment."""

from dataclasses import dataclass, replace

from coset.study import Context, Findings, study
from coset.study.images import Images
from coset_studies.rossi._mlps import DATA, INFERENCE, LAYERS, MEASURE, Layers, setting
from coset_studies.rossi._pairs import Inference, Measure
from coset_studies.rossi._report import SPLITS, Case
from coset_studies.rossi._sweep import Found, barriers_of, falls, sweep_findings

TEMPERATURES = {"quick": (0.1, 0.5), "small": (0.01, 0.1, 1.0, 2.0), "paper": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)}


@dataclass(frozen=True)
class Config:
    """p_T ∝ (p(Y|θ)p(θ))^{1/T} for each of ``temperatures`` T."""

    images: Images
    layers: Layers
    temperatures: tuple[float, ...]
    inference: Inference
    measure: Measure


@study(
    name="rossi-temperature",
    title="Barriers between cold and warm posteriors",
    reference="Rossi et al. 2023, fig. 8 (MLP), section 5.2",
    paper="""
    After alignment the barriers of cold posteriors are marginally closer to zero than those of warm ones.
    """,
    presets={
        preset: Config(DATA[preset], LAYERS[preset], chosen, INFERENCE[preset], MEASURE[preset])
        for preset, chosen in TEMPERATURES.items()
    },
)
def run(config: Config, context: Context) -> Findings:
    """A pair at each temperature."""
    cases: dict[float, Case] = {
        temperature: Case(config.images, config.layers, replace(config.inference, temperature=temperature))
        for temperature in config.temperatures
    }
    text = setting(config.images, config.inference, config.layers, swept="temperature")
    return sweep_findings(context, cases, config.measure, what="temperature", judge=judge, setting=text)


def judge(found: Found) -> str:
    """Whether colder is closer to zero after alignment."""
    colder = [falls(barriers_of(found, "aligned", split)[::-1], 1.0) for split in SPLITS]
    if all(colder):
        return "As in the paper, the coldest posteriors have a lower barrier after alignment than the warmest."
    if any(colder):
        return (
            "The coldest posteriors have a lower barrier after alignment than the warmest on one part of the data only."
        )
    return "Unlike in the paper, the coldest posteriors do not have a lower barrier after alignment than the warmest."
