"""The figure of barriers: what it shows, and that it leaves matplotlib alone."""

import io

import matplotlib
import pytest

from coset.errors import InputError
from coset.figures import PALETTE, render
from coset.landscape import Profile, Profiles, plot_barriers

TAUS = (0.0, 0.25, 0.5, 0.75, 1.0)


def profiles(height):
    values = tuple(0.1 + 4 * height * tau * (1 - tau) for tau in TAUS)
    loss = Profile("train loss", TAUS, values, unit="nats")
    return Profiles({"train loss": loss, "test error": Profile("test error", TAUS, values, unit="fraction")})


def test_a_panel_for_each_functional_and_a_line_for_each_label():
    figure = plot_barriers({"naive": profiles(0.5), "aligned": profiles(0.0625)})
    loss, error = figure.axes
    assert (loss.get_ylabel(), error.get_ylabel()) == ("loss (nats)", "error (%)")
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["naive: 0.500", "aligned: 0.062"]
    assert [text.get_text() for text in error.get_legend().get_texts()] == ["naive: 50.00", "aligned: 6.25"]
    curves = [line for line in loss.lines if len(line.get_xdata()) == 5]
    assert [line.get_color() for line in curves] == list(PALETTE[:2])
    assert len({line.get_marker() for line in curves}) == 2
    assert list(curves[0].get_ydata()) == list(profiles(0.5)["train loss"].values)
    percent = next(line for line in error.lines if len(line.get_xdata()) == 5).get_ydata()
    assert list(percent) == pytest.approx([100 * value for value in profiles(0.5)["test error"].values])


def test_a_band_of_two_standard_errors_where_there_are_some():
    values, errors = (-0.1, -0.3, -0.5, -0.3, -0.1), (0.01, 0.02, 0.03, 0.02, 0.01)
    likelihood = Profile("log-likelihood", TAUS, values, "higher", "nats", errors)
    wrong = Profile("error", TAUS, (0.1, 0.2, 0.3, 0.2, 0.1), unit="fraction", errors=errors)
    exact = Profile("loss", TAUS, values, unit="nats", errors=(0.0,) * 5)
    figure = plot_barriers({"naive": Profiles({item.name: item for item in (likelihood, wrong, exact)})})
    nats, percent, plain = figure.axes
    for axes, profile, factor in ((nats, likelihood, 1), (percent, wrong, 100)):
        (band,) = axes.collections
        (edge,) = band.get_paths()
        for tau, value, error in zip(TAUS, profile.values, errors, strict=True):
            found = [y for x, y in edge.vertices if x == tau]
            assert min(found) == pytest.approx(factor * (value - 2 * error))
            assert max(found) == pytest.approx(factor * (value + 2 * error))
    assert not plain.collections


def test_single_profiles_and_many_labels():
    figure = plot_barriers({f"width {number}": profiles(0.1 * number)["train loss"] for number in range(12)})
    (axes,) = figure.axes
    curves = [line for line in axes.lines if len(line.get_xdata()) == 5]
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in curves}
    assert len(looks) == len(curves) == 12


def test_a_readers_settings_change_nothing_and_stay():
    def picture():
        content = io.BytesIO()
        plot_barriers({"naive": profiles(0.5)}).savefig(content, format="png", dpi=50, metadata={"Software": None})
        return content.getvalue()

    expected = picture()
    with matplotlib.rc_context({"lines.linewidth": 9.0, "axes.facecolor": "red", "font.size": 20.0}):
        plot_barriers({"naive": profiles(0.5)})
        assert matplotlib.rcParams["lines.linewidth"] == 9.0
    assert picture() == expected
    png, svg = render(lambda: plot_barriers({"naive": profiles(0.5)}))
    assert png.startswith(b"\x89PNG")
    assert b"<svg" in svg


def test_nothing_to_plot_is_refused():
    with pytest.raises(InputError, match="profiles is empty"):
        plot_barriers({})
