"""The page of a posterior of weights: Bayesian networks, and `fit_variational`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pandas as pd

from ...answers.ending import ending
from ...answers.fit_page import call
from ...showing import convergence, estimates, facts, reproducing
from ...showing.figures import drawn
from ...showing.page import Paragraph, Part, Section, Verdict, attempt, framed, number, section
from .laplace import LAPLACE
from .methods import SGMCMC

if TYPE_CHECKING:
    from .estimator import BayesianNetwork


#: observations that scores are taken of, weights up to which pruning is tried, and shares of them
OBSERVATIONS, WEIGHTS, SHARES = 2000, 200_000, (0.0, 0.25, 0.5, 0.75, 0.9, 0.95)
WORDS = "A neural network whose weights have independent Gaussian posteriors, by maximising the evidence bound."
AT_MODE = "A neural network whose weights have a Gaussian posterior at their mode, by Laplace's approximation."
BY_CHAINS = "A neural network with draws of its weights, by stochastic gradients with momentum and noise along cycles of steps."
BY_SWAG = "Neural networks whose weights have Gaussian posteriors by the moments of their way (SWAG)."
NARROW = {
    WORDS: "Variational posteriors are usually narrower than the truth: standard deviations are a lower guide to what is not "
    "known.",
    AT_MODE: "A Gaussian at one mode knows of no other, and is as wide as the log posterior bends there.",
    BY_CHAINS: "Means and deviations of weights are over modes that may be mirror images; predictions are what chains agree on.",
    BY_SWAG: "How wide these Gaussians are depends on step and blocks, and not on what the data leave open alone.",
}


def heading(model: Any) -> tuple[str, str]:
    """Title and lead."""
    if not hasattr(model, "history_"):
        count = sum(np.size(leaf) for leaf in jax.tree.leaves(model.mean))
        return "Variational fit", f"A Gaussian for {count:,} unknowns, by maximising the evidence bound."
    count = sum(np.size(leaf) for leaf in model.stderr_.values())
    what = "draws of their posterior" if model.method == SGMCMC else "a Gaussian posterior"
    lead = f"{count:,} weights with {what}, from {model.n_observations_:,} observations."
    return f"{type(model).__name__}: {model.network if isinstance(model.network, str) else type(model.network).__name__}", lead


def sections(model: Any, command: str | None = None) -> list[Section]:
    """The sections of the page."""
    if not hasattr(model, "history_"):
        return _variational(model, command)
    fit = model.result_
    by_mode = model.method == LAPLACE
    words = AT_MODE if by_mode else BY_CHAINS if model.method == SGMCMC else BY_SWAG if model.swag else WORDS
    extra = [Verdict("told", NARROW[words])]
    found = [("Log evidence", number(model.log_evidence_, 7)), ("Structure", model.structure_)] if by_mode else []
    return [
        section("fitted", "What was fitted", facts.facts(
            ("Model", type(model).__name__), ("In words", words), ("Observations", f"{model.n_observations_:,}"),
            ("Inputs", f"{model.n_features_in_:,}"), ("Classes", facts.listed(list(getattr(model, "classes_", [])))),
            ("Weights", f"{model.signal_to_noise().size:,}"), ("Method", _method(model)), ("Step", _step(model)),
            ("Epochs", len(model.history_)), ("Temperature", f"{model.temperature_:g}"), *found, *facts.running(fit))),
        ending(fit, model.message_, model.converged_, extra),
        section(estimates.ID, "Estimates: the posterior of the weights", _weights(model)),
        section(convergence.ID, convergence.TITLE, _course(model)),
        section("goodness", "Goodness of fit", _scores(model)),
        section("latents", "The latent posterior: signal and noise", _signal(model)),
        reproducing.reproducing(f"margaux.{model!r}.fit(X, y, ...)", model.random_state, lambda: _data(model), command,
                                "margaux.report.checksum(X, y), y coded as it was fitted", fit.dtype),
    ]  # fmt: skip


def _method(model: BayesianNetwork) -> str:
    method = model._method_for(model._is_much)
    if model.method == LAPLACE:
        return f"{LAPLACE}, the mode by {method}"
    if model.method == SGMCMC:
        return f"{SGMCMC}, {len(model.members_)} chains of {model.cycles} cycles, friction {model.friction:g}"
    if model.swag:
        return f"{len(model.members_)} Gaussians by SWAG"
    if model.members_:
        return f"{len(model.members_)} posteriors by {method}"
    return method if isinstance(method, str) else type(method).__name__


def _step(model: BayesianNetwork) -> str:
    return number(model.step_) if np.isscalar(model.step_) else type(model.step_).__name__


def _data(model: BayesianNetwork) -> Any:
    if model._data is None:
        raise ValueError("the observations of a fit are not saved with it")
    return model._data


def _weights(model: BayesianNetwork) -> list[Part]:
    heads = {"rms_mean": "rms of means", "median_sd": "median sd", "beyond_1_sd": "beyond 1 sd", "beyond_2_sd": "beyond 2 sd"}
    caption = "Weights by tensor: root mean square of the posterior means, median standard deviation, and the share whose mean "
    caption += "is further from zero than one and two of them."
    table = attempt(
        "The table of weights",
        lambda: framed(model.summary().drop(columns="temperature"), caption, "tensor", heads, rest="model.summary() has all"),
    )
    own = {name: value for name, value in model.params_.items() if name in ("noise", "prior_scale")}
    told = [facts.facts(*((name.replace("_", " ").capitalize(), number(value)) for name, value in own.items()))] if own else []
    return [*told, *table, *_temperatures(model)]


def _temperatures(model: BayesianNetwork) -> list[Part]:
    """What each temperature scored of observations held out, where one was chosen."""
    if not len(model.temperatures_):
        if model.method == LAPLACE:
            return [Paragraph("Posterior standard deviations are of each weight alone; weights are correlated.")]
        return [Paragraph(f"The divergence from the prior has weight {model.temperature_:g}.")]
    caption = (
        f"Mean log score of observations held out by temperature; {model.temperature_:g} was chosen. Differences are from it."
    )
    heads = {"log_score": "log score", "held_out": "held out"}
    table = model.temperatures_.set_index("temperature")
    return attempt("The table of temperatures", lambda: framed(table, caption, "temperature", heads))


def _course(model: BayesianNetwork) -> list[Part]:
    history = model.history_
    what = history.columns[1]
    first, last = (number(float(-history[what].iloc[i]), 4) for i in (0, -1))
    title, name = ("Log posterior", "log posterior") if what != "elbo" else ("Evidence bound", "ELBO")
    mark = "good" if model.converged_ else "careful"
    told: list[Part] = [Verdict(mark, f"{title}: minus the {name} an observation went from {first} to {last} in "
                                      f"{len(history):,} epochs. {model.message_}")]  # fmt: skip
    alt = f"Negative {name} an observation over {len(history):,} epochs, from {first} to {last}."
    caption = f"Negative {title.lower()} an observation, by epoch" + (
        ", of the fit and held out." if "validation" in history else "."
    )
    return [*told, *attempt("The plot of the bound", lambda: drawn(model.plot.elbo, alt, caption))]


def _signal(model: BayesianNetwork) -> list[Part]:
    ratios = model.signal_to_noise()
    share = 100 * float(np.mean(ratios > 1))
    alt = (
        f"Signal-to-noise ratios of {ratios.size:,} weights, median {number(np.median(ratios), 3)}; {number(share, 3)}% above 1."
    )
    return attempt("The plot of signal and noise", lambda: drawn(
        model.plot.signal_to_noise, alt, "|mean| / standard deviation of the weights, by tensor, and the share below it.",
        ranges=False))  # fmt: skip


def _observations(model: Any, data: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Some observations and their outcomes, as `evaluate` takes them."""
    x, y = data
    some = np.random.default_rng(0).choice(len(x), min(len(x), OBSERVATIONS), replace=False)
    if hasattr(model, "classes_"):
        return x[some], model.classes_[np.asarray(y)[some].astype(int)]
    location, scale = model._y_scale
    values = location + scale * np.asarray(y, float)[some]
    return x[some], np.round(values) if model.likelihood == "poisson" else values


#: what scores are called
SCORES = {"accuracy": "Accuracy", "log_score": "Log score", "brier": "Brier score", "ece": "Expected calibration error",
          "r2": "R²", "rmse": "Root mean square error", "elbo": "ELBO an observation"}  # fmt: skip


def _scores(model: Any) -> list[Part]:
    """Scores, of observations held out too where there are any; plots are then of these."""
    if model.result_.result.failed:
        return [Paragraph("Scores are left out: the fit failed.")]
    try:
        parts = {"of the fit": _observations(model, _data(model))}
    except ValueError as error:
        return [Paragraph(f"Scores are left out: {error}.")]
    if model._held_out is not None:
        parts["held out"] = _observations(model, model._held_out)
    sizes = " and ".join(f"{len(y):,} {name}" for name, (_, y) in parts.items())
    x, y = parts[last := list(parts)[-1]]
    told = (
        f"Scores of {sizes}; the plots are of those held out."
        if "held out" in parts
        else f"Of {len(y):,} observations of the fit itself, which flatters: see evaluate(X, y) for new ones."
    )

    def table() -> pd.DataFrame:
        frame = pd.DataFrame({name: model.evaluate(*part) for name, part in parts.items()})
        return frame.rename(index=SCORES)

    heads = {name: name for name in parts}
    note, scores = Paragraph(told), attempt("The scores", lambda: framed(table(), "Scores by part of the data.", "score", heads))
    plots = model.plot
    if hasattr(model, "classes_"):
        seen = attempt("The plot of reliability", lambda: drawn(
            lambda: plots.reliability(x, y), f"Accuracy against confidence of {len(y):,} observations {last}.",
            "Accuracy against the confidence of the likeliest class; on the dashed line it is calibrated."))  # fmt: skip
    else:
        seen = attempt("The plot of predictions", lambda: drawn(
            lambda: plots.predictions(x, y), f"{len(y):,} observed outcomes {last} against predicted means.",
            "Observed outcomes against predicted means, with two standard deviations."))  # fmt: skip
    if not model._has_bound:
        return [note, *scores, *seen]
    if model.signal_to_noise().size > WEIGHTS:
        return [
            note,
            *scores,
            *seen,
            Paragraph("Pruning is left out: it takes long for so many weights; see model.plot.pruning."),
        ]
    pruned = attempt("The plot of pruning", lambda: drawn(
        lambda: plots.pruning(x, y, SHARES, n_draws=10), f"Scores when up to {100 * SHARES[-1]:g}% of the weights are pruned.",
        "Scores when the weights of the smallest signal-to-noise ratios are zero."))  # fmt: skip
    return [note, *scores, *seen, *pruned]


def _variational(model: Any, command: str | None) -> list[Section]:
    """The page of a `VariationalFit`."""
    fit, history = model.result, model.history

    def summary() -> pd.DataFrame:
        return model.summary().rename(columns={"mean": "estimate", "sd": "se"})

    def draw() -> Any:
        from matplotlib.figure import Figure as Drawing

        axis = Drawing(figsize=(5.4, 3.0), layout="constrained").subplots()
        axis.plot(history["epoch"], history["elbo"], color="#0072B2", lw=1.2)
        axis.set(xlabel="epoch", ylabel="ELBO an observation")
        return axis

    first, last = (number(float(history["elbo"].iloc[i])) for i in (0, -1))
    course = attempt("The plot of the bound", lambda: drawn(
        draw, f"ELBO an observation over {len(history):,} epochs, from {first} to {last}.", "The evidence bound, by epoch.",
        ranges=False))  # fmt: skip
    told = Verdict("good" if model.converged else "careful", f"Evidence bound: from {first} to {last} an observation.")
    ratio = attempt("Signal and noise", lambda: Paragraph(
        f"Of {model.signal_to_noise().size:,} unknowns {100 * float(np.mean(model.signal_to_noise() > 2)):.0f}% are further than "
        "two posterior standard deviations from zero. The Gaussian has independent coordinates, so that its standard deviations "
        "are too small where unknowns depend on each other."))  # fmt: skip
    return [
        section("fitted", "What was fitted", facts.facts(
            ("Model", "VariationalFit"), ("In words", "Independent Gaussians nearest to a density."),
            ("Unknowns", facts.sizes(model.mean)),
            *facts.running(fit))),
        ending(fit),
        estimates.estimates(summary, "Posterior means, standard deviations and credible intervals.", "found.summary() has all"),
        section(convergence.ID, convergence.TITLE, told, course),
        section("goodness", "Goodness of fit", facts.facts(("ELBO", f"{number(model.elbo, 7)} ± {number(model.elbo.se, 2)}"))),
        section("latents", "The latent posterior", ratio),
        reproducing.reproducing(call(fit).replace("margaux.fit(", "margaux.fit_variational(", 1), fit.seed, lambda: fit.data,
                                command, "margaux.report.checksum(found.result.data)", fit.dtype),
    ]  # fmt: skip
