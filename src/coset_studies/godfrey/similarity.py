"""CKA and Procrustes modulo G_ReLU and modulo rotations, layer by layer, between networks of different seeds."""

from dataclasses import dataclass

from coset.study import Context, Findings, study
from coset_studies.godfrey._plain import ALL_LAYERS, PAIRS, ZOOS, networks_sentence
from coset_studies.godfrey._similarity import Measuring, similarities
from coset_studies.godfrey._similarity_report import (
    fall_sentence,
    how_sentence,
    matrix_sentence,
    numbers_of,
    similarity_caption,
    similarity_figure,
    tables_of,
)
from coset_studies.godfrey._zoo import Pairs, Zoo, accuracy_of, chosen_pairs, drawn, load_networks

MEASURING = {
    "quick": Measuring(100, 25, draws=20),
    "small": Measuring(None, 250, draws=400),
    "paper": Measuring(None, 500),
}


@dataclass(frozen=True)
class Config:
    """All measures between all ``layers`` of ``pairs`` of a zoo."""

    zoo: Zoo
    layers: tuple[str, ...]
    pairs: Pairs
    measuring: Measuring


@study(
    name="godfrey-similarity",
    title="Similarity of layers modulo G_ReLU and modulo rotations",
    reference="Godfrey et al. 2022, section 5, fig. 5 (CKA of Myrtle CNNs on CIFAR-10), appendix D.7",
    paper="""
    Between two Myrtle CNNs, CKA modulo rotations stays near 1 at all depths (.98, .97, .92, .93 after the four
    convolutions), while CKA modulo G_ReLU, with the max kernel, falls from .84 to .61, .45 and .43: it decays much more
    with depth.
    """,
    presets={
        preset: Config(ZOOS[preset], layers, PAIRS[preset], MEASURING[preset]) for preset, layers in ALL_LAYERS.items()
    },
)
def run(config: Config, context: Context) -> Findings:
    """Measure all pairs."""
    pairs = chosen_pairs(context, config.zoo, config.pairs)
    networks = load_networks(context, config.zoo, (number for pair in pairs for number in pair))
    found = similarities(context, networks, config.layers, pairs, config.measuring)
    images = len(drawn(networks.test, config.measuring.images))
    return Findings(
        numbers=numbers_of(found) | {"accuracy": accuracy_of(context, networks)},
        tables=tables_of(found),
        outcome=f"""
        {OUTCOME} {fall_sentence(found, "CKA")} In the paper it decays much more modulo G_ReLU.

        {PROCRUSTES} {fall_sentence(found, "Procrustes")}

        {matrix_sentence(found)}

        {networks_sentence(config.zoo)} {how_sentence(found, config.measuring, images)}
        """,
        figure=lambda: similarity_figure(found),
        caption=similarity_caption(found, "networks of different seeds"),
    )


OUTCOME = """
CKA is {g_relu_cka_first:.3f} modulo G_ReLU and {orthogonal_cka_first:.3f} modulo rotations at {first}, and
{g_relu_cka_last:.3f} and {orthogonal_cka_last:.3f} at {last}, in the mean of {pairs} pairs of networks with a test
accuracy of {accuracy:.1f} %.
"""

PROCRUSTES = """
The Procrustes similarity is {g_relu_procrustes_first:.3f} modulo G_ReLU and {orthogonal_procrustes_first:.3f} modulo
rotations at {first}, and {g_relu_procrustes_last:.3f} and {orthogonal_procrustes_last:.3f} at {last}.
"""
