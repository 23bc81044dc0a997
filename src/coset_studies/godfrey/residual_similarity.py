"""Similarity of the layers of residual networks (Godfrey et al. 2022, D.3): findings in words."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coset.represent import Interval
from coset.study import Context, Findings, Scalar
from coset_studies.godfrey._residual import Places
from coset_studies.godfrey._setting import LAST_EPOCH, sentence, zoo_differences
from coset_studies.godfrey._similarity import (
    GROUPS,
    MEASURES,
    PROCRUSTES,
    Measuring,
    Similarities,
    percentiles,
    similarities,
)
from coset_studies.godfrey._similarity_report import (
    fall_sentence,
    how_sentence,
    matrix_sentence,
    numbers_of,
    similarity_caption,
    similarity_figure,
    tables_of,
    word,
)
from coset_studies.godfrey._zoo import Pairs, Zoo, accuracy_of, chosen_pairs, drawn, load_networks

ALIKE = 0.8
"""A correlation over layers above which two measures count here as qualitatively similar; the paper has no number."""


@dataclass(frozen=True)
class SimilarityConfig:
    """All measures between the layers of ``places``, for ``pairs`` of a zoo."""

    zoo: Zoo
    places: Places
    pairs: Pairs
    measuring: Measuring


def similarity_findings(
    config: SimilarityConfig,
    paper: SimilarityConfig,
    context: Context,
    extra: Callable[[Similarities], tuple[str, dict[str, Scalar]]] | None = None,
    earlier: str = "",
) -> Findings:
    """Measure all pairs, and judge what the paper says of them.

    ``extra``: one more sentence, and its numbers. ``earlier``: runs that were seen before the settings were chosen.
    """
    pairs = chosen_pairs(context, config.zoo, config.pairs)
    networks = load_networks(context, config.zoo, (number for pair in pairs for number in pair))
    labels = config.places.labels()
    named = similarities(context, networks, tuple(labels), pairs, config.measuring)
    found = replace(named, layers=tuple(labels.values()))
    alike, blocks = correlation(found), {measure: inside_less_outside(found, measure) for measure in MEASURES}
    more, more_numbers = extra(found) if extra else ("", {})
    smaller = [*zoo_differences(config.zoo, paper.zoo), LAST_EPOCH]
    if len(pairs) != paper.pairs:
        smaller.append(f"{len(pairs)} pair{'s are' if len(pairs) > 1 else ' is'} compared (there {paper.pairs})")
    images = len(drawn(networks.test, config.measuring.images))
    numbers = numbers_of(found) | {
        "accuracy": accuracy_of(context, networks),
        "first": f"layer {found.layers[0]}",
        "last": f"layer {found.layers[-1]}",
        **_ends("correlation", alike),
        **{name: value for measure, one in blocks.items() for name, value in _ends(f"{word(measure)}_in", one).items()},
        **more_numbers,
    }
    return Findings(
        numbers=numbers,
        tables=tables_of(found),
        outcome=f"""
        {OUTCOME} {fall_sentence(found, "CKA")} In the paper it decays much more modulo G_ReLU.

        {judge_procrustes(alike)} {fall_sentence(found, "Procrustes")}

        {judge_blocks(blocks)} {matrix_sentence(found)} {more}

        {how_sentence(found, config.measuring, images)} {sentence(smaller)} {earlier}
        """,
        figure=lambda: similarity_figure(found),
        caption=similarity_caption(
            found, "networks of different seeds, numbered by convolutions, those inside of residual blocks marked *"
        ),
    )


OUTCOME = """
CKA is {g_relu_cka_first:.3f} modulo G_ReLU and {orthogonal_cka_first:.3f} modulo rotations at {first}, and
{g_relu_cka_last:.3f} and {orthogonal_cka_last:.3f} at {last}, between networks with an accuracy of
{accuracy:.1f} % on all test images.
"""


def _ends(name: str, interval: Interval) -> dict[str, Scalar]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def correlation(found: Similarities) -> Interval:
    """Of the two Procrustes similarities over layers, in the mean of the pairs, with its interval over images."""
    values = [found.values[measure].mean(0) for measure in PROCRUSTES]
    draws = [found.draws[measure].mean(0).T for measure in PROCRUSTES]
    return percentiles(float(_correlation(*values)), _correlation(*draws))


def _correlation(one: Tensor, other: Tensor) -> Tensor:
    """Pearson's, over the last axis."""
    one, other = (part - part.mean(-1, keepdim=True) for part in (one, other))
    found: Tensor = torch.nn.functional.cosine_similarity(one, other, dim=-1)
    return found


def judge_procrustes(alike: Interval) -> str:
    """Whether the two Procrustes similarities tell the same of the layers, as the paper says."""
    told = (
        "Over the layers the Procrustes similarities modulo G_ReLU and modulo rotations have a correlation of "
        "{correlation:.2f} ({correlation_low:.2f} to {correlation_high:.2f})"
    )
    bound = f"{ALIKE:g}, a bound that is ours and not the paper's"
    if alike.low > ALIKE:
        return f"{told}, above {bound}: the two are qualitatively similar, as in the paper."
    if alike.high < ALIKE:
        return f"{told}, below {bound}, while the paper calls them qualitatively similar."
    return f"{told}, which leaves open whether it is above {bound}; the paper calls them qualitatively similar."


def inside_less_outside(found: Similarities, measure: str) -> Interval:
    """The mean similarity of the layers inside of blocks, less that of the others, with its interval over images."""
    inside = torch.tensor([layer.endswith("*") for layer in found.layers])
    values, draws = found.values[measure].mean(0), found.draws[measure].mean(0)
    return percentiles(
        float(values[inside].mean() - values[~inside].mean()), draws[inside].mean(0) - draws[~inside].mean(0)
    )


def judge_blocks(blocks: dict[str, Interval]) -> str:
    """Whether layers inside of blocks are less similar than those outside."""
    told = []
    for kind in ("CKA", "Procrustes"):
        parts = []
        for group in GROUPS:
            name, one = word(f"{group} {kind}"), blocks[f"{group} {kind}"]
            verdict = "lower" if one.high < 0 else "higher" if one.low > 0 else "not told apart"
            modulo = "G_ReLU" if group == "G_ReLU" else "rotations"
            parts.append(
                f"{verdict} modulo {modulo} ({{{name}_in:+.3f}}, {{{name}_in_low:+.3f}} to {{{name}_in_high:+.3f}})"
            )
        told.append(f"{kind} is {' and '.join(parts)}")
    return f"Inside of blocks, against outside, {'; '.join(told)}."
