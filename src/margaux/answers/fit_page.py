"""The page of a `margaux.Fit`: a model of one's own."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
import pandas as pd

from ..answers.ending import ending
from ..esteps import Noise
from ..showing import convergence, estimates, facts, reproducing
from ..showing.figures import drawn
from ..showing.page import Paragraph, Part, Section, attempt, framed, nats, number, section
from .posterior import latent_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .fit import Fit


#: numbers in the draws up to which information is computed, latents of a unit up to which the likelihood is, and parameters up to
#: which there are standard errors
WORK, LATENTS, PARAMETERS = 100_000_000, 60, 200
#: units from which the likelihood of each is looked at
UNITS = 10


def heading(fit: Fit) -> tuple[str, str]:
    """Title and lead."""
    n = f"{fit.problem.n:,} unit{'s' if fit.problem.n > 1 else ''}" if fit.problem is not None else "data"
    count = len(fit.names)
    return facts.model_of(fit), f"Maximum marginal likelihood of {count:,} parameter{'s' if count > 1 else ''} from {n}."


def sections(fit: Fit, command: str | None = None) -> list[Section]:
    """The sections of the page."""
    return [
        fitted(fit),
        ending(fit, certificate=None if why_not(fit) else fit.certificate),
        estimated(fit),
        convergence_of(fit),
        goodness(fit),
        latents(fit),
        reproduce(fit, command),
    ]


def fitted(fit: Fit) -> Section:
    """What was fitted."""
    problem = fit.problem
    pairs: list[tuple[str, Any]] = [("Model", facts.model_of(fit))]
    if problem is not None:
        pairs += [("In words", facts.sentence(problem.model)), ("Units", f"{problem.n:,}"), ("Data", facts.sizes(fit.data))]
        pairs += [("Penalty", _named(problem.penalty, "NoPenalty"))]
    return section(
        "fitted", "What was fitted", facts.facts(*pairs, ("Parameters", facts.counted(fit.names)), *facts.running(fit))
    )


def why_not(fit: Fit) -> str:
    """Why standard errors and likelihoods are not for this page; "" where they are."""
    if fit.result.failed:
        return "the fit failed"
    if fit.problem is None:
        return "the fit was loaded without its model; pass model= and data= to margaux.load"
    if isinstance(fit.estep, Noise):
        return "a variational fit has no posterior draws to take information or likelihoods from"
    if len(fit.names) > PARAMETERS:
        return f"there are {len(fit.names):,} parameters, and a page computes them for at most {PARAMETERS}"
    size = latent_size(fit)
    if 2000 * fit.problem.n * (size + len(fit.names)) > WORK and fit.known("information/") is None:
        return f"for {fit.problem.n:,} units of {size:,} latents that takes long; call fit.summary() first, and the page has them"
    return ""


def estimated(fit: Fit) -> Section:
    """Estimates with intervals, or alone where there can be none."""
    reason = why_not(fit)
    if not reason:
        return estimates.estimates(
            fit.summary, "Estimates with Wald intervals (information by Louis' identity).", "fit.summary() has all of them"
        )
    return alone(fit, reason)


def alone(fit: Fit, reason: str) -> Section:
    """Estimates without intervals, and why."""
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(fit.params)]).astype(float)
    frame = pd.DataFrame({"estimate": flat}, index=pd.Index(fit.names))
    what = "Last finite values, not estimates." if fit.result.failed else "Estimates."
    told = Paragraph(f"Standard errors and intervals are left out: {reason}.")
    return section(estimates.ID, estimates.TITLE, told, estimates.table(frame, what, "fit.params has all of them"))


def convergence_of(fit: Fit, informed: bool = True, names: Mapping[str, str] = MappingProxyType({})) -> Section:
    """Diagnostics, each with its verdict, and the traces.

    Args:
        informed: with the checks that need the information. names: what the family calls the parameters of the fit.
    """
    checks = attempt("The diagnostics", lambda: convergence.diagnostics(quick(fit, informed), names))
    return section(
        convergence.ID,
        convergence.TITLE,
        checks,
        convergence.course(fit),
        attempt("The trace plot", lambda: convergence.trace(fit, names)),
    )


def quick(fit: Fit, informed: bool = True) -> pd.DataFrame:
    """`Fit.diagnostics`, without the checks that need the information where that is not for this page."""
    if why_not(fit) or not informed:
        return dataclasses.replace(fit, problem=None).diagnostics().drop(index="model", errors="ignore")
    return fit.diagnostics()


def goodness(fit: Fit) -> Section:
    """Marginal likelihood and criteria, and the units that the model finds hardest to believe."""
    return section("goodness", "Goodness of fit", attempt("The marginal log-likelihood", lambda: _goodness(fit)))


def _goodness(fit: Fit) -> list[Part]:
    reason = why_not(fit)
    if reason:
        raise ValueError(reason)
    size = latent_size(fit)
    if size > LATENTS and fit.known("loglik/auto") is None:
        raise ValueError(f"a unit has {size:,} latents, and importance sampling is for at most {LATENTS} on a page")
    value = fit.loglik()
    told = facts.facts(
        ("Log-likelihood", f"{nats(value)} (Monte Carlo error {number(value.se, 2)})"),
        ("AIC", nats(fit.aic)),
        ("BIC", nats(fit.bic)),
        ("Free parameters", fit.n_params),
    )
    return [told, *likelihoods(np.asarray(value.per_unit, float), None, fit._model().n)]


def likelihoods(per_unit: np.ndarray, names: Sequence[str] | pd.Index | None, n: int) -> list[Part]:
    """A histogram of log p(y_i), and the units of the lowest."""
    if len(per_unit) < UNITS or not np.isfinite(per_unit).all():
        return []
    order = np.argsort(per_unit, kind="stable")[:5]
    names = [f"unit {i}" for i in range(n)] if names is None else [str(name) for name in names]
    least = ", ".join(f"{names[i]} ({number(per_unit[i])})" for i in order)
    low, middle, high = np.quantile(per_unit, [0.0, 0.5, 1.0])

    def draw() -> Any:
        from matplotlib.figure import Figure as Drawing
        from matplotlib.ticker import MaxNLocator

        figure = Drawing(figsize=(5.4, 2.6), layout="constrained")
        axis = figure.subplots()
        axis.hist(per_unit, bins="fd" if len(per_unit) > 40 else 10, color="#0072B2", alpha=0.7)
        axis.set(xlabel="log-likelihood of a unit", ylabel="units")
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
        return figure

    figure = drawn(
        draw,
        f"Histogram of the log-likelihoods of {n:,} units, from {number(low)} to {number(high)}, median {number(middle)}.",
        f"Marginal log-likelihood by unit. The lowest: {least}. Units with more data have lower ones, of themselves.",
        ranges=False,
    )
    return [figure]


def latents(fit: Fit) -> Section:
    """Posterior means and standard deviations of the latents."""
    return section("latents", "The latent posterior", attempt("The latent posterior", lambda: _latents(fit)))


def _latents(fit: Fit) -> list[Part]:
    reason = why_not(fit)
    if reason:
        raise ValueError(reason)
    moments = fit.latents()
    paths = jax.tree_util.tree_flatten_with_path(moments["mean"])[0]
    rows: dict[str, dict[str, float]] = {}
    n, kept = fit._model().n, 0
    for (path, mean), sd in zip(paths, jax.tree.leaves(moments["sd"]), strict=True):
        flat, spread = np.reshape(mean, (n, -1)), np.reshape(sd, (n, -1))
        base = facts.path_name(path) or "latent"
        kept += flat.shape[1]
        for j in range(min(flat.shape[1], 200)):
            name = base if flat.shape[1] == 1 else f"{base}[{j}]"
            rows[name] = {
                "mean": flat[:, j].mean(),
                "lowest mean": flat[:, j].min(),
                "highest mean": flat[:, j].max(),
                "median posterior sd": float(np.median(spread[:, j])),
            }
    frame = pd.DataFrame.from_dict(rows, orient="index")
    if n == 1:
        frame = pd.DataFrame({"mean": frame["mean"], "posterior sd": frame["median posterior sd"]})
    caption = f"Posterior of the {kept:,} latents of a unit given its data" + (f", over {n:,} units." if n > 1 else ".")
    table = framed(frame, caption, "latent", rest="fit.latents() has all of them")
    figure: list[Part] = []
    if n > 1:
        first = next(iter(rows))
        alt = f"Posterior means of the latents of {n:,} units in rising order, with bars of one standard deviation: {first} "
        alt += f"from {number(rows[first]['lowest mean'])} to {number(rows[first]['highest mean'])}."
        figure = attempt(
            "The plot of the latents",
            lambda: drawn(fit.plot.latents, alt, "Posterior means of the latents by unit, sorted, and one standard deviation."),
        )
    return [*figure, table]


def reproduce(fit: Fit, command: str | None) -> Section:
    """The call, the seed, versions, and the checksum of the data."""
    return reproducing.reproducing(call(fit), fit.seed, _data(fit), command, "margaux.report.checksum(fit.data)", fit.dtype)


def _data(fit: Fit) -> Callable[[], Any]:
    def data() -> Any:
        if fit.data is None:
            raise ValueError("the fit was loaded without its data")
        return fit.data

    return data


def call(fit: Fit) -> str:
    """The call of `margaux.fit`, as far as the fit knows it."""
    names = ", ".join(f'"{name}": ...' for name in list(fit.params)[:8]) if isinstance(fit.params, dict) else "..."
    start = f"{{{names}}}" if isinstance(fit.params, dict) else names
    pieces = [facts.model_of(fit) + "(...)", "data"]
    pieces += [_text(part) for part in (fit.algorithm, fit.estep) if part is not None]
    body = ",\n    ".join([*pieces, f"params={start}", f"n_iter={fit.n_iter}", f"key={fit.seed}", f'dtype="{fit.dtype}"'])
    return f"margaux.fit(\n    {body},\n)"


def _text(part: object) -> str:
    text = eqx.tree_pformat(part, short_arrays=False, width=100)
    text = re.sub(r"Array\(([^(),]+?)\.?, dtype=\w+\)", r"\1", text).replace("\n", "\n    ")
    return text if len(text) < 1200 else f"{type(part).__name__}(...)"


def _named(thing: object, nothing: str) -> str:
    return "" if type(thing).__name__ == nothing else type(thing).__name__
