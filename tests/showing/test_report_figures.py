"""Figures of the report page: colours of both themes, names of their own, a picture of many points, the forest plot."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure as Drawing

from margaux.showing.figures import DARK, LIGHT, drawn, figure_of, luminance, themed
from margaux.showing.forest import ROWS, forest


def test_colours_of_figures_serve_both_themes():
    for colour in ("1f77b4", "0072B2".lower(), "d62728", "2ca02c", "000000", "333333"):
        both = themed(colour)
        assert both is not None
        dark = both[1]
        own, paper = luminance([int(dark[i : i + 2], 16) for i in (1, 3, 5)]), luminance(DARK[1])
        assert (own + 0.05) / (paper + 0.05) >= 3, colour
    black = themed("000000")
    assert black is not None and black[0] == "#{:02x}{:02x}{:02x}".format(*LIGHT[0])


def test_figures_of_any_kind_become_svg_with_names_of_their_own():
    def draw():
        figure = Drawing()
        figure.subplots().plot([0, 1], [2, 3], color="black")
        return figure

    first = drawn(draw, "A line.", "")
    second = drawn(lambda: draw().axes[0], "A line.", "")
    assert first.svg == second.svg and "A line. " in first.alt and "from 2 to 3" in first.alt
    assert "var(--c000000)" in first.svg and "000000" in first.colours and "<style" not in first.svg
    assert figure_of(Drawing().subplots(2, 2)).axes
    with pytest.raises(TypeError, match="must return a Figure"):
        figure_of("nothing")


def test_many_points_become_a_picture():
    def draw(count):
        axis = Drawing().subplots()
        axis.plot(np.arange(count), np.random.default_rng(0).normal(size=count))
        return axis

    few, many = drawn(lambda: draw(100), "", ""), drawn(lambda: draw(100_000), "", "")
    assert "<image" not in few.svg and "data:image/png" in many.svg and len(many.svg) < 300_000


def test_a_forest_groups_scales_and_counts_the_rest():
    wide = pd.DataFrame({"estimate": [1.0, 2.0, 900.0], "ci_low": [0.5, np.nan, 800.0], "ci_high": [1.5, np.nan, 1000.0]},
                        index=["a", "b", "c"])  # fmt: skip
    figure = forest(wide)
    assert "Each panel has a scale of its own. 1 without interval is hollow." in figure.caption
    assert "a 1 (0.5 to 1.5), b 2, c 900 (800 to 1000)" in figure.alt
    z = np.arange(100.0)
    many = pd.DataFrame({"estimate": z, "ci_low": z - 1, "ci_high": z + 1, "z": z})
    assert f"{ROWS} of 100" in forest(many).alt and "60 more are not drawn" in forest(many).caption
    assert "99 99 (" not in forest(many).alt and " 60 60 (" in forest(many).alt
    with pytest.raises(ValueError, match="no estimate is finite"):
        forest(wide * np.nan)
