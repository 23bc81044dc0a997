"""Similarities of networks whose layers all have as many channels: is the decay of G_ReLU CKA one of the maximum?"""

from dataclasses import dataclass, replace

from coset.study import Claim, Context, Estimate, Findings, Results, Scalar, Table, study
from coset.study.estimates import difference
from coset.study.images import Images
from coset.train import Recipe
from coset_studies.godfrey._claims import OVER_PAIRS, SIGN, SIZED, excess_fall, interval, over_pairs
from coset_studies.godfrey._plain import LAYERS, MYRTLE, MYRTLE_LAYERS, PAIRS, ZOOS
from coset_studies.godfrey._similarity import Measuring, Similarities, similarities
from coset_studies.godfrey._similarity_report import CAPTION, layer_table, numbers_of, similarity_figure, tables_of
from coset_studies.godfrey._zoo import Pairs, Zoo, accuracy_of, chosen_pairs, load_networks

PUBLISHED = {
    "activation1": (0.8176, 0.8460),
    "activation2": (0.7602, 0.6735),
    "activation3": (0.5691, 0.5409),
    "activation4": (0.4971, 0.6050),
}
"""Table 4: Procrustes similarities modulo G_ReLU and modulo rotations."""
EXCESS = 0.08
"""How much more they fall modulo G_ReLU there: 0.321 less 0.241."""


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


def _growing_excess(results: Results) -> Estimate | None:
    """How much more CKA falls modulo G_ReLU with growing width, from the ranges of the pairs at both ends."""
    table = results.tables["growing-width"]
    ends = table.rows[0][0], table.rows[-1][0]

    def at(measure: str, layer: Scalar) -> Estimate | None:
        cells = [
            table.cell(name, {"layer": layer, "measure": measure}) for name in ("mean", "lowest pair", "highest pair")
        ]
        return interval(*cells)

    falls = [difference(*(at(f"{group} CKA", layer) for layer in ends)) for group in ("G_ReLU", "orthogonal")]
    return difference(*falls)


CLAIMS = (
    Claim(
        paper="G_ReLU CKA decays with depth in networks of constant width, too.",
        source="D.8, fig. 16",
        statistic="constant width: fall of CKA from first to last layer modulo G_ReLU, less that modulo rotations",
        direction="above",
        threshold=0.0,
        reason=SIGN,
        interval=OVER_PAIRS,
        possible=(-2.0, 2.0),
        estimate=lambda results: over_pairs(results, excess_fall("CKA")),
    ),
    Claim(
        paper="The measures look much as in networks whose width grows.",
        source="D.8, fig. 16",
        statistic="growing width: fall of CKA modulo G_ReLU, less that modulo rotations",
        direction="above",
        threshold=0.0,
        reason=SIGN,
        interval="Of growing width the range of the pairs is known by layer: the interval is of all their differences.",
        possible=(-2.0, 2.0),
        estimate=_growing_excess,
    ),
    Claim(
        paper="Procrustes falls from .818 to .497 modulo G_ReLU, and from .846 to .605 modulo rotations.",
        source="D.8, table 4",
        statistic="constant width: fall of Procrustes modulo G_ReLU, less that modulo rotations",
        direction="above",
        published=EXCESS,
        threshold=0.0,
        reason=SIZED,
        interval=OVER_PAIRS,
        possible=(-2.0, 2.0),
        estimate=lambda results: over_pairs(results, excess_fall("Procrustes")),
    ),
)
TEXT = """
A maximum over more channels is larger, so that the decay of G_ReLU CKA might be one of the growing width. With
constant width it falls by {g_relu_cka_fall:.2f} modulo G_ReLU and by {orthogonal_cka_fall:.2f} modulo rotations: it
decays without growing width.

With growing width there is nearly no decay to explain: {growing_g_relu_cka_fall:.3f} and
{growing_orthogonal_cka_fall:.3f}. The first layer, of eight channels, has a CKA of only
{growing-width[activation1, G_ReLU CKA][mean]:.2f} there, and pairs differ by more than the fall. That is unlike the
paper, whose first layer has 64 channels.

Procrustes falls by less modulo G_ReLU ({g_relu_procrustes_fall:.2f}) than modulo rotations
({orthogonal_procrustes_fall:.2f}); in the paper by more.

Networks are three Myrtle CNNs with 32 channels in all layers, and three with 8 to 64 (there 512, and 64 to 512),
trained for four epochs on 6,000 images to {constant_accuracy:.1f} and {growing_accuracy:.1f} % test accuracy. The two
kinds also differ in their number of weights, so that how much the width itself adds is not measured.
"""


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
            ZOOS["quick"],
            LAYERS["quick"],
            PAIRS["quick"],
            Measuring(100, 25, draws=20),
        ),
        "small": Config(
            _FEW,
            replace(_FEW, options=(("width", 32), ("constant", True))),
            MYRTLE_LAYERS,
            ((0, 1), (1, 2), (0, 2)),
            Measuring(None, 100, draws=400),
        ),
        "paper": _PAPER,
    },
    claims=CLAIMS,
    text={"small": TEXT},
    tables={
        "published": "Procrustes similarities of constant width beside those of table 4.",
    },
    figure=similarity_figure,
    caption=CAPTION,
)
def run(config: Config, context: Context) -> Findings:
    """Measure the pairs of both zoos."""
    found: dict[str, Similarities] = {}
    accuracies: dict[str, Scalar] = {}
    for name, zoo in (("constant", config.constant), ("growing", config.growing)):
        pairs = chosen_pairs(context, zoo, config.pairs)
        networks = load_networks(context, zoo, (number for pair in pairs for number in pair))
        found[name] = similarities(context, networks, config.layers, pairs, config.measuring)
        accuracies[f"{name}_accuracy"] = accuracy_of(context, networks)
        accuracies["tested"] = len(networks.test)
    constant, growing = found["constant"], found["growing"]
    others = {f"growing_{name}": value for name, value in numbers_of(growing).items()}
    return Findings(
        numbers=numbers_of(constant) | others | accuracies,
        tables={**tables_of(constant), "published": _published_table(constant), "growing-width": layer_table(growing)},
    )


def _published_table(found: Similarities) -> Table:
    """Procrustes similarities beside those of table 4, where layers have the names of the paper's network."""
    rows: list[list[Scalar]] = []
    for number, layer in enumerate(found.layers):
        ours = [found.mean(f"{group} Procrustes", number).value for group in ("G_ReLU", "orthogonal")]
        theirs: tuple[Scalar, Scalar] = PUBLISHED.get(layer, (None, None))
        rows.append([layer, ours[0], theirs[0], ours[1], theirs[1]])
    columns = ("layer", "G_ReLU", "G_ReLU, published", "orthogonal", "orthogonal, published")
    return Table(columns, rows, "Procrustes similarities beside those of table 4.")
