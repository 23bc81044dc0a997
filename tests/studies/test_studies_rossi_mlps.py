"""Parts of the studies of MLPs' posteriors: vectors of pixels, what is stored, and verdicts that follow the numbers."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from coset.store import Store
from coset.study import Context, Table, show_study, studies
from coset.study.images import Images, load_images
from coset_studies.rossi import _pairs as pairs
from coset_studies.rossi._mlps import Layers
from coset_studies.rossi._pairs import Inference, Measure, pair_of, profiles_to

HOW = Inference(epochs=2, rate=1e-2, point_epochs=1, point_rate=1e-2, batch_size=100)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(0, torch.device("cpu"), Store(tmp_path / "store"), show=False)


def test_pixels_as_vectors_and_as_they_are(context: Context) -> None:
    plain = context.data("digits", normalize=False)
    kinds = {
        (flat, raw): load_images(context, Images("digits", flat=flat, raw=raw))
        for flat in (False, True)
        for raw in (False, True)
    }
    assert len({data.fingerprint for data in kinds.values()}) == 4
    assert torch.equal(kinds[True, True].test.x, plain.test.x.flatten(1))
    assert torch.equal(kinds[False, True].train.x, plain.train.x)
    assert torch.equal(kinds[True, False].train.x, kinds[False, False].train.x.flatten(1))
    assert kinds[True, False].shape == (64,)


def test_a_path_that_is_stored_is_not_measured_again(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_images(context, Images("digits", flat=True))
    pair = pair_of(context, data, Layers((6,)), HOW)
    measure = Measure(points=20, taus=3, samples=2)
    first = {path: profiles_to(context, data, pair, pair.second, measure, path) for path in ("geodesic", "mixture")}
    assert first["geodesic"]["train log-likelihood"] != first["mixture"]["train log-likelihood"]
    monkeypatch.setattr(pairs, "barrier", lambda *_, **__: pytest.fail("measured again"))
    again = {path: profiles_to(context, data, pair, pair.second, measure, path) for path in first}
    assert again == first


COLUMNS = ("width", "path", "train barrier, nats", "± train", "test barrier, nats", "± test")


def verdicts(name: str, rows: Mapping[str, tuple[float, ...]], error: float = 0.001) -> list[str]:
    """Of a study's claims, on a table of (naive, aligned) or (naive train, naive test, aligned train, aligned test)."""
    table = []
    for label, values in rows.items():
        four = values if len(values) == 4 else [value for value in values for _ in range(2)]
        table += [
            (label, path, a, error, b, error) for path, (a, b) in zip(("naive", "aligned"), batched(four), strict=True)
        ]
    results = SimpleNamespace(numbers={}, tables={"barriers": Table(COLUMNS, table)})
    return [str(claim.judge(results).verdict) for claim in studies()[name].claims]


def batched(values: Sequence[float]) -> list[tuple[float, float]]:
    return list(zip(values[::2], values[1::2], strict=True))


def test_the_width_is_judged_by_its_barriers() -> None:
    assert verdicts("rossi-width", {"64": (2.0, 0.2), "128": (1.5, 0.1), "256": (1.0, 0.02)}) == ["holds", "holds"]
    assert verdicts("rossi-width", {"64": (2.0, 0.2), "128": (2.5, 0.02), "256": (2.0, 0.3)}) == ["fails", "fails"]
    # One part of the data that does not fall is enough.
    assert verdicts("rossi-width", {"64": (2.0, 2.0, 0.2, 0.2), "256": (1.0, 1.9, 0.1, 0.19)}) == ["fails", "fails"]
    # At the threshold, and with no barrier to begin with.
    assert verdicts("rossi-width", {"64": (2.0, 0.0), "256": (1.8, 0.1)}) == ["cannot tell", "cannot tell"]


def test_the_prior_is_judged_by_its_barriers() -> None:
    near = {"0.01": (2.0, 2.0, 0.05, 0.05), "0.04": (1.5, 1.4, 0.06, 0.06), "0.1": (1.0, 0.8, 0.05, 0.05)}
    assert verdicts("rossi-prior", near) == ["holds"] * 4
    far = {"0.01": (1.0, 0.9, 0.02, 0.02), "0.1": (1.0, 1.0, 0.5, 0.5)}
    assert verdicts("rossi-prior", far) == ["fails"] * 4


def test_the_temperature_is_judged_by_its_barriers() -> None:
    assert verdicts("rossi-temperature", {"0.1": (1, 0.01), "1": (1, 0.04)}) == ["holds"]
    assert verdicts("rossi-temperature", {"0.1": (1, 0.05), "1": (1, 0.04)}) == ["fails"]


def test_points_and_posteriors_are_judged_by_their_barriers() -> None:
    alike = {"VI 2": (1, 0.5), "SGD 2": (1, 0.5), "VI 4": (1, 0.4), "SGD 4": (1, 0.3)}
    assert verdicts("rossi-sgd", alike) == ["holds"] * 4
    unlike = {"VI 2": (1, 0.5), "SGD 2": (1, 0.9), "VI 4": (1, 0.5), "SGD 4": (1, 0.9)}
    assert verdicts("rossi-sgd", unlike) == ["fails"] * 4


def test_normalisations_and_augmentation_are_judged_by_their_barriers() -> None:
    assert verdicts("rossi-norms", {"FRN": (1, 0.05), "LayerNorm": (1, 0.02)}) == ["holds"] * 5
    assert verdicts("rossi-norms", {"FRN": (1, 0.2), "LayerNorm": (1, 0.3)}) == ["fails"] * 5
    assert verdicts("rossi-augmentation", {"without": (1, 0.05), "with": (1, 0.06)}) == ["holds"] * 5
    assert verdicts("rossi-augmentation", {"without": (1, 0.2), "with": (1, 0.6)}) == ["fails"] * 5


@pytest.mark.parametrize("name", ["rossi-barriers", "rossi-resnet", "rossi-norms", "rossi-augmentation"])
def test_published_curves_have_the_barriers_of_the_table(name: str) -> None:
    results = show_study(name, Path(__file__).parents[2] / "docs" / "studies")
    curves, table = results.tables["curves"], results.tables["barriers"]
    for label, path, train, _, test, *_ in table.rows:
        rows = [row[2:] for row in curves.rows if row[:2] == (label, path)]
        for column, barrier in ((1, train), (2, test)):
            first, last = rows[0][column], rows[-1][column]
            drops = [(1 - row[0]) * first + row[0] * last - row[column] for row in rows]
            # Curves have six decimals.
            assert max(drops) == pytest.approx(barrier, abs=4e-6)


def test_every_figure_of_the_paper_has_a_study() -> None:
    own = [item.reference for name, item in studies().items() if name.startswith("rossi-")]
    named = {figure for text in own for figure in re.findall(r"\b(A?\d+)\b", text.partition("2023")[2])}
    assert named >= {*map(str, range(1, 13)), "A13", "A14", "A15", "A16"}
