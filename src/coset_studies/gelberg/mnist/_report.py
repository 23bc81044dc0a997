"""Numbers and tables of the study of symmetrized VI on MNIST."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from coset.study import Scalar, Table
from coset_studies.gelberg.mnist._course import Moment, Training
from coset_studies.gelberg.mnist._fits import BETTER, OTHER_NOISE, PLAIN

SMALL = 1e-6
"""Entries of a gradient below this, beside 1 of the entropy's, count as none."""
SATURATED = 1e-9
"""I(g; ω) counts as log n! when this share of it is missing."""

PAPER_RUNS, PAPER_SAMPLES = 10, 1000
"""Runs behind a mean, and networks that predict, in the paper."""

Published = Mapping[str, Mapping[int, tuple[float, float]]]


@dataclass(frozen=True)
class Row:
    """One method at one width, a value for each seed.

    ``scores`` of mean probabilities, accuracies (%) of exact mean ``outputs``, how far means and logarithms of
    deviations are ``apart`` from MFVI's of the seed, and the largest E_q[Δ] of an ``exchange``.
    """

    scores: Sequence[Mapping[str, float]]
    outputs: Sequence[float]
    apart: Sequence[tuple[float, float]]
    exchange: Sequence[float]

    def mean(self, name: str) -> float:
        """Of a score."""
        return statistics.fmean(each[name] for each in self.scores)

    @property
    def accuracies(self) -> list[float]:
        """Of mean probabilities, %."""
        return [each["accuracy"] for each in self.scores]


@dataclass(frozen=True)
class Tried:
    """MFVI from deviations ``std`` under N(0, ``prior``²): accuracy of mean outputs (%), largest E_q[Δ]."""

    std: float
    prior: float
    accuracy: float
    exchange: float


@dataclass(frozen=True)
class Wide:
    """A method from wide deviations: accuracies of mean outputs (%), less MFVI's, and how far means are apart."""

    std: float
    name: str
    outputs: Sequence[float]
    differences: Sequence[float]
    apart: float


@dataclass(frozen=True)
class Found:
    """All that the study found; ``width``: of courses, scan and wide deviations."""

    widths: Sequence[int]
    published: Published
    rows: Mapping[tuple[int, str], Row]
    repeats: Mapping[int, Sequence[float]]
    courses: Mapping[float, Sequence[Moment]]
    scan: Sequence[Tried]
    wide: Sequence[Wide]
    width: int
    steps_per_epoch: int
    training: Training
    samples: int
    exact_units: int

    @property
    def names(self) -> list[str]:
        """The methods that were run, in order."""
        return [name for name in (PLAIN, *self.uniform, BETTER, OTHER_NOISE) if self.of([name])]

    def of(self, names: Collection[str]) -> dict[tuple[int, str], "Row"]:
        """The rows of some methods."""
        return {key: row for key, row in self.rows.items() if key[1] in names}

    @property
    def uniform(self) -> list[str]:
        """The methods with uniform permutations, by their number."""
        found = {name for _, name in self.rows if name.startswith("K = ")}
        return sorted(found, key=lambda name: int(name.removeprefix("K = ")))

    def differences(self, width: int, name: str) -> list[float]:
        """Accuracy less that of MFVI of the same seed, in points; of mean outputs for other noise."""
        row, plain = self.rows[width, name], self.rows[width, PLAIN]
        pairs = zip(
            *((each.outputs if name == OTHER_NOISE else each.accuracies) for each in (row, plain)), strict=False
        )
        return [one - other for one, other in pairs]

    def published_difference(self, width: int, name: str) -> float | None:
        """The paper's, in points."""
        if width not in self.published.get(name, {}):
            return None
        return self.published[name][width][0] - self.published[PLAIN][width][0]


def settled(moments: Sequence[Moment], is_settled: Sequence[bool]) -> int | None:
    """The first step looked at from which on all are settled; None if the last is not."""
    unsettled = [number for number, fine in enumerate(is_settled) if not fine]
    first = unsettled[-1] + 1 if unsettled else 0
    return moments[first].step if first < len(moments) else None


def key_of(name: str) -> str:
    """A method's name within those of numbers: plain, better, k5."""
    return {PLAIN: "plain", BETTER: "better"}.get(name, name.replace("K = ", "k"))


def place(std: float) -> str:
    """A deviation within the names of numbers, where templates allow no dot."""
    return f"{std:g}".replace(".", "_")


def root_mean_square(values: Sequence[float]) -> float:
    """√ of the mean of squares."""
    return math.sqrt(statistics.fmean(value**2 for value in values))


def numbers_of(found: Found) -> dict[str, Scalar]:
    """What the text is filled from."""
    rows, moments = found.rows, found.courses[found.training.std]
    last = found.uniform[-1]
    uniform, better = found.of(found.uniform), found.of([BETTER])
    changes = [each for key in better for each in found.differences(*key)]
    draws = math.sqrt(statistics.fmean(statistics.variance(each) for each in found.repeats.values()))
    noise = {width: root_mean_square(found.differences(width, OTHER_NOISE)) for width in found.widths}
    seeds = {width: statistics.stdev(rows[width, PLAIN].accuracies) for width in found.widths}
    numbers: dict[str, Scalar] = {
        "seeds": len(rows[found.widths[0], PLAIN].outputs),
        "few": len(next(iter(better.values())).outputs),
        "better_widths": ", ".join(str(width) for width, _ in better),
        "samples": found.samples,
        "std": found.training.std,
        "prior": found.training.prior,
        "epochs": found.training.epochs,
        "width": found.width,
        "exact_units": found.exact_units,
        "last": last,
        "uniform_fits": sum(len(row.apart) for row in uniform.values()),
        "uniform_equal": sum(pair == (0.0, 0.0) for row in uniform.values() for pair in row.apart),
        "uniform_apart": max(pair[0] for row in uniform.values() for pair in row.apart),
        "uniform_difference": max(abs(each) for key in uniform for each in found.differences(*key)),
        "last_apart": max(pair[0] for width in found.widths for pair in rows[width, last].apart),
        "better_equal": sum(pair == (0.0, 0.0) for row in better.values() for pair in row.apart),
        "better_fits": sum(len(row.apart) for row in better.values()),
        "better_apart": max(pair[0] for row in better.values() for pair in row.apart),
        "better_difference": max(map(abs, changes)),
        "better_rms": root_mean_square(changes),
        "noise_rms": root_mean_square([x for width in found.widths for x in found.differences(width, OTHER_NOISE)]),
        "noise_apart": min(pair[0] for width in found.widths for pair in rows[width, OTHER_NOISE].apart),
        "draws_std": draws,
        "paper_samples": PAPER_SAMPLES,
        "least_seed_std": min(seeds.values()),
        "largest_seed_std": max(seeds.values()),
        "least_noise": min(noise.values()),
        "largest_noise": max(noise.values()),
        "start_exchange": moments[0].exchange,
        "end_exchange": moments[-1].exchange,
        "least_end_exchange": min(min(rows[width, PLAIN].exchange) for width in found.widths),
        "largest_end_exchange": max(max(rows[width, PLAIN].exchange) for width in found.widths),
        "nearest": max(moment.nearest for moment in moments),
        "least_information": min(moment.information for moment in moments),
        "largest_uniform": max(moment.uniform for moment in moments),
        "largest_guided": max(moment.guided for moment in moments),
        "guided_settled": settled(moments, [moment.guided < SMALL for moment in moments]),
        "saturated": settled(moments, [moment.information > 1 - SATURATED for moment in moments]),
        "steps_per_epoch": found.steps_per_epoch,
    }
    for width in found.widths:
        numbers[f"noise_{width}"], numbers[f"seed_std_{width}"] = noise[width], seeds[width]
    numbers |= {
        f"accuracy_{width}_{key_of(name)}": row.mean("accuracy") for (width, name), row in rows.items() if row.scores
    }
    return numbers | _compared(found, noise, seeds, draws) | _wide_numbers(found) | _scan_numbers(found)


def _compared(found: Found, noise: Mapping[int, float], seeds: Mapping[int, float], draws: float) -> dict[str, Scalar]:
    """Beside the paper's numbers, where there are some."""
    if not found.published:
        return {}
    widths = [width for width in found.widths if width in found.published[PLAIN]]
    rows, last = found.rows, found.uniform[-1]
    gaps = [rows[width, PLAIN].mean("accuracy") - found.published[PLAIN][width][0] for width in widths]
    gains = {width: found.published_difference(width, last) or 0.0 for width in widths}
    spreads = [pair[1] for each in found.published.values() for pair in each.values()]
    return {
        "largest_gap": max(map(abs, gaps)),
        "least_gain": min(gains.values()),
        "largest_gain": max(gains.values()),
        "widest": widths[-1],
        "widest_gain": gains[widths[-1]],
        "least_spread": min(spreads),
        "largest_spread": max(spreads),
        # Of means over as many runs as the published ones are.
        "gains_within_noise": sum(abs(gains[width]) < 2 * noise[width] / math.sqrt(PAPER_RUNS) for width in widths),
        "gains": len(widths),
        "spread_of_draws": found.samples == PAPER_SAMPLES
        and max(spreads) < min(seeds.values())
        and max(spreads) / 2 < draws < 2 * max(spreads),
    }


def _wide_numbers(found: Found) -> dict[str, Scalar]:
    numbers: dict[str, Scalar] = {}
    for each in found.wide:
        key = key_of(each.name)
        numbers[f"wide_{place(each.std)}_{key}"] = statistics.fmean(each.outputs)
        numbers[f"wide_{place(each.std)}_{key}_apart"] = each.apart
        numbers[f"wide_{place(each.std)}_{key}_difference"] = statistics.fmean(each.differences)
        numbers[f"wide_{place(each.std)}_{key}_rms"] = root_mean_square(each.differences)
    for std, moments in found.courses.items():
        numbers[f"start_information_{place(std)}"] = moments[0].information
        numbers[f"end_information_{place(std)}"] = moments[-1].information
        numbers[f"end_exchange_{place(std)}"] = moments[-1].exchange
        numbers[f"end_uniform_{place(std)}"], numbers[f"end_guided_{place(std)}"] = (
            moments[-1].uniform,
            moments[-1].guided,
        )
    return numbers


def _scan_numbers(found: Found) -> dict[str, Scalar]:
    narrowest = min(found.scan, key=lambda each: each.std)
    return {"narrow_std": narrowest.std, "narrow_exchange": narrowest.exchange}


def tables_of(found: Found) -> dict[str, Table]:
    """Table 1, what is left of it at equal seeds, the course of training, the scan, and wide deviations."""
    return {
        "accuracy": _accuracy_table(found),
        "same-seed": _same_seed_table(found),
        "course": _course_table(found),
        "scan": _scan_table(found),
        "wide": _wide_table(found),
    }


def _accuracy_table(found: Found) -> Table:
    columns = ["units", "method", "paper, %", "± paper", "seeds", "accuracy, %", "± seeds", "NLL", "ECE",
               "mean outputs, %"]  # fmt: skip
    rows: list[list[Scalar]] = []
    for (width, name), row in found.rows.items():
        if name != OTHER_NOISE:
            paper = found.published.get(name, {}).get(width, (None, None))
            spread = statistics.stdev(row.accuracies) if len(row.scores) > 1 else None
            means = [row.mean("nll"), row.mean("ece"), statistics.fmean(row.outputs)]
            rows.append([width, name, *paper, len(row.scores), row.mean("accuracy"), spread, *means])
    text = (
        f"Means over seeds, predictions by mean probabilities of {found.samples:,} networks; ±: standard deviation. "
        f"The better estimator sums over all permutations up to {found.exact_units} units, and draws 20 guided ones "
        "beyond. Mean outputs: accuracy of E_q[f], exactly."
    )
    return Table(columns, rows, text)


def _same_seed_table(found: Found) -> Table:
    columns = ["units", "method", "equal fits", "of", "means apart", "log σ apart", "difference, points", "± seeds",
               "paper's difference", "E[Δ], nats"]  # fmt: skip
    rows: list[list[Scalar]] = []
    for (width, name), row in found.rows.items():
        if name != PLAIN:
            equal = sum(pair == (0.0, 0.0) for pair in row.apart)
            largest = [max(pair[part] for pair in row.apart) for part in (0, 1)]
            differences = found.differences(width, name)
            spread = statistics.stdev(differences) if len(differences) > 1 else None
            paper = found.published_difference(width, name)
            paired = [statistics.fmean(differences), spread, paper, max(row.exchange)]
            rows.append([width, name, equal, len(row.apart), *largest, *paired])
    text = (
        "Against MFVI of the same seed: fits that are the same to the bit, the largest differences of posterior means "
        "and of log σ, the mean difference of accuracies with its standard deviation over seeds (of mean outputs for "
        "other noise), and the largest E_q[Δ] of an exchange of two units after training. Other noise: the same "
        "initial weights and batches, but no draw of the weights mirrors the one before."
    )
    return Table(columns, rows, text)


def _course_table(found: Found) -> Table:
    columns = ("initial σ", "step", "E[Δ], nats", "largest Δ, nats", "I(g; ω)/log n!", "gradient, uniform",
               "gradient, guided")  # fmt: skip
    rows = [
        [std, one.step, one.exchange, one.nearest, one.information, one.uniform, one.guided]
        for std, moments in found.courses.items()
        for one in moments
    ]
    text = (
        f"MFVI with {found.width} units, one seed, {found.steps_per_epoch} steps an epoch. Δ of the best exchange of "
        "two units: expected under q, and the largest of some draws. Gradient: the largest entry of that of "
        "H^K − H(q), K = 20, in log σ and μ/σ; the entropy's own is 1 in each log σ."
    )
    return Table(columns, rows, text)


def _scan_table(found: Found) -> Table:
    paper = found.published.get(PLAIN, {}).get(found.width, (None, None))[0]
    rows = [[each.std, each.prior, each.accuracy, paper, each.exchange] for each in found.scan]
    columns = ("initial σ", "prior σ", "accuracy, %", "paper, %", "E[Δ], nats")
    return Table(columns, rows, f"MFVI with {found.width} units, one seed; accuracy of mean outputs.")


def _wide_table(found: Found) -> Table:
    rows: list[list[Scalar]] = [
        [each.std, each.name, statistics.fmean(each.outputs), statistics.fmean(each.differences),
         statistics.stdev(each.differences) if len(each.differences) > 1 else None, each.apart]
        for each in found.wide
    ]  # fmt: skip
    columns = ("initial σ", "method", "accuracy, %", "difference, points", "± seeds", "means apart")
    text = (
        f"{found.width} units, number of seeds {len(found.wide[0].outputs)}: accuracy of mean outputs, and less MFVI's."
    )
    return Table(columns, rows, text)
