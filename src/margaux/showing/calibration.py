"""Whether expected outcomes agree with observed ones, in groups of equal size by what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np

from .figures import drawn
from .page import Figure, number

#: groups, and the least observations in each
GROUPS, LEAST = 10, 8


def deciles(expected: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Mean expected, mean observed, standard error of the latter, and count, a row a group (g, 4), by rising expectation.

    Groups have about as many observations each, ten of them where there are enough.

    >>> deciles(np.array([0.1, 0.9] * 40), np.array([0.0, 1.0] * 40))[[0, -1], :2].round(1).tolist()
    [[0.1, 0.0], [0.9, 1.0]]
    """
    order = np.argsort(expected, kind="stable")
    groups = np.array_split(order, int(np.clip(len(order) // LEAST, 1, GROUPS)))
    rows = []
    for one in groups:
        y = observed[one]
        se = y.std(ddof=1) / np.sqrt(len(y)) if len(y) > 1 else np.nan
        rows.append([expected[one].mean(), y.mean(), se, len(y)])
    return np.asarray(rows)


def calibration(expected: np.ndarray, observed: np.ndarray, what: str, note: str) -> Figure:
    """Observed means of groups against expected ones, with bars of two standard errors.

    Args:
        what: the outcome, such as "P(y = 1)". note: about the data, for the caption.
    """
    table = deciles(np.asarray(expected, float), np.asarray(observed, float))
    ends = [float(min(table[:, 0].min(), table[:, 1].min())), float(max(table[:, 0].max(), table[:, 1].max()))]
    away = np.abs(table[:, 1] - table[:, 0]) > 2 * table[:, 2]

    def draw() -> Any:
        from matplotlib.figure import Figure as Drawing

        figure = Drawing(figsize=(4.8, 4.2), layout="constrained")
        axis = figure.subplots()
        axis.plot(ends, ends, color="0.6", lw=1.0, ls="--", label="observed = expected")
        axis.errorbar(
            table[:, 0],
            table[:, 1],
            2 * np.nan_to_num(table[:, 2]),
            fmt="o",
            ms=5,
            color="#0072B2",
            elinewidth=1.2,
            label="groups, ± 2 standard errors",
        )
        axis.set(xlabel=f"expected {what}", ylabel=f"observed {what}")
        figure.legend(loc="outside lower center", ncols=2, fontsize=9)
        return figure

    alt = (
        f"Calibration in {len(table)} groups of about {int(np.median(table[:, 3]))} observations: expected {what} from "
        f"{number(table[0, 0], 3)} to {number(table[-1, 0], 3)}, observed from {number(table[0, 1], 3)} to "
        f"{number(table[-1, 1], 3)}; {int(away.sum())} further than two standard errors from what is expected."
    )
    caption = f"Observed against expected {what}, in groups by rising expectation. {note}".strip()
    return drawn(draw, alt, caption, ranges=False)
