"""Similarities of networks whose layers all have as many channels: is the decay of G_ReLU CKA one of the maximum?"""

from dataclasses import dataclass, replace

from coset.study import Context, Findings, Scalar, Table, study
from coset.study.images import Images
from coset.train import Recipe
from coset_studies.godfrey._plain import LAYERS, MYRTLE, MYRTLE_LAYERS, PAIRS, ZOOS, networks_sentence
from coset_studies.godfrey._setting import LAST_EPOCH, sentence, zoo_differences
from coset_studies.godfrey._similarity import Measuring, Similarities, similarities
from coset_studies.godfrey._similarity_report import (
    excess_fall,
    fall_sentence,
    how_sentence,
    layer_table,
    numbers_of,
    pairs_with_excess,
    similarity_caption,
    similarity_figure,
    tables_of,
)
from coset_studies.godfrey._zoo import Pairs, Zoo, accuracy_of, chosen_pairs, drawn, load_networks

PUBLISHED = {
    "activation1": (0.8176, 0.8460),
    "activation2": (0.7602, 0.6735),
    "activation3": (0.5691, 0.5409),
    "activation4": (0.4971, 0.6050),
}
"""Table 4: Procrustes similarities modulo G_ReLU and modulo rotations."""


@dataclass(frozen=True)
class Config:
    """A zoo of networks whose width grows with depth, and one of networks whose width does not."""

    growing: Zoo
    constant: Zoo
    layers: tuple[str, ...]
    pairs: Pairs
    measuring: Measuring


_FEW = Zoo(
    "myrtle",
    Images("cifar10", train=6000, test=2000),
    3,
    Recipe(epochs=4, batch_size=100, optimizer="adam", learning_rate=5e-3, schedule="cosine"),
    (("width", 8),),
)
_PAPER = Config(
    MYRTLE, replace(MYRTLE, networks=8, options=(("constant", True),)), MYRTLE_LAYERS, 4, Measuring(None, 500)
)
_MLP = {"in_features": 64, "out_features": 10}


@study(
    name="godfrey-constant-width",
    title="Similarity of layers of networks of constant width",
    reference="Godfrey et al. 2022, appendix D.8, table 4 and fig. 16 (Myrtle CNNs with 512 channels in all layers)",
    paper="""
    A maximum over more channels is larger, so that the decay of G_ReLU CKA with depth might be one of the growing
    width. In networks with 512 channels throughout, the four measures look much as in those whose width grows: G_ReLU
    CKA decays there, too. Procrustes similarities fall from .818 to .497 modulo G_ReLU and from .846 to .605 modulo
    rotations.
    """,
    presets={
        "quick": Config(
            replace(ZOOS["quick"], options=tuple({**_MLP, "widths": (6, 12)}.items())),
            ZOOS["quick"], LAYERS["quick"], PAIRS["quick"], Measuring(100, 25, draws=20),
        ),
        "small": Config(
            _FEW, replace(_FEW, options=(("width", 32), ("constant", True))),
            MYRTLE_LAYERS, ((0, 1), (1, 2), (0, 2)), Measuring(None, 100, draws=400),
        ),
        "paper": _PAPER,
    },
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """Measure the pairs of both zoos."""
    found: dict[str, Similarities] = {}
    accuracies: dict[str, Scalar] = {}
    for name, zoo in (("constant", config.constant), ("growing", config.growing)):
        pairs = chosen_pairs(context, zoo, config.pairs)
        networks = load_networks(context, zoo, (number for pair in pairs for number in pair))
        found[name] = similarities(context, networks, config.layers, pairs, config.measuring)
        accuracies[f"{name}_accuracy"] = accuracy_of(context, networks)
        images = len(drawn(networks.test, config.measuring.images))
        accuracies["tested"] = len(networks.test)
    constant, growing = found["constant"], found["growing"]
    numbered = replace(constant, layers=tuple(str(number) for number, _ in enumerate(constant.layers, 1)))
    others = {f"growing_{name}": value for name, value in numbers_of(growing).items()}
    return Findings(
        numbers=numbers_of(constant) | others | accuracies,
        tables={**tables_of(constant), "published": _published_table(constant), "growing-width": layer_table(growing)},
        outcome=f"""
        With constant width ({{constant_accuracy:.1f}} % of all {{tested:,}} test images right):
        {fall_sentence(constant, "CKA")} {fall_sentence(constant, "Procrustes")}

        {GROWING} {judge(constant, growing)}

        {networks_sentence(config.constant)} {how_sentence(constant, config.measuring, images)}
        {sentence(_smaller(config))}
        """,
        figure=lambda: similarity_figure(numbered),
        caption=similarity_caption(constant, "networks of constant width and different seeds, numbered in their order"),
    )


def judge(constant: Similarities, growing: Similarities) -> str:
    """Where G_ReLU CKA was seen to fall by more than orthogonal CKA."""
    one, other = (_decays(found) for found in (constant, growing))
    if one and other:
        seen = "with both widths, as in the paper"
    elif one:
        seen = "with constant width, as in the paper, and is not shown with growing width, where the paper has it, too"
    elif other:
        seen = "with growing width, and is not shown with constant width; in the paper it is there with both"
    else:
        return (
            "That G_ReLU CKA falls by more than CKA modulo rotations is shown with neither width; in the paper it does "
            "with both."
        )
    return f"That G_ReLU CKA falls by more than CKA modulo rotations was measured {seen}. {SEPARATED}"


def _decays(found: Similarities) -> bool:
    """Whether the mean of the pairs falls by more, and every pair does."""
    return excess_fall(found, "CKA").low > 0 and pairs_with_excess(found, "CKA") == len(found.pairs)


def _smaller(config: Config) -> list[str]:
    """What is smaller than in the paper; of networks of another architecture another sentence tells."""
    if config.constant.model != MYRTLE.model or config == _PAPER:
        return []
    constant, growing = (dict(zoo.options)["width"] for zoo in (config.constant, config.growing))
    parts = zoo_differences(replace(config.constant, options=_PAPER.constant.options), _PAPER.constant)
    count = config.pairs if isinstance(config.pairs, int) else len(config.pairs)
    return [
        f"layers have {constant} channels (there 512), or {growing}, {2 * growing}, {4 * growing} and {8 * growing} "
        f"(there 64 to 512)",
        *parts,
        LAST_EPOCH,
        f"{count} pairs are compared (there {_PAPER.pairs})",
    ]


SEPARATED = """
The two kinds of networks differ in the width of every layer, in their number of weights and in accuracy, so that how
much the width adds to the fall is not measured.
"""


def _published_table(found: Similarities) -> Table:
    """Procrustes similarities beside those of table 4, where layers have the names of the paper's network."""
    rows: list[list[Scalar]] = []
    for number, layer in enumerate(found.layers):
        ours = [found.mean(f"{group} Procrustes", number).value for group in ("G_ReLU", "orthogonal")]
        theirs: tuple[Scalar, Scalar] = PUBLISHED.get(layer, (None, None))
        rows.append([layer, ours[0], theirs[0], ours[1], theirs[1]])
    columns = ("layer", "G_ReLU", "G_ReLU, published", "orthogonal", "orthogonal, published")
    return Table(columns, rows, "Procrustes similarities beside those of table 4.")


GROWING = """
In the paper Procrustes falls by more modulo G_ReLU with constant width, by 0.321 against 0.241. With growing width
({growing_accuracy:.1f} % right) falls from the first layer to the last are {growing_g_relu_cka_fall:.3f} modulo G_ReLU
and {growing_orthogonal_cka_fall:.3f} modulo rotations by CKA, which differ by {growing_cka_excess:.3f}
({growing_cka_excess_low:.3f} to {growing_cka_excess_high:.3f}), and {growing_g_relu_procrustes_fall:.3f} and
{growing_orthogonal_procrustes_fall:.3f} by Procrustes.
"""
