"""What fits and estimators show of themselves: a table in notebooks, a report page, ArviZ's data tree."""

from __future__ import annotations

import abc
import html
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

#: rows of a table that a notebook shows
ROWS = 20
#: columns of a summary that a notebook shows, and their titles
COLUMNS = {"estimate": "estimate", "mean": "mean", "sd": "SD", "se": "SE", "ci_low": "CI low", "ci_high": "CI high"}

#: colours come from the page, light or dark
STYLE = """<style>
.margaux-card { line-height: 1.4; max-width: 100%; overflow-x: auto; }
.margaux-card table { border-collapse: collapse; margin: .4em 0; font-variant-numeric: tabular-nums; }
.margaux-card caption { text-align: left; caption-side: top; padding: 0 0 .2em; }
.margaux-card th, .margaux-card td { text-align: right; padding: .1em .7em; background: transparent; }
.margaux-card tbody th { text-align: left; font-weight: normal; font-family: monospace; }
.margaux-card thead th { border-bottom: 1px solid currentColor; }
.margaux-card .margaux-careful { border-left: .25em solid #d97706; padding-left: .6em; }
</style>"""


class Card(NamedTuple):
    """What a notebook shows of a fit.

    Attributes:
        title: what was fitted. message: how it ended. trusted: whether what it says is to be used.
        table: a row a parameter, with those of `COLUMNS` that are known; its first rows at least. count: of all rows.
        figures: what else is known, name -> value.
    """

    title: str
    message: str
    trusted: bool
    table: pd.DataFrame
    count: int
    figures: dict[str, Any]


class Shown(abc.ABC):
    """A fit or an estimator as a page, as a table in a notebook, and as ArviZ reads it."""

    @abc.abstractmethod
    def _card(self) -> Card | None:
        """What is known without computing anything long; None before the fit."""

    def report(self, path: str | Path, title: str | None = None) -> Path:
        """Write a page about the fit: one HTML file that needs nothing else; returns its path.

        Args:
            title: of the page.
        """
        from .report import write

        return write(self, path, title=title)

    def to_arviz(
        self,
        n_draws: int = 1000,
        random_state: int = 0,
        *,
        log_likelihood: bool | None = None,
        posterior_predictive: bool = False,
    ) -> Any:
        """The posterior of the latents at the estimate as ArviZ's data tree: see `margaux.showing.arviz.data_tree`.

        Args:
            n_draws: draws a chain. random_state: an int.
            log_likelihood: of each observation, for cross-validation; by default where the model says and it is not too large.
            posterior_predictive: draw new data as well.

        Raises:
            ImportError: arviz-base is not installed. ValueError, TypeError: the model does not say what is asked for.
        """
        from .arviz import data_tree

        return data_tree(self, n_draws, random_state, log_likelihood=log_likelihood, posterior_predictive=posterior_predictive)

    def _repr_html_(self) -> str | None:
        card = self._card()
        if card is not None:
            return page(card)
        # An estimator that is not fitted shows its settings, by scikit-learn where it is one of its own.
        own = getattr(super(), "_repr_html_", None)
        return own() if own is not None else settings_table(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        plain = {"text/plain": repr(self)}
        sklearn = sys.modules.get("sklearn")
        if hasattr(self, "__sklearn_tags__") and sklearn is not None and sklearn.get_config()["display"] != "diagram":
            return plain
        return plain | {"text/html": str(self._repr_html_())}


def page(card: Card) -> str:
    """A card as HTML, every text escaped."""
    say = html.escape(card.message)
    ended = say if card.trusted else f'<span class="margaux-careful"><strong>Not to be trusted:</strong> {say}</span>'
    parts = [STYLE, '<div class="margaux-card">', f"<div><strong>{html.escape(card.title)}</strong></div>", f"<div>{ended}</div>"]
    parts.append(_table(card.table, card.count))
    if card.figures:
        told = (f"{html.escape(str(name))} {html.escape(_number(value))}" for name, value in card.figures.items())
        parts.append(f"<div>{'; '.join(told)}</div>")
    return "".join([*parts, "</div>"])


def _table(frame: pd.DataFrame, total: int) -> str:
    known = [name for name in COLUMNS if name in frame]
    columns = [name for name in known if bool(frame[name].notna().any())] or known[:1] or list(frame.columns)
    some = frame.iloc[:ROWS]
    head = "".join(f'<th scope="col">{html.escape(str(COLUMNS.get(name, name)))}</th>' for name in columns)
    lines = []
    for label, row in zip(some.index, some[columns].itertuples(index=False), strict=True):
        name = ", ".join(map(str, label)) if isinstance(label, tuple) else str(label)
        cells = "".join(f"<td>{html.escape(_number(value))}</td>" for value in row)
        lines.append(f'<tr><th scope="row">{html.escape(name)}</th>{cells}</tr>')
    count = "" if total <= ROWS else f"<caption>the first {ROWS} of {total:,} rows</caption>"
    return f'<table>{count}<thead><tr><th scope="col">parameter</th>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _number(value: object) -> str:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int | np.integer) and not isinstance(value, bool) else str(value)


def settings_table(subject: Any) -> str:
    """Settings of what is not fitted yet, a row each."""
    rows = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(repr(value))}</td></tr>'
        for name, value in subject.get_params(deep=False).items()
    )
    title = f"<div><strong>{html.escape(type(subject).__name__)}</strong>, not fitted yet</div>"
    head = '<thead><tr><th scope="col">setting</th><th scope="col">value</th></tr></thead>'
    return f'{STYLE}<div class="margaux-card">{title}<table>{head}<tbody>{rows}</tbody></table></div>'


def flat_table(params: dict[str, Any]) -> tuple[pd.DataFrame, int]:
    """Estimates by name, a row a scalar: the first `ROWS`, and how many there are.

    >>> table, count = flat_table({"a": 1.0, "b": np.array([2.0, 3.0])})
    >>> table["estimate"].to_dict(), count
    ({'a': 1.0, 'b[0]': 2.0, 'b[1]': 3.0}, 3)
    """
    rows: dict[str, float] = {}
    for name, value in params.items():
        values = np.asarray(value)
        for at in itertools.islice(np.ndindex(values.shape), ROWS):
            rows[f"{name}[{','.join(map(str, at))}]" if at else name] = float(values[at])
    import pandas as pd

    frame = pd.DataFrame({"estimate": pd.Series(rows, dtype=float)}).iloc[:ROWS]
    return frame, sum(int(np.size(value)) for value in params.values())
