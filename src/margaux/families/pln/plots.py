"""Figures of a Poisson log-normal PCA."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.patches import Circle
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from ...numerics.wald import check_level
from ...showing import planes
from ...showing.axes import several, single
from ...showing.planes import PALETTE, PerUnit, aligned, colouring, label, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...showing.axes import AxesLike
    from .ranks import RankChoice
    from .table import Table


BLUE, ORANGE, GREEN, *_ = PALETTE
#: colour of arrows and their scale
INK = "0.2"
#: names along a side that can be read
NAMED = 60


class PLNPlots:
    """`model.plot.scores()` and others: each returns the Axes it draws on, which `ax` may give.

    `coefficients`, `importance` and `convergence` take and return several, as many as they have panels. Latents are
    $z_i = o_i + B'x_i + Cw_i$, components the coordinates of w, and a plane is a pair of them, counted from 0.

    Raises:
        ValueError: for arguments that name no component, covariate or unit of the fit, before anything is drawn.

    >>> import numpy as np, margaux as mx
    >>> rng = np.random.default_rng(0)
    >>> counts = rng.poisson(np.exp(1 + rng.normal(size=(60, 2)) @ rng.normal(0, 0.7, (2, 8))))
    >>> model = mx.PLNPCA(rank=2, n_starts=1, verbose=False).fit(counts)
    >>> PLNPlots(model).correlation_circle().get_xlabel()
    'component 1 (69.2% of the variance)'
    """

    def __init__(self, fitted: Any) -> None:
        self._fitted = fitted

    def scores(
        self, axes: tuple[int, int] = (0, 1), color: PerUnit | None = None, ellipses: bool = True, level: float = 0.95,
        labels: PerUnit | None = None, uncertainty: bool = False, ax: Axes | None = None,
    ) -> Any:  # fmt: skip
        """Units on a plane of components.

        Args:
            color: the name of a column of the design (`table_.covariate_names`), or an array or Series, an entry a unit:
                a legend for categories and
                numbers of at most four values, a colour bar for others. ellipses: of the normal law fitted to each category of
                three units and more, which holds a share `level`. labels: True for the names of the units, or a text a unit;
                those without room are left out. uncertainty: the ellipse of each unit's own posterior too, of that `level`.
        """
        pair, _ = self._plane(axes), check_level(level)
        colours, texts = colouring(color, self._fitted.table_), self._texts(labels)
        axis = single(ax, 6.0, 4.6)
        self._units(axis, pair, colours, level if ellipses else None)
        if uncertainty:
            i, j = np.meshgrid(pair, pair, indexing="ij")
            covariance = np.asarray(self._fitted.scores_covariance_, float)[:, i, j]
            planes.ellipses(axis, self._places(pair), covariance, level, colours)
        if texts is not None:
            places = self._places(pair)
            far = np.argsort(-np.sum(places**2, axis=1), kind="stable")[: planes.LABELS]
            label(axis, places[far], [texts[i] for i in far], spare=places)
        return axis

    def correlation_circle(self, axes: tuple[int, int] = (0, 1), n_features: int = 30, ax: Axes | None = None) -> Any:
        r"""Correlations of the latents of features with two components given the covariates,
        $\mathrm{corr}(z_{ij}, w_{ik}\mid x_i) = c_{jk}/\sqrt{(CC^\top)_{jj}}$: the `n_features` of the longest arrows.

        On the circle, a feature varies in this plane alone.
        """
        pair, _ = self._plane(axes), _check_count(n_features)
        loadings = np.asarray(self._fitted.loadings_, float)
        length = np.linalg.norm(loadings, axis=1, keepdims=True)
        arrows = (loadings / np.where(length > 0, length, 1))[:, pair]
        chosen = _largest(np.sum(arrows**2, axis=1), n_features)
        axis = single(ax, 6.0, 6.0)
        axis.add_patch(Circle((0, 0), 1, fill=False, color="0.6", lw=0.8))
        _arrows(axis, arrows[chosen])
        axis.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal", xlabel=self._title(pair[0]), ylabel=self._title(pair[1]))
        _origin(axis)
        label(axis, arrows[chosen], self._features(chosen), spare=_along(arrows[chosen]))
        return axis

    def biplot(
        self,
        axes: tuple[int, int] = (0, 1),
        n_features: int = 15,
        color: PerUnit | None = None,
        ax: Axes | None = None,
    ) -> Any:
        """Scores of units, and loadings of the features of the longest ones as arrows on a scale of their own (top and right).

        The product of an arrow and a score is the part of the latent that lies in the plane.
        """
        pair, _ = self._plane(axes), _check_count(n_features)
        colours = colouring(color, self._fitted.table_)
        loadings = np.asarray(self._fitted.loadings_, float)[:, pair]
        chosen = _largest(np.sum(loadings**2, axis=1), n_features)
        axis: Any = single(ax, 6.4, 5.2)
        self._units(axis, pair, colours, None)
        longest = np.abs(loadings).max()
        scale = np.abs(self._places(pair)).max() / longest if longest > 0 else 1.0
        _arrows(axis, scale * loadings[chosen])
        for where, name in (("top", "x"), ("right", "y")):
            second = getattr(axis, f"secondary_{name}axis")(where, functions=(lambda s: s / scale, lambda c: c * scale))
            getattr(second, f"set_{name}label")("loading", fontsize=8, color=INK)
            second.tick_params(labelsize=7, colors=INK)
        if colours is not None and colours.kinds is not None:
            axis.get_legend().set_bbox_to_anchor((1.13, 1.0))
        label(axis, scale * loadings[chosen], self._features(chosen), spare=_along(scale * loadings[chosen]))
        return axis

    def coefficients(
        self, covariate: str | list[str] | None = None, n_features: int = 40, level: float = 0.95, order: str = "estimate",
        ax: AxesLike | None = None,
    ) -> Any:  # fmt: skip
        """Coefficients with their intervals, a panel a covariate, in grey those whose interval holds 0; a note names the
        features without finite estimate.

        Args:
            covariate: one or several names; all but the intercept by default. n_features: how many, of largest |z|.
            order: "estimate", "z" or "table", which is that of the features in the table.
        """
        names, _, _ = self._covariates(covariate), _check_count(n_features), check_level(level)
        if order not in ("estimate", "z", "table"):
            raise ValueError(f'order must be "estimate", "z" or "table", not {order!r}')
        frame = self._fitted.summary(level)
        parts = [frame.loc[name] for name in names]
        rows = max(min(int(part["estimate"].notna().sum()), n_features) for part in parts)
        panels, _ = several(ax, len(names), 4.8 if len(names) == 1 else 3.6, 1.3 + 0.15 * rows, columns=3)
        for axis, name, part in zip(panels, names, parts, strict=True):
            finite = part["estimate"].notna()
            _forest(axis, part[finite], n_features, order)
            some = f" ({n_features} of {finite.sum()}, largest |z|)" if finite.sum() > n_features else ""
            axis.set_title(short(name) + some, fontsize=8)
            note = "" if finite.all() else "\n" + _listed("no finite estimate: ", part.index[~finite])
            axis.set_xlabel(f"coefficient, {100 * level:g}% interval" + note, fontsize=7)
        return panels

    def importance(self, ax: AxesLike | None = None) -> Any:
        r"""How well the proposals of `loglik_` serve: the effective share of the draws of each unit and the divergences from its
        proposal and to it of the conditional law of its latents (figure 1 of the paper), by rising share.

        A unit on the right of the first panel is easy; a divergence of 0 is a perfect proposal.
        """
        frame = self._fitted.importance_
        frame = frame.assign(share=100 * frame["ess"] / frame["draws"])
        order = np.argsort(frame["share"].to_numpy(), kind="stable")
        panels, _ = several(ax, 3, 6.0, 2.1, columns=1)
        columns = {"share": "effective draws, %", "kl_from_proposal": r"KL[$\nu_i$ || $p(\cdot | y_i)$]",
                   "kl_from_conditional": r"KL[$p(\cdot | y_i)$ || $\nu_i$]"}  # fmt: skip
        rank = np.arange(1, len(order) + 1)
        for axis, (column, text) in zip(panels, columns.items(), strict=True):
            values = frame[column].to_numpy()[order]
            axis.plot(rank, values, "o", ms=2.5, color=BLUE, alpha=0.7, rasterized=len(order) > 5000)
            axis.set_ylabel(text, fontsize=8)
            axis.set_ylim(min(0.0, 1.05 * values.min()), 1.08 * values.max())
        panels[-1].set_xlabel("units by rising share of effective draws")
        return panels

    def rootogram(self, feature: str | None = None, most: int | None = None, ax: Axes | None = None) -> Any:
        """How often each count is there (bars, of square roots) and is expected given the latents (line), from which bars hang:
        they end at zero under the model (Tukey 1977; Kleiber and Zeileis 2016). Excess zeros hang below at zero; counts that
        vary more than Poisson counts hang below at both ends.

        Args:
            feature: a name; all together by default. most: the largest count shown; by default up to 30, with 95% of the table.
        """
        fitted, table = self._fitted, self._fitted.table_
        place = None
        if feature is not None:
            if feature not in table.features:
                raise ValueError(f'no feature is called "{feature}"; they are such as {list(table.features[:5])}')
            place = int(table.features.get_loc(feature))
        if most is None:
            largest = next(k for k in range(31) if k == 30 or _share_up_to(table, k, place) >= 0.95)
            most = max(largest, 1)
        _check_count(most)
        seen, expected = fitted.frequencies(most, place)
        axis: Any = single(ax, 6.0, 3.8)
        counts, top = np.arange(most + 1), np.sqrt(expected)
        axis.bar(counts, np.sqrt(seen), 0.8, bottom=top - np.sqrt(seen), color="0.8", edgecolor="0.5", lw=0.6, label="observed")
        axis.plot(counts, top, "o-", ms=3, lw=1, color=BLUE, label="expected given the latents")
        axis.axhline(0.0, color=INK, lw=0.8)
        axis.set(xlabel="count" if feature is None else f"count of {short(feature)}", ylabel="square root of how often")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(frameon=False, fontsize=8)
        return axis

    def convergence(self, ax: AxesLike | None = None) -> Any:
        """The distance of the bound to its last value, sweep by sweep; after a refinement also the marginal log-likelihood and
        the norm of its gradient by epoch, with bands of two Monte Carlo errors (figure 4 of the paper)."""
        bounds, refined = np.asarray(self._fitted.bounds_, float), self._fitted.refinement_
        panels, _ = several(ax, 1 if refined is None else 3, 6.0, 3.4 if refined is None else 2.4, columns=1)
        sweeps = np.arange(1, len(bounds))
        distance = bounds[-1] - bounds[:-1]
        # The bound may stand still in the last sweeps; a logarithm has no place for that.
        panels[0].semilogy(sweeps[distance > 0], distance[distance > 0], "o-", ms=3, lw=1, color=BLUE)
        panels[0].set(xlabel="sweep", ylabel="last bound - bound")
        panels[0].set_title(f"bound {bounds[-1]:.2f} after {len(bounds)} sweeps", fontsize=9)
        if refined is not None:
            epoch = refined["epoch"].to_numpy()
            for axis, value, error, text in (
                (panels[1], "loglik", "error", "marginal log-likelihood"),
                (panels[2], "gradient_norm", "gradient_error", "norm of the gradient"),
            ):
                centre, half = refined[value].to_numpy(), 2 * refined[error].to_numpy()
                axis.fill_between(epoch, centre - half, centre + half, color="0.85", lw=0, label="2 Monte Carlo errors")
                axis.plot(epoch, centre, "o-", ms=3, lw=1, color=BLUE)
                axis.set(xlabel="epoch", ylabel=text)
                axis.ticklabel_format(axis="y", useOffset=False)
            panels[2].set_ylim(bottom=0)
            panels[1].legend(frameon=False, fontsize=8)
        return panels

    def starts(self, ax: Axes | None = None) -> Any:
        """Bounds of the starts below the best one, sorted: steps are basins of attraction. Below each, its sweeps: starts that
        others had outdone were left early, so that their bounds would have risen."""
        frame = self._fitted.starts_
        frame = frame.iloc[np.argsort(-frame["bound"].to_numpy(), kind="stable")]
        below = (frame["bound"].iloc[0] - frame["bound"]).to_numpy()
        over = frame["converged"].to_numpy(bool)
        axis: Any = single(ax, 6.0, 3.8)
        rank = np.arange(1, len(frame) + 1)
        for member, text, style in (
            (over, "converged", {"color": BLUE}),
            (~over, "left early", {"color": ORANGE, "mfc": "none"}),
        ):
            if member.any():
                axis.plot(rank[member], below[member], "o", ms=5, label=text, **style)
        for place in zip(rank, below, frame["sweeps"], strict=True) if len(frame) <= 32 else ():
            axis.annotate(str(place[2]), place[:2], (0, -10), textcoords="offset points", ha="center", va="center", fontsize=7)
        axis.set_yscale("symlog", linthresh=1.0)
        axis.set_ylim(top=-0.3, bottom=4 * max(float(np.nanmax(below)), 1.0))
        axis.set(xlabel="starts, best first", ylabel="nats below the best bound")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(frameon=False, fontsize=8)
        return axis

    def covariance(self, n_features: int = 40, ax: Axes | None = None) -> Any:
        r"""Correlations of the latents of features given the covariates, by $\Sigma = CC^\top$: the `n_features` of largest
        variance, those that vary together side by side (average linkage of $1 - r$). Names are there for at most 60."""
        _check_count(n_features)
        loadings = np.asarray(self._fitted.loadings_, float)
        if len(loadings) < 2 or n_features < 2:
            raise ValueError(f"correlations need two features; the fit has {len(loadings)} and n_features is {n_features}")
        chosen = _largest(np.sum(loadings**2, axis=1), n_features)
        length = np.linalg.norm(loadings[chosen], axis=1, keepdims=True)
        unit = loadings[chosen] / np.where(length > 0, length, 1)
        correlation = np.clip(unit @ unit.T, -1, 1)
        np.fill_diagonal(correlation, 1.0)
        order = leaves_list(linkage(squareform(1 - correlation, checks=False), "average", optimal_ordering=True))
        side = max(5.6, 1.6 + 0.1 * min(len(chosen), NAMED))
        axis = single(ax, side + 0.8, side)
        image = axis.imshow(correlation[np.ix_(order, order)], cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
        names = [short(name) for name in self._features(chosen[order])]
        if len(names) > NAMED:
            axis.set(xticks=[], yticks=[], xlabel=f"{len(names)} features")
        else:
            size = min(8.0, 61 * axis.get_window_extent().height / axis.figure.dpi / len(names))
            axis.set_xticks(np.arange(len(names)), names, rotation=90, fontsize=size)
            axis.set_yticks(np.arange(len(names)), names, fontsize=size)
        axis.figure.colorbar(image, ax=axis, label="correlation of the latents", shrink=0.8)
        return axis

    def _units(self, axis: Axes, pair: list[int], colours: Any, level: float | None) -> None:
        axis.set(xlabel=self._title(pair[0]), ylabel=self._title(pair[1]))
        planes.scatter(axis, self._places(pair), colours, level)
        axis.set_aspect("equal", adjustable="datalim")
        _origin(axis)

    def _places(self, pair: list[int]) -> np.ndarray:
        return np.asarray(self._fitted.scores_, float)[:, pair]

    def _features(self, chosen: np.ndarray) -> list[str]:
        return [str(name) for name in self._fitted.table_.features[chosen]]

    def _title(self, k: int) -> str:
        return f"component {k + 1} ({100 * self._fitted.explained_variance_ratio_[k]:.1f}% of the variance)"

    def _plane(self, axes: Any) -> list[int]:
        rank = self._fitted.loadings_.shape[1]
        if rank < 2:
            raise ValueError("the fit has one component and a plane needs two; fit PLNPCA(rank=2) or more")
        pair = list(axes) if isinstance(axes, (tuple, list, np.ndarray)) else [axes]
        whole = all(isinstance(k, (int, np.integer)) and 0 <= k < rank for k in pair)
        if len(pair) != 2 or not whole or pair[0] == pair[1]:
            raise ValueError(f"axes must be two different components from 0 to {rank - 1}, such as (0, 1), not {axes!r}")
        return [int(k) for k in pair]

    def _covariates(self, covariate: Any) -> list[str]:
        known = list(self._fitted.table_.covariate_names)
        if covariate is None:
            return [name for name in known if name != "Intercept"] or known
        names = [covariate] if isinstance(covariate, str) else list(covariate)
        for name in names:
            if name not in known:
                raise ValueError(f'no covariate is called "{name}"; they are {known}')
        if not names:
            raise ValueError(f"covariate names none; give some of {known}")
        return names

    def _texts(self, labels: PerUnit | None) -> list[Any] | None:
        if labels is None or labels is False:
            return None
        table = self._fitted.table_
        return list(table.units) if labels is True else list(aligned(labels, table, "labels"))


def _share_up_to(table: Table, count: int, feature: int | None) -> float:
    """The share of entries of at most so many counts."""
    values = table.counts.values if feature is None else table.counts.values[:, [feature]]
    stored = values.data if hasattr(values, "indptr") else np.asarray(values).ravel()
    return 1 - float((stored > count).sum()) / (values.shape[0] * values.shape[1])


def rank_selection(choice: RankChoice, ax: Axes | None = None) -> Any:
    """AIC, BIC and ICL of each rank above the least of each, which is marked (smaller is better), with bars of one Monte Carlo
    error. The first ranks are often thousands worse, so that the scale is logarithmic from 10 on.

    Args:
        choice: what has a `table`, a frame by rank with columns aic, bic, icl and error, that of the log-likelihood.
    """
    table = choice.table.sort_index()
    axis: Any = single(ax, 6.0, 4.0)
    for (column, colour), marker in zip({"aic": BLUE, "bic": ORANGE, "icl": GREEN}.items(), planes.MARKERS, strict=False):
        best, least = table[column].idxmin(), table[column].min()
        axis.errorbar(table.index, table[column] - least, yerr=2 * table["error"], fmt=f"{marker}-", ms=4, lw=1, capsize=2,
                      color=colour, label=f"{column.upper()}: rank {best}, {least:.1f}")  # fmt: skip
        axis.plot([best], [0.0], marker, ms=11, mfc="none", mec=colour, mew=1.5)
    axis.set_yscale("symlog", linthresh=10.0)
    axis.set_xticks(table.index)
    axis.set(xlabel="rank", ylabel="criterion above its least")
    axis.legend(frameon=False, fontsize=8, title="least", title_fontsize=8)
    return axis


def _forest(axis: Axes, part: pd.DataFrame, n_features: int, order: str) -> None:
    z = part["z"].abs().fillna(-1.0).to_numpy()
    part = part.iloc[np.sort(_largest(z, n_features))]
    if order != "table":
        part = part.sort_values(order, ascending=False, kind="stable")
    places = np.arange(len(part))[::-1]
    centre, low, high = (part[column].to_numpy() for column in ("estimate", "ci_low", "ci_high"))
    axis.axvline(0.0, color="0.6", lw=0.8)
    away = (low > 0) | (high < 0)
    for member, colour in ((away, BLUE), (~away, "0.55")):
        half = np.nan_to_num((high - centre)[member])
        axis.errorbar(centre[member], places[member], xerr=half, fmt="o", ms=3, color=colour, elinewidth=1, capsize=1.5)
    axis.set_yticks(places, [short(name) for name in part.index], fontsize=6.5)
    axis.tick_params(axis="x", labelsize=7)
    axis.set_ylim(-0.7, len(part) - 0.3)


def _arrows(axis: Axes, tips: np.ndarray) -> None:
    start = np.zeros(len(tips))
    axis.quiver(start, start, *tips.T, angles="xy", scale_units="xy", scale=1, width=0.003, color=INK, zorder=3)
    axis.update_datalim(1.1 * tips)
    axis.autoscale_view()


def _along(tips: np.ndarray) -> np.ndarray:
    """Points along arrows from the origin."""
    return (np.linspace(0, 1, 40)[:, None, None] * tips).reshape(-1, 2)


def _origin(axis: Axes) -> None:
    axis.axhline(0, color="0.85", lw=0.7, zorder=0)
    axis.axvline(0, color="0.85", lw=0.7, zorder=0)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-values, kind="stable")[:count]


def _listed(head: str, names: pd.Index, most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return textwrap.fill(head + ", ".join(short(name) for name in names[:most]) + more, 42, break_on_hyphens=False)


def _check_count(n_features: object) -> None:
    if not isinstance(n_features, (int, np.integer)) or isinstance(n_features, bool) or n_features < 1:
        raise ValueError(f"n_features must be a whole number from 1, not {n_features!r}")
