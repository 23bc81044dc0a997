"""What the study of accuracies claims; thresholds were set before the run."""

from coset.study import Claim, Estimate, Results
from coset_studies.metanet._methods import FLAT, ORBITS, PROBED, PROBED_STATISTICS, READERS, STATISTICS
from coset_studies.metanet._tests import FOLDED, MEAN, NORMED, SAME, WIDER

_BOOTSTRAP = "95 % bootstrap percentiles over networks and seeds; of both data sets each is drawn again on its own."
_LARGEST = (
    "Of changes by group elements: from the least to the greatest of the data sets, each the largest of all seeds."
)
_SOURCE = "Kofinas et al. 2024; thesis on flows over weights, chapter 5"


def _difference(data: str, name: str, what: str, statement: str, reason: str, source: str = _SOURCE) -> Claim:
    def estimate(results: Results) -> Estimate | None:
        where = {"data": data, "networks tested": name, "difference": what}
        cells = [results.tables["differences"].cell(column, where) for column in ("Δτ", "low", "high")]
        if any(cell is None for cell in cells):
            return None
        value, low, high = (float(str(cell)) for cell in cells)
        return Estimate(value, min(low, value), max(high, value))

    place = f"{data}, {name}"
    return Claim(
        paper=statement,
        source=source,
        statistic=f"{place}: τ of {what}",
        direction="above",
        threshold=0.0,
        reason=reason,
        interval=_BOOTSTRAP,
        possible=(-2.0, 2.0),
        estimate=estimate,
    )


def _unchanged(method: str) -> Claim:
    def estimate(results: Results) -> Estimate | None:
        table = results.tables["correlations"]
        places = [table.columns.index(name) for name in ("networks tested", "method", "largest change")]
        cells = [[row[place] for place in places] for row in table.rows]
        changes = [float(str(change)) for name, own, change in cells if (name, own) == (SAME, method)]
        return Estimate(max(changes), min(changes), max(changes)) if changes else None

    return Claim(
        paper="Predictions of a reader that respects the group do not change along orbits.",
        source="thesis on flows over weights, section 5.1",
        statistic=f"{method}: {SAME}: largest change of τ by random group elements",
        direction="below",
        threshold=1e-3,
        reason="A few of the 64,620 pairs of 360 networks may change places by rounding in single precision.",
        interval=_LARGEST,
        possible=(0.0, 2.0),
        estimate=estimate,
    )


_BETTER = "Networks that read weights as graphs order networks better than statistics of weights do."
_LOST = "Readers that do not respect scales order networks worse once these are rescaled."
_ACROSS = "One reader serves several architectures."
_SIGN = "The whole interval lies above 0: the better of two is so for other networks and seeds, too."

_PROBED = (
    "Activations on a few images, which are invariant, too, tell readers more (Kofinas et al. 2024, probe features)."
)

CLAIMS = [
    *(
        _difference(data, SAME, f"{method} − {STATISTICS}", _BETTER, _SIGN)
        for method in READERS
        for data in ("CIFAR-10, grey", "Fashion-MNIST")
    ),
    *(
        _difference(data, SAME, f"{PROBED} − {other}", _PROBED, _SIGN)
        for other in (STATISTICS, PROBED_STATISTICS)
        for data in ("CIFAR-10, grey", "Fashion-MNIST")
    ),
    *(_unchanged(method) for method in ORBITS),
    *(_difference(MEAN, SAME, f"{method} − the same, moved", _LOST, _SIGN) for method in (STATISTICS, FLAT)),
    *(
        _difference(MEAN, name, f"{method} − {STATISTICS}", _ACROSS, _SIGN)
        for method in (*READERS, PROBED)
        for name in (WIDER, NORMED, FOLDED)
    ),
]
