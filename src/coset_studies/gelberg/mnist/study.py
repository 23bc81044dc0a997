"""MNIST by mean fields and by mean fields averaged over permutations (Gelberg et al. 2024, table 1)."""

from dataclasses import dataclass, replace

from coset.distribution import MeanField
from coset.study import Context, Findings, study
from coset_studies.gelberg.mnist._claims import CLAIMS, PUBLISHED
from coset_studies.gelberg.mnist._course import Moment, Training, best_exchange
from coset_studies.gelberg.mnist._figure import CAPTION, draw
from coset_studies.gelberg.mnist._fits import (
    BETTER,
    OTHER_NOISE,
    PIXELS,
    PLAIN,
    apart,
    course_of,
    outputs_accuracy,
    posterior_of,
    scores_of,
    symmetry_of,
)
from coset_studies.gelberg.mnist._page import TABLES, TEXT
from coset_studies.gelberg.mnist._report import Found, Row, Tried, Wide, numbers_of, tables_of


@dataclass(frozen=True)
class Beside:
    """What is tried beside the table, at ``width`` units.

    ``scan``: (initial deviation, prior's deviation) for MFVI of the first seed. ``wide``: initial deviations so large
    that the modes overlap, from each of ``seeds``. ``steps``: when the course of training is looked at, by ``draws``.
    """

    width: int
    scan: tuple[tuple[float, float], ...]
    wide: tuple[float, ...]
    seeds: int
    steps: tuple[int, ...]
    draws: int


@dataclass(frozen=True)
class Config:
    """MFVI and K permutations for each of ``permutations``, the last of them with as many ``seeds`` at every width.

    The others with ``few`` seeds, and the better estimator, at ``better_widths``.
    ``samples`` networks predict; ``repeats`` sets of them for the posteriors of the first seed. Up to ``exact_units``
    units the better estimator sums over all permutations.
    """

    data: str
    widths: tuple[int, ...]
    permutations: tuple[int, ...]
    seeds: int
    few: int
    better_widths: tuple[int, ...]
    exact_units: int
    samples: int
    repeats: int
    training: Training
    beside: Beside


_STEPS = (0, 1, 3, 10, 30, 60, 100, 150, 200, 300, 600, 1200, 2400, 4200)
_SCAN = ((0.01, 1.0), (0.15, 0.3), (0.05, 1.0), (0.1, 1.0), (0.2, 1.0), (0.15, 0.1))


@study(
    name="gelberg-mnist",
    title="MNIST with and without averaging over permutations",
    reference="Gelberg et al. 2024, Variational inference failures under model symmetries: permutation invariant "
    "posteriors for Bayesian neural networks, section 5, table 1",
    paper="""
    One hidden layer of 5, 10, 20 and 30 units, 10 epochs of batches of 100 with Adam at 1e-3, an isotropic Gaussian
    prior, predictions averaged over 1,000 sampled networks. Test accuracy of mean-field VI is 88.379, 93.217, 94.836
    and 95.432 %, with K = 20 permutations 88.408, 93.221, 94.905 and 95.552 %, each ± 0.02 to 0.03 over 10 runs with
    different random seeds. That is read as better predictions by symmetrized VI, the more so the wider the network. The
    scale of the prior and the initial deviations are not printed.
    """,
    presets={
        "quick": Config(
            "digits", (4, 6), (20,), 2, 1, (4,), exact_units=4, samples=50, repeats=2,
            training=Training(2, 100, 0.15, learning_rate=2e-2),
            beside=Beside(6, ((0.05, 1.0),), (0.5,), seeds=1, steps=(0, 10), draws=4),
        ),
        "small": Config(
            "mnist", (5, 10, 20, 30), (5, 10, 20), 3, 3, (5, 10, 20, 30), exact_units=10, samples=1000, repeats=2,
            training=Training(10, 100, 0.15), beside=Beside(20, _SCAN[:2], (0.5,), seeds=1, steps=_STEPS, draws=8),
        ),
        "paper": Config(
            "mnist", (5, 10, 20, 30), (5, 10, 20), 10, 10, (5, 10, 20, 30), exact_units=10, samples=1000, repeats=10,
            training=Training(10, 100, 0.15), beside=Beside(20, _SCAN, (0.5, 1.0), seeds=10, steps=_STEPS, draws=64),
        ),
    },
    claims=CLAIMS,
    text={"small": TEXT},
    tables=TABLES,
    figure=draw,
    caption=CAPTION,
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """The table, the course of training, a scan of what the paper does not print, and modes that overlap."""
    points = len(context.data(config.data, **PIXELS).train)
    found = Found(
        widths=config.widths,
        published=PUBLISHED if config.data == "mnist" else {},
        rows=_rows(config, context),
        repeats=_repeats(config, context),
        courses=_courses(config, context),
        scan=_scan(config, context),
        wide=_wide(config, context),
        width=config.beside.width,
        steps_per_epoch=-(-points // config.training.batch_size),
        training=config.training,
        samples=config.samples,
        exact_units=config.exact_units,
    )
    return Findings(numbers_of(found), tables_of(found))


def _posteriors(
    config: Config, context: Context, name: str, width: int, seeds: int, training: Training | None = None
) -> list[MeanField]:
    chosen = config.training if training is None else training
    return [
        posterior_of(context, config.data, chosen, name, width, seed, config.exact_units).posterior
        for seed in range(seeds)
    ]


def _rows(config: Config, context: Context) -> dict[tuple[int, str], Row]:
    counts = {width: _counts(config, width) for width in config.widths}
    rows: dict[tuple[int, str], Row] = {}
    with context.progress("posteriors of MNIST", sum(sum(each.values()) for each in counts.values())) as bar:
        for width in config.widths:
            plain = _posteriors(config, context, PLAIN, width, config.seeds)
            sym = symmetry_of(context, config.data, width)
            for name, count in counts[width].items():
                fits = _posteriors(config, context, name, width, count)
                # Other noise is compared by exact means of outputs, for which no network need be drawn.
                scored = [] if name == OTHER_NOISE else fits
                rows[width, name] = Row(
                    scores=[scores_of(context, config.data, q, width, config.samples) for q in scored],
                    outputs=[outputs_accuracy(context, config.data, q) for q in fits],
                    apart=[apart(q, own) for q, own in zip(fits, plain, strict=False)],
                    exchange=[best_exchange(sym, q) for q in fits],
                )
                bar.advance(count, note=f"{width} units, {name}")
    return rows


def _counts(config: Config, width: int) -> dict[str, int]:
    """How many seeds each method has at a width."""
    *others, last = (f"K = {K}" for K in config.permutations)
    counts = {PLAIN: config.seeds} | dict.fromkeys(others, config.few) | {last: config.seeds}
    better = {BETTER: config.few} if width in config.better_widths else {}
    return counts | better | {OTHER_NOISE: config.seeds}


def _repeats(config: Config, context: Context) -> dict[int, list[float]]:
    """Accuracy, %, of one posterior of each width by several sets of test draws."""
    found: dict[int, list[float]] = {}
    for width in config.widths:
        (q,) = _posteriors(config, context, PLAIN, width, 1)
        sets = [scores_of(context, config.data, q, width, config.samples, repeat) for repeat in range(config.repeats)]
        found[width] = [each["accuracy"] for each in sets]
    return found


def _courses(config: Config, context: Context) -> dict[float, list[Moment]]:
    beside = config.beside
    trainings = [replace(config.training, std=std) for std in (config.training.std, *beside.wide)]
    return {
        training.std: course_of(context, config.data, training, beside.width, beside.steps, beside.draws)
        for training in trainings
    }


def _scan(config: Config, context: Context) -> list[Tried]:
    width, found = config.beside.width, []
    sym = symmetry_of(context, config.data, width)
    for std, prior in ((config.training.std, config.training.prior), *config.beside.scan):
        training = replace(config.training, std=std, prior=prior)
        (q,) = _posteriors(config, context, PLAIN, width, 1, training)
        found.append(Tried(std, prior, outputs_accuracy(context, config.data, q), best_exchange(sym, q)))
    return sorted(found, key=lambda each: (each.prior, each.std))


def _wide(config: Config, context: Context) -> list[Wide]:
    beside, found = config.beside, []
    for std in beside.wide:
        training = replace(config.training, std=std)
        names = (PLAIN, f"K = {config.permutations[-1]}", BETTER)
        fits = {name: _posteriors(config, context, name, beside.width, beside.seeds, training) for name in names}
        base = [outputs_accuracy(context, config.data, q) for q in fits[PLAIN]]
        for name, each in fits.items():
            outputs = [outputs_accuracy(context, config.data, q) for q in each]
            largest = max(max(apart(q, own)) for q, own in zip(each, fits[PLAIN], strict=True))
            differences = [own - other for own, other in zip(outputs, base, strict=True)]
            found.append(Wide(std, name, outputs, differences, largest))
    return found
