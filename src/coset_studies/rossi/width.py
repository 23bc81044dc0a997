"""The width of an MLP: barriers between its posteriors, with and without alignment."""

from dataclasses import dataclass

from coset.study import Context, Findings, study
from coset.study.images import Images
from coset_studies.rossi._claims import FALLS, NO_NUMBERS, last_to_first, share_of_rows
from coset_studies.rossi._mlps import DATA, INFERENCE, LAYERS, MEASURE, SETTING, Layers
from coset_studies.rossi._pairs import Inference, Measure
from coset_studies.rossi._report import SHOWN, Case
from coset_studies.rossi._sweep import BARS, sweep_figure, sweep_findings

WIDTHS = {"quick": (8, 32), "small": (64, 128, 256, 512), "paper": (64, 128, 256, 512, 1024, 2048)}


@dataclass(frozen=True)
class Config:
    """``depth`` hidden layers of each of ``widths``."""

    images: Images
    depth: int
    widths: tuple[int, ...]
    inference: Inference
    measure: Measure


TEXT = (
    """
After alignment the barrier falls with the width, as in the paper: from {at_64_aligned_train:.3f} nats at 64 units to
{at_512_aligned_train:.3f} at 512 on train images, from {at_64_aligned_test:.3f} to {at_512_aligned_test:.3f} on test
images, and at no step it rises. From 256 to 512 units little changes.

Without alignment it does not fall; there it does. It is {at_64_naive_train:.2f} nats at 64 units, lowest at 128
({at_128_naive_train:.2f}), and {at_512_naive_train:.2f} at 512. Yet the error halfway goes down from
{at_64_naive_test_midpoint:.0f} % of the test images at 64 units to {at_512_naive_test_midpoint:.0f} % at 512: the wide
networks are right halfway, and not confident.

"""
    + BARS
    + SETTING
)


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
    claims=[
        share_of_rows(
            statement,
            "fig. 5",
            f"{path} barrier of the widest network as a share of the narrowest's",
            last_to_first,
            path,
            FALLS,
            f"What falls by less than a tenth is not seen to fall. {NO_NUMBERS}",
        )
        for path, statement in {
            "aligned": "Wider networks have lower barriers after alignment.",
            "naive": "Wider MLPs have lower barriers without alignment, too.",
        }.items()
    ],
    text={"small": TEXT},
    tables=SHOWN,
    figure=sweep_figure,
    caption=f"Barriers of the predictive log-likelihood against the width. {BARS.strip()}",
)
def run(config: Config, context: Context) -> Findings:
    """A pair at each width."""
    cases: dict[float, Case] = {
        width: Case(config.images, Layers((width,) * config.depth), config.inference) for width in config.widths
    }
    return sweep_findings(context, cases, config.measure, "width")
