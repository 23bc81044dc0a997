"""Figures of planes, variances and barriers: what they show, and the four files they are saved as."""

import csv
import json

import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from coset.errors import InputError
from coset.figures import PALETTE, save_figure
from coset.landscape import (
    Plane,
    Profile,
    Profiles,
    VarianceProfile,
    plot_barriers,
    plot_collapse,
    plot_plane,
)
from coset.posterior.problem import VectorLayout

TAUS = (0.0, 0.25, 0.5, 0.75, 1.0)


def hill(samples=2, slope=1.0):
    s, t = (torch.linspace(-1, 3, count, dtype=torch.float64) for count in (7, 5))
    height = -slope * (s[None, :].square() + t[:, None].square())
    coordinates = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    return Plane(
        layout=VectorLayout({"w": torch.Size([2])}, {}, {}),
        dtype=torch.float64,
        origin=torch.zeros(2, dtype=torch.float64),
        basis=torch.eye(2, dtype=torch.float64),
        coordinates=coordinates,
        samples=coordinates[:samples] + 0.25,
        distances=torch.zeros(samples, dtype=torch.float64),
        s=s,
        t=t,
        log_likelihood=height,
        log_prior=0.5 * height,
        count=10,
    )


def profile(height):
    values = [[1.0, 3.0], *([[height, 3 * height]] * 3), [1.0, 3.0]]
    return VarianceProfile(TAUS, {"first": torch.tensor(values), "second": torch.tensor(values) / 7})


def points(axes):
    return [list(zip(*line.get_data(), strict=True)) for line in axes.lines]


def test_planes_have_a_panel_for_each_value_and_mark_the_networks():
    plane = hill()
    figure = plot_plane(plane, labels=["a", "b", "c"])
    panels = [axes for axes in figure.axes if axes.get_xlabel() == "s"]
    assert [axes.get_title("left").rpartition("  ")[2] for axes in panels] == [
        "log-likelihood",
        "log-prior",
        "log-posterior",
    ]
    for axes in panels:
        samples, networks = points(axes)
        assert [tuple(map(float, at)) for at in networks] == [tuple(at) for at in plane.coordinates.tolist()]
        assert len(samples) == 2
        assert [text.get_text() for text in axes.texts] == ["a", "b", "c"]
        assert axes.get_aspect() == 1
    bars = [axes for axes in figure.axes if axes.get_xlabel() == "nats per data point"]
    # Contours from the least to the largest value, −(9 + 9) and 0 at (0, 0) or next to it.
    least, largest = float(plane.log_likelihood.min()), float(plane.log_likelihood.max())
    assert bars[0].get_xlim() == pytest.approx((least, largest))
    (axes, _) = plot_plane(hill(samples=0), values=["log-posterior"]).axes
    assert len(axes.lines) == 1


def test_a_plane_without_slopes_can_be_drawn(tmp_path):
    plane = hill(slope=0.0)
    assert len(save_figure(plot_plane(plane, values=["log-prior"]), tmp_path / "flat", plane)) == 4


def test_variances_have_a_panel_for_each_layer_and_a_line_for_each_label():
    figure = plot_collapse({"naive": profile(0.25), "aligned": profile(0.75)})
    first, second = figure.axes
    assert [axes.get_title("left").rpartition("  ")[2] for axes in (first, second)] == ["first", "second"]
    assert [text.get_text() for text in first.get_legend().get_texts()] == ["naive: 0.25", "aligned: 0.75"]
    curves = [line for line in second.lines if len(line.get_xdata()) == 5]
    assert list(curves[0].get_ydata()) == pytest.approx([1, 0.25, 0.25, 0.25, 1])
    assert [line.get_color() for line in curves] == list(PALETTE[:2])
    assert first.get_ylim()[0] == 0


def test_standard_errors_are_a_band():
    values, errors = (1.0, 2.0, 3.0, 2.0, 1.0), (0.0, 0.1, 0.2, 0.1, 0.0)
    exact, drawn = (Profile("loss", TAUS, values, errors=found) for found in (None, errors))
    (axes,) = plot_barriers({"exact": exact, "drawn": drawn}).axes
    (band,) = axes.collections
    assert tuple(band.get_facecolor()[0][:3]) == to_rgb(PALETTE[1])
    corners = band.get_paths()[0].vertices
    middle = corners[corners[:, 0] == 0.5][:, 1]
    assert sorted(middle) == pytest.approx([2.6, 3.4])


def test_a_figure_is_saved_with_its_numbers(tmp_path):
    plane = hill()

    def draw():
        return plot_plane(plane, values=["log-posterior"])

    paths = save_figure(draw(), tmp_path / "new" / "plane.v2", plane)
    assert [path.name for path in paths] == ["plane.v2.png", "plane.v2.svg", "plane.v2.json", "plane.v2.csv"]
    assert sorted(paths) == sorted((tmp_path / "new").iterdir())
    png, svg, numbers, table = (path.read_bytes() for path in paths)
    assert png.startswith(b"\x89PNG")
    assert b"<svg" in svg
    assert json.loads(numbers) == plane.to_dict()
    assert table.decode() == plane.to_csv()
    again = save_figure(draw(), tmp_path / "again", plane)
    assert [path.read_bytes() for path in again] == [png, svg, numbers, table]


def test_numbers_by_label_are_one_table(tmp_path):
    loss = Profile("loss", TAUS, (1.0, 2.0, 3.0, 2.0, 1.0))
    profiles = {"one": Profiles({"loss": loss}), "two": Profiles({"loss": loss, "error": loss})}
    *_, numbers, table = save_figure(plot_barriers(profiles), tmp_path / "barriers", profiles)
    assert json.loads(numbers.read_text()) == {label: item.to_dict() for label, item in profiles.items()}
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["label"] for row in rows] == ["one"] * 5 + ["two"] * 5
    assert rows[2] == {"label": "one", "tau": "0.5", "loss": "3.0", "error": ""}
    assert rows[7] == {"label": "two", "tau": "0.5", "loss": "3.0", "error": "3.0"}
    # A group of profiles is numbers itself, without a label.
    *_, table = save_figure(Figure(), tmp_path / "single", profiles["two"])
    assert table.read_text() == profiles["two"].to_csv()


class Broken:
    def to_dict(self):
        return {"value": float("nan")}

    def to_csv(self):
        return "value\nnan\n"


def test_bad_input_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match=r"numbers cannot be written as JSON"):
        save_figure(Figure(), tmp_path / "broken", Broken())
    with pytest.raises(InputError, match=r"numbers\['one'\] is a float; expected to_dict"):
        save_figure(Figure(), tmp_path / "broken", {"one": 1.0})
    with pytest.raises(InputError, match=r"numbers is \{\}; expected something"):
        save_figure(Figure(), tmp_path / "broken", {})
    with pytest.raises(InputError, match=r"expected a path without \.png"):
        save_figure(Figure(), tmp_path / "plane.png", hill())
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"the folder of stem, .* cannot be written to"):
        save_figure(Figure(), tmp_path / "file" / "plane", hill())
    with pytest.raises(InputError, match=r"values is \['loss'\]; expected some of log-likelihood"):
        plot_plane(hill(), values=["loss"])
    with pytest.raises(InputError, match=r"values is \[\]; expected some"):
        plot_plane(hill(), values=[])
    with pytest.raises(InputError, match="labels has 2; expected one for each of 3"):
        plot_plane(hill(), labels=["a", "b"])
    with pytest.raises(InputError, match="profiles is empty"):
        plot_collapse({})
