"""Parts of the studies of MLPs' posteriors: vectors of pixels, what is stored, and words that follow the numbers."""

import re
from pathlib import Path

import pytest
import torch

from coset.landscape import Profile, Profiles
from coset.store import Store
from coset.study import Context, studies
from coset.study.images import Images, load_images
from coset_studies.rossi import _pairs as pairs
from coset_studies.rossi._mlps import INFERENCE, LAYERS, Layers, setting
from coset_studies.rossi._pairs import Inference, Measure, pair_of, profiles_to
from coset_studies.rossi._report import Compared
from coset_studies.rossi.prior import judge as judge_prior
from coset_studies.rossi.temperature import judge as judge_temperature
from coset_studies.rossi.width import judge as judge_width

HOW = Inference(epochs=2, rate=1e-2, point_epochs=1, point_rate=1e-2, batch_size=100)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(0, torch.device("cpu"), Store(tmp_path / "store"), show=False)


def measured(naive: float, aligned: float, pair: object = None) -> Compared:
    """A pair with these barriers on both parts of the data."""

    def profiles(barrier: float) -> Profiles:
        names = [f"{split} log-likelihood" for split in ("train", "test")]
        taus = (0.0, 0.5, 1.0)
        return Profiles({name: Profile(name, taus, (-0.1, -0.1 - barrier, -0.1), "higher") for name in names})

    return Compared(pair, {"naive": profiles(naive), "aligned": profiles(aligned)})


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


def test_the_width_is_judged_by_its_barriers() -> None:
    falling = {64.0: measured(2.0, 0.2), 128.0: measured(1.5, 0.1), 256.0: measured(1.0, 0.02)}
    assert "at every step" in judge_width(falling)
    assert "too, as there" in judge_width(falling)
    bumpy = {64.0: measured(2.0, 0.2), 128.0: measured(2.5, 0.3), 256.0: measured(2.0, 0.02)}
    assert "not every step goes down" in judge_width(bumpy)
    assert "does not fall with the width; there it does" in judge_width(bumpy)
    assert judge_width({64.0: measured(2.0, 0.1), 128.0: measured(2.0, 0.1)}).startswith("Unlike in the paper")


def test_the_prior_is_judged_by_its_barriers() -> None:
    near = {0.01: measured(2.0, 0.02), 0.1: measured(1.0, 0.05)}
    assert "nearly no barrier whatever the prior" in judge_prior(near)
    assert "wider, as there" in judge_prior(near)
    far = {0.01: measured(1.0, 0.02), 0.1: measured(1.0, 0.5)}
    assert judge_prior(far).startswith("Unlike in the paper")
    assert "does not fall" in judge_prior(far)


def test_the_temperature_is_judged_by_its_barriers() -> None:
    assert judge_temperature({0.1: measured(1, 0.01), 1.0: measured(1, 0.04)}).startswith("As in the paper")
    assert judge_temperature({0.1: measured(1, 0.05), 1.0: measured(1, 0.04)}).startswith("Unlike in the paper")


def test_what_differs_from_the_paper_is_told() -> None:
    assert setting(Images(), INFERENCE["paper"], LAYERS["paper"]) == ""
    told = setting(Images(pool=2), INFERENCE["small"], LAYERS["small"])
    for part in ("256 units (there 512)", "squares of 2×2", "variance is 0.04 (there 0.0025)", "temperature is 0.1"):
        assert part in told
    assert "temperature" not in setting(Images(), INFERENCE["small"], LAYERS["small"], swept="temperature")


def test_every_figure_of_the_paper_has_a_study() -> None:
    own = [item.reference for name, item in studies().items() if name.startswith("rossi-")]
    named = {figure for text in own for figure in re.findall(r"\b(A?\d+)\b", text.partition("2023")[2])}
    assert named >= {*map(str, range(1, 13)), "A13", "A14", "A15", "A16"}
