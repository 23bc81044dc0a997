"""The width of an MLP: barriers between its posteriors, with and without alignment."""

from dataclasses import dataclass
from itertools import pairwise

from coset.study import Context, Findings, study
from coset.study.images import Images
from coset_studies.rossi._mlps import DATA, INFERENCE, LAYERS, MEASURE, Layers, setting
from coset_studies.rossi._pairs import Inference, Measure
from coset_studies.rossi._report import SPLITS, Case
from coset_studies.rossi._sweep import Found, barriers_of, falls, sweep_findings

WIDTHS = {"quick": (8, 32), "small": (64, 128, 256, 512), "paper": (64, 128, 256, 512, 1024, 2048)}


@dataclass(frozen=True)
class Config:
    """``depth`` hidden layers of each of ``widths``."""

    images: Images
    depth: int
    widths: tuple[int, ...]
    inference: Inference
    measure: Measure


@study(
    name="rossi-width",
    title="Barriers between posteriors against the width",
    reference="Rossi et al. 2023, fig. 5 (MLP)",
    paper="""
    Wider networks have lower barriers after alignment; of MLPs also without it.
    """,
    presets={
        preset: Config(DATA[preset], len(LAYERS[preset].widths), widths, INFERENCE[preset], MEASURE[preset])
        for preset, widths in WIDTHS.items()
    },
)
def run(config: Config, context: Context) -> Findings:
    """A pair at each width."""
    cases: dict[float, Case] = {
        width: Case(config.images, Layers((width,) * config.depth), config.inference) for width in config.widths
    }
    text = setting(config.images, config.inference)
    return sweep_findings(context, cases, config.measure, what="width", judge=judge, setting=text)


def judge(found: Found) -> str:
    """Whether wider is lower, with and without alignment."""
    lower = {path: all(falls(barriers_of(found, path, split)) for split in SPLITS) for path in ("naive", "aligned")}
    steps = all(
        later <= earlier for split in SPLITS for earlier, later in pairwise(barriers_of(found, "aligned", split))
    )
    aligned = {
        (True, True): "As in the paper, wider networks have lower barriers after alignment, at every step.",
        (True, False): "As in the paper, the widest network has a lower barrier after alignment than the narrowest; "
        "not every step goes down.",
    }.get((lower["aligned"], steps), "Unlike in the paper, the aligned barrier does not fall with the width.")
    naive = "falls with the width, too, as there" if lower["naive"] else "does not fall with the width; there it does"
    return f"{aligned} The naive barrier {naive}."
