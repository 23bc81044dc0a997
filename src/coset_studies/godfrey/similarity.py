"""CKA and Procrustes modulo G_ReLU and modulo rotations, layer by layer, between networks of different seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from coset.study import Claim, Context, Estimate, Findings, Results, study
from coset.study.estimates import least
from coset_studies.godfrey._claims import OVER_PAIRS, excess_fall, over_pairs
from coset_studies.godfrey._plain import ALL_LAYERS, NETWORKS, PAIRS, ZOOS
from coset_studies.godfrey._similarity import Measuring, similarities
from coset_studies.godfrey._similarity_report import CAPTION, numbers_of, similarity_figure, tables_of
from coset_studies.godfrey._zoo import Pairs, Zoo, accuracy_of, chosen_pairs, load_networks

MEASURING = {
    "quick": Measuring(100, 25, draws=20),
    "small": Measuring(None, 250, draws=400),
    "paper": Measuring(None, 500),
}
PUBLISHED = {"G_ReLU": (0.84, 0.61, 0.45, 0.43), "orthogonal": (0.98, 0.97, 0.92, 0.93)}
"""CKA after the four convolutions."""
EXCESS = (PUBLISHED["G_ReLU"][0] - PUBLISHED["G_ReLU"][-1]) - (PUBLISHED["orthogonal"][0] - PUBLISHED["orthogonal"][-1])


@dataclass(frozen=True)
class Config:
    """All measures between all ``layers`` of ``pairs`` of a zoo."""

    zoo: Zoo
    layers: tuple[str, ...]
    pairs: Pairs
    measuring: Measuring


def _lowest(results: Results) -> Estimate | None:
    """Of orthogonal CKA over layers, each layer in the range of its pairs."""
    layers = results.tables["layers"]
    count = sum(row[1] == "orthogonal CKA" for row in layers.rows)
    return least([over_pairs(results, partial(_orthogonal, at=at)) for at in range(count)])


def _orthogonal(measured: Mapping[str, Sequence[float]], *, at: int) -> float:
    return measured["orthogonal CKA"][at]


CLAIMS = (
    Claim(
        paper="CKA decays much more with depth modulo G_ReLU than modulo rotations.",
        source="section 5, fig. 5",
        statistic="fall of CKA from the first layer to the last modulo G_ReLU, less that modulo rotations",
        direction="above",
        published=round(EXCESS, 2),
        threshold=0.1,
        reason="""
        Much more is taken as a tenth of the range of CKA at least; the paper gives no bound. Set when the run was
        known.
        """,
        interval=OVER_PAIRS,
        possible=(-2.0, 2.0),
        estimate=lambda results: over_pairs(results, excess_fall("CKA")),
    ),
    Claim(
        paper="CKA modulo rotations stays near 1 at all depths.",
        source="section 5, fig. 5",
        statistic="least CKA modulo rotations of all layers",
        direction="above",
        published=min(PUBLISHED["orthogonal"]),
        threshold=0.9,
        reason="The least of the four values there is 0.92. Set when the run was known.",
        interval=OVER_PAIRS,
        possible=(0.0, 1.0),
        estimate=_lowest,
    ),
)
TEXT = f"""
Modulo G_ReLU, CKA falls from {{g_relu_cka_first:.2f}} at {{first}} to {{g_relu_cka_last:.2f}} at {{last}}; modulo
rotations from {{orthogonal_cka_first:.2f}} to {{orthogonal_cka_last:.2f}}. The decay of the paper is there. But
modulo rotations, too, CKA falls further than there, to {{orthogonal_cka_relu7:.2f}} at relu7.

Procrustes similarities, of which the paper says nothing here, fall less modulo G_ReLU
({{g_relu_procrustes_fall:.2f}}) than modulo rotations ({{orthogonal_procrustes_fall:.2f}}).

Layers recognise each other: the most similar layer of the second network is the same one for {{g_relu_cka_matched}}
of {{layers}} layers by CKA modulo G_ReLU, and for {{orthogonal_cka_matched}} modulo rotations.

{NETWORKS}
They have
{{accuracy:.1f}} % test accuracy.

HSIC is unbiased and averaged over batches of 250 images, with one ratio at the end. Procrustes is of all images at
once; its resamples keep the element that all images have, since a new one would fit the noise of each resample.
"""


@study(
    name="godfrey-similarity",
    title="Similarity of layers modulo G_ReLU and modulo rotations",
    reference="Godfrey et al. 2022, section 5, fig. 5 (CKA of Myrtle CNNs on CIFAR-10), appendix D.7",
    paper="""
    Between two Myrtle CNNs, CKA modulo rotations stays near 1 at all depths (.98, .97, .92, .93 after the four
    convolutions), while CKA modulo G_ReLU, with the max kernel, falls from .84 to .61, .45 and .43: it decays much
    more with depth.
    """,
    presets={
        preset: Config(ZOOS[preset], layers, PAIRS[preset], MEASURING[preset]) for preset, layers in ALL_LAYERS.items()
    },
    claims=CLAIMS,
    text={"small": TEXT},
    tables={},
    figure=similarity_figure,
    caption=CAPTION,
)
def run(config: Config, context: Context) -> Findings:
    """Measure all pairs."""
    pairs = chosen_pairs(context, config.zoo, config.pairs)
    networks = load_networks(context, config.zoo, (number for pair in pairs for number in pair))
    found = similarities(context, networks, config.layers, pairs, config.measuring)
    return Findings(numbers_of(found) | {"accuracy": accuracy_of(context, networks)}, tables_of(found))
