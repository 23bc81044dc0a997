"""The variance of the prior: barriers between posteriors of an MLP, with and without alignment."""

from dataclasses import dataclass, replace

from coset.study import Context, Findings, study
from coset.study.images import Images
from coset_studies.rossi._mlps import DATA, INFERENCE, LAYERS, MEASURE, Layers, setting
from coset_studies.rossi._pairs import Inference, Measure
from coset_studies.rossi._report import NEAR_ZERO, SPLITS, Case, left_of
from coset_studies.rossi._sweep import Found, barriers_of, falls, sweep_findings

VARIANCES = {"quick": (0.01, 0.09), "small": (0.0025, 0.01, 0.04, 0.16), "paper": (0.001, 0.0025, 0.01, 0.1, 1.0)}


@dataclass(frozen=True)
class Config:
    """The prior N(0, α²) with each of ``variances`` α²."""

    images: Images
    layers: Layers
    variances: tuple[float, ...]
    inference: Inference
    measure: Measure


@study(
    name="rossi-prior",
    title="Barriers between posteriors against the prior's variance",
    reference="Rossi et al. 2023, fig. 7 (MLP)",
    paper="""
    After alignment the variance of the prior has no measurable effect; without it, barriers fall as the prior becomes
    wider, and the gap between train and test barriers grows.
    """,
    presets={
        preset: Config(DATA[preset], LAYERS[preset], variances, INFERENCE[preset], MEASURE[preset])
        for preset, variances in VARIANCES.items()
    },
)
def run(config: Config, context: Context) -> Findings:
    """A pair for each prior."""
    cases: dict[float, Case] = {
        variance: Case(config.images, config.layers, replace(config.inference, prior_variance=variance))
        for variance in config.variances
    }
    text = setting(config.images, config.inference, config.layers, swept="prior_variance")
    return sweep_findings(context, cases, config.measure, what="prior variance", judge=judge, setting=text)


def judge(found: Found) -> str:
    """Whether the aligned barrier stays near zero, and the naive one falls."""
    near = all(left_of(one, split) <= NEAR_ZERO for one in found.values() for split in SPLITS)
    aligned = (
        "As in the paper, alignment leaves nearly no barrier whatever the prior."
        if near
        else "Unlike in the paper, what is left of the barrier after alignment is not near zero for every prior."
    )
    down = all(falls(barriers_of(found, "naive", split)) for split in SPLITS)
    naive = "falls as the prior becomes wider, as there" if down else "does not fall as the prior becomes wider"
    gaps = [abs(one.barrier("naive", "train") - one.barrier("naive", "test")) for one in found.values()]
    gap = "grows, as there" if gaps[-1] > gaps[0] else "does not grow, unlike there"
    return f"{aligned} The naive barrier {naive}. The gap between train and test barriers {gap}."
