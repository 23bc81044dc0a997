"""In what a run is smaller than that of Godfrey et al. 2022, told by its settings beside those of the preset paper."""

from typing import Any

from coset_studies.godfrey._penalties import INTERVALS
from coset_studies.godfrey._stitching import ENOUGH_PAIRS, Penalties, Training
from coset_studies.godfrey._zoo import Pairs, Zoo

_REGULARIZERS = {"mixup": "mixup", "cutmix": "CutMix", "label_smoothing": "label smoothing"}
LAST_EPOCH = "weights are those of the last epoch (there of the best on validation images)"


def zoo_differences(zoo: Zoo, paper: Zoo) -> list[str]:
    """Images, networks and their training."""
    images, recipe, published = zoo.images, zoo.recipe, paper.recipe
    parts = [] if images.data == paper.images.data else [f"the images are {images.data}"]
    if images.pool > 1:
        parts.append(f"pixels are averaged in squares of {images.pool}×{images.pool}")
    if images.train is not None:
        parts.append(f"there are {images.train:,} train images")
    parts += _options(dict(zoo.options), dict(paper.options))
    if zoo.networks != paper.networks:
        parts.append(f"{zoo.networks} networks are trained (there {paper.networks})")
    if recipe is not None and published is not None and recipe != published:
        parts.append(
            f"for {recipe.epochs} epochs in batches of {recipe.batch_size} at a rate of {recipe.learning_rate:g} that "
            f"falls by a {recipe.schedule} (there {published.epochs}, {published.batch_size}, "
            f"{published.learning_rate:g}, {published.schedule})"
        )
        if recipe.augmentation != published.augmentation:
            parts.append(f"with the augmentation '{recipe.augmentation}' (there '{published.augmentation}')")
        absent = [
            said for name, said in _REGULARIZERS.items() if getattr(published, name) and not getattr(recipe, name)
        ]
        parts += [f"without {', '.join(absent)}"] if absent else []
    return parts


def _options(own: dict[str, Any], published: dict[str, Any]) -> list[str]:
    changed = [f"{name} {_plain(value)}" for name, value in own.items() if published.get(name) != value]
    return [f"networks have {', '.join(changed)}"] if changed else []


def _plain(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


def stitching_differences(training: Training, paper: Training, pairs: Pairs, paper_pairs: Pairs) -> list[str]:
    """Pairs, and the training of maps."""
    parts = []
    if pairs != paper_pairs:
        count = _count(pairs)
        stitched = "1 ordered pair is stitched" if count == 1 else f"{count} ordered pairs are stitched"
        parts.append(f"{stitched} (there {_count(paper_pairs)})")
    if training != paper:
        parts.append(
            f"maps train on {_images(training.images)} images for {training.epochs} epochs in batches of "
            f"{training.batch_size} at a rate of {training.learning_rate:g} (there all images, {paper.epochs}, "
            f"{paper.batch_size} and {paper.learning_rate:g}), and are judged on {_images(training.held_out)} test "
            f"images{'' if training.held_out is None else ' (there all)'}"
        )
    if training.start != "random":
        parts.append("unless told otherwise maps begin at the least-squares one of their family (there at random)")
    parts.append("train images of the maps are not moved (there they are)")
    parts.append("all maps have a momentum of 0.9 (D.2.1; D.2 has none for full maps and those of low rank)")
    return parts


def _count(pairs: Pairs) -> int:
    return pairs if isinstance(pairs, int) else len(pairs)


def _images(count: int | None) -> str:
    return "all" if count is None else f"{count:,}"


def earlier_sentence(before: str) -> str:
    """What had been seen when the settings of a preset were chosen."""
    return (
        f"The settings of this preset were chosen by the time they take, after shorter runs of this study had been "
        f"seen and published: {before}."
    )


def interval_sentence(found: Penalties) -> str:
    """Over what intervals are."""
    count = len(found.pairs)
    if count >= ENOUGH_PAIRS:
        return INTERVALS
    whose = "of one pair" if count == 1 else f"of these {count} pairs"
    return f"Intervals are of 95 %, over resamples of test images; {whose} they say nothing about other networks."


def sentence(parts: list[str]) -> str:
    """The differences as one sentence; empty where there are none."""
    return f"What is smaller or different here: {'; '.join(parts)}." if parts else ""
