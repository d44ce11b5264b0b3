"""Whether a fit of a regression with missing covariates is at a maximum, whose it is, and what its errors are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy

from ...answers.certificate import Certificate, Check, Level
from ...numerics.compiling import compiled
from ...numerics.inverse import within
from ...numerics.ladder import padded, rung
from . import answers, fitness
from .families import AbstractFamily, Gaussian, Poisson
from .layout import Arranged, Layout
from .likelihood import CLOSE, UNDEFINED, Likelihood, Sample, newton_step, outcomes
from .multinomial import Multinomial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Array, PyTree


#: standard errors from the maximum up to which an estimate is at it, and from which on it is nowhere
AT, OFF = 0.03, 0.25
#: error of the log-likelihood that is none, and one that misleads
EXACT, WRONG = 0.02, 0.5
#: coefficients a standard deviation of their column, and standard errors of them, that are taken for infinite
FINITE, WIDE = 15.0, 10.0
#: share of a parameter's gradient along the directions of infinite coefficients from which it is infinite itself
ALONG = 0.01
#: smallest eigenvalue of a correlation matrix of covariates, without and with a maximum, smallest share of a residual
#: variance, and rows expected in a cell, below which the estimate lies on the edge
SINGULAR, COLLINEAR, PERFECT, EMPTY = 1e-4, 1e-9, 1e-6, 0.5
#: falls of the log-likelihood a standard error away (a half for a parabola) beyond which Wald intervals are not to be used
SHALLOW, FLAT = 0.12, 0.02
#: complete rows a column below which, and standard errors a standard deviation above which, other starts are tried
COMPLETE, VAGUE = 10, 0.3
#: how standard errors are worked out
ERRORS = ("model", "robust")
#: rows whose integrals are done again, nodes for them, and the fall of the integrand beyond which nothing is left of it
SOME, NODES, LOST = 1000, 601, 50.0


class Verdict(NamedTuple):
    """What is known of an estimate.

    Attributes:
        loglik: in the units of the fit. information: observed, of the f free coordinates. kept: (f, .), a basis of the directions
            in which the estimate is finite.
        distance: standard errors from the maximum. numbers: the checks of whether it is one; certificate: all checks.
    """

    loglik: float
    information: np.ndarray
    kept: np.ndarray
    distance: float
    numbers: Certificate
    certificate: Certificate

    @staticmethod
    def of(layout: Layout, likelihood: Likelihood, flat: np.ndarray, data: Arranged, information: np.ndarray | None = None,
           others: np.ndarray | Sequence[float] = ()) -> Verdict:  # fmt: skip
        """Args: information: where it is known. others: log-likelihoods that other starts reached."""
        value, slope = likelihood.objective(flat)
        information, table = likelihood.information(flat) if information is None else information, layout.table
        params = likelihood.struct.params(likelihood.whole(flat))
        infinite, names = _runaway(layout, likelihood, information, np.asarray(params["beta"]))
        kept = scipy.linalg.null_space(infinite.T) if infinite.size else np.eye(len(flat))
        distance, least = _settled(information, likelihood.size * slope, kept)
        share = answers.shares(likelihood.family, params, data, True)
        error = likelihood_error(likelihood, params, share)
        falls = _falls(likelihood, flat, information, kept) if distance < OFF else np.zeros(0)
        checks = (_gradient(distance), _likelihood(*error), _information(least), _separation(names),
                  _boundary(layout, likelihood, params, distance), *_shape(layout, likelihood, falls))  # fmt: skip
        numbers = Certificate(checks).and_also(_starts(-value * likelihood.size, np.asarray(others)))
        told = (Check(one.kind, one.figure, np.nan, np.nan, "careful", one.sentence + ".") for one in table.suspicions)
        certificate = numbers.and_also(*goodness(likelihood.family, params, data, layout).checks, *told)
        return Verdict(-value * likelihood.size, information, kept, distance, numbers, certificate)

    def may_have_rivals(self, layout: Layout, likelihood: Likelihood) -> bool:
        """Whether so few rows are complete, and coefficients so uncertain, that the likelihood may have several maxima."""
        x = layout.table.x
        complete = int((~np.isnan(x).any(axis=1)).sum())
        if self.numbers.word == "failed" or complete >= min(COMPLETE * (x.shape[1] + 1), len(x)):
            return False
        slopes = (likelihood.free < likelihood.struct.sizes[0]) & (likelihood.free > 0)
        return bool(np.diagonal(np.linalg.pinv(self.information))[slopes].max(initial=0.0) > VAGUE**2)

    def covariance(self, layout: Layout, likelihood: Likelihood, flat: np.ndarray, kind: str = "model") -> np.ndarray:
        """Of the coefficients, in the order of the summary's rows; NaN of those that are infinite."""
        jacobian = layout.standard.jacobians(likelihood.struct, likelihood.whole(flat))["beta"]
        count = int(np.prod(likelihood.struct.lead, dtype=int))
        places = np.arange(len(jacobian)).reshape(count, -1)[:, layout.table.order].ravel()
        free = jacobian[places][:, likelihood.free]
        lost = np.isnan(self.errors(layout, likelihood, flat, kind)["beta"][places])
        if not self.distance < OFF:
            return np.full((len(free), len(free)), np.nan)
        covariance = free @ self._free_covariance(likelihood, flat, kind) @ free.T
        covariance[lost], covariance[:, lost] = np.nan, np.nan
        return covariance

    def _free_covariance(self, likelihood: Likelihood, flat: np.ndarray, kind: str) -> np.ndarray:
        covariance = within(self.information, self.kept)
        if kind == "robust":
            scores = likelihood.scores(flat)
            covariance = covariance @ (scores.T @ scores) @ covariance
        return covariance

    def errors(self, layout: Layout, likelihood: Likelihood, flat: np.ndarray, kind: str) -> dict[str, np.ndarray]:
        """Standard errors of beta, mean, ... in natural units, flat, by the delta method; zero of what is left out, NaN of what
        is infinite, and of everything where there is no maximum."""
        jacobians = layout.standard.jacobians(likelihood.struct, likelihood.whole(flat))
        out = {name: np.full(len(jacobian), np.nan) for name, jacobian in jacobians.items()}
        if not self.distance < OFF:
            return out
        covariance = self._free_covariance(likelihood, flat, kind)
        for name, jacobian in jacobians.items():
            free = jacobian[:, likelihood.free]
            errors = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", free, covariance, free), 0.0))
            lost = np.linalg.norm(free - free @ self.kept @ self.kept.T, axis=1) > ALONG * np.linalg.norm(free, axis=1)
            out[name] = np.where(lost, np.nan, errors)
        return out

    @staticmethod
    def cell_shares(likelihood: Likelihood, params: PyTree) -> np.ndarray:
        """Probabilities of the cells, (C,), averaged over the rows."""
        one = likelihood.sample.completions
        assert one is not None
        shares = scipy.special.softmax(np.asarray(one.designs) @ np.asarray(params["cells"]) @ np.asarray(one.features).T, axis=1)
        return shares[np.asarray(one.design)].mean(axis=0)


def _runaway(layout: Layout, likelihood: Likelihood, information: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Directions of the free coordinates, (f, .), along which coefficients are infinite, or may be, and what moves along them: so
    uncertain, or so large, that data of this size could not tell them from it. A Gaussian outcome has none."""
    f, table = len(information), layout.table
    if isinstance(likelihood.family, Gaussian):
        return np.zeros((f, 0)), []
    values, vectors = np.linalg.eigh(information)
    values = np.maximum(np.abs(values), 1e-14 * np.abs(values).max())
    # Gaussian columns and those of discrete covariates are standardised in the fit, others are as they are.
    widths = np.ones(beta.shape[-1])
    widths[table.order[1:][table.fixed]] = table.x[:, table.fixed].std(axis=0)
    count = int(np.sum(likelihood.free < beta.size))
    places = likelihood.free[:count]
    scale = np.broadcast_to(widths, beta.shape).ravel()[places]
    covariance = (vectors[:count] / values) @ vectors[:count].T
    spread, along = np.linalg.eigh(covariance * np.outer(scale, scale))
    wide = along[:, spread > WIDE**2] / scale[:, None]
    slope = np.broadcast_to(np.arange(beta.shape[-1]) > 0, beta.shape).ravel()[places]
    large = np.eye(count)[:, slope & (np.abs(beta.ravel()[places]) * scale > FINITE)]
    directions = np.zeros((f, wide.shape[1] + large.shape[1]))
    directions[:count] = np.concatenate([wide, large], axis=1)
    if not directions.size:
        return directions, []
    directions = scipy.linalg.orth(directions)
    jacobian = layout.standard.jacobians(likelihood.struct, likelihood.whole(np.zeros(f)))["beta"][:, likelihood.free]
    moved = np.linalg.norm(jacobian @ directions, axis=1) > ALONG * np.linalg.norm(jacobian, axis=1)
    index = answers.coefficient_index(table.names, table.classes if beta.ndim == 2 else None)
    return directions, [name for name, own in zip(index, moved.reshape(beta.shape)[..., table.order].ravel(), strict=True) if own]


def _settled(information: np.ndarray, gradient: np.ndarray, kept: np.ndarray) -> tuple[float, float]:
    """How far the maximum is in the directions that are kept, in standard errors, NaN where there is none; and the smallest
    eigenvalue of their information as a correlation matrix."""
    part = kept.T @ information @ kept
    scale = np.sqrt(np.maximum(np.diagonal(part), 1e-300))
    least = float(np.linalg.eigvalsh(part / np.outer(scale, scale))[0])
    return (newton_step(part, kept.T @ gradient)[1] if least > 0 else float("nan")), least


def goodness(family: AbstractFamily | Multinomial, params: PyTree, data: Arranged, layout: Layout) -> Certificate:
    """Checks that tell whether the model is that of the data."""
    kept = np.bincount(data.owner, np.asarray(data.rows.weights), data.n) > 0
    y = np.empty(data.n)
    y[data.owner] = np.asarray(data.rows.y)
    out = Certificate(())
    if isinstance(family, (Gaussian, Poisson)):
        long = data.padded()
        m, v, _ = long.restored(outcomes(family, long.groups, params, Sample(long.rows, data.completions)))
        z, mean = fitness.outcome_residuals(family, params, data, m, v, answers.shares(family, params, data, False))
        z, mean = z[kept], mean[kept]
        if isinstance(family, Gaussian):
            out = out.and_also(fitness.normality(z), fitness.evenness(z, mean))
        else:
            out = out.and_also(fitness.dispersion(z, np.size(params["beta"])))
    else:
        expected = answers.expected_outcome(family, params, data)
        out = out.and_also(fitness.calibration(expected[kept], y[kept], layout.table.classes))
        z = fitness.class_residuals(expected, y)[kept]
    table = layout.table
    own = [name for name, kind in zip(table.names, table.gaussian, strict=True) if kind]
    out = out.and_also(fitness.linearity(z, layout.standard.apply(table.x[:, table.gaussian])[kept], own))
    holes = np.isnan(table.x[:, table.gaussian]).any(axis=0)
    if holes.any():
        residuals = np.where(holes, fitness.left_out(params, data), np.nan)
        out = out.and_also(fitness.covariates(residuals, own))
    return out


def likelihood_error(likelihood: Likelihood, params: PyTree, share: np.ndarray | None) -> tuple[float, float]:
    """How far the log-likelihood is from that of another, finer rule, on a thousand rows at most, and its sampling error."""
    family = likelihood.family
    if isinstance(family, Gaussian):
        return 0.0, 0.0
    m, v, log_outcome = likelihood.outcomes(params)
    open_rows = np.flatnonzero(v > 0 if v.ndim == 1 else np.trace(v, axis1=1, axis2=2) > 0)
    some = np.random.default_rng(0).permutation(open_rows)[:SOME]
    if not some.size:
        return 0.0, 0.0
    y = likelihood.y[some]
    # As many as any table of this size may have, so that another one finds the program.
    size = rung(min(len(m), SOME))
    y_long, m_long, v_long = padded((y, m[some], v[some]), size)
    finer: Any = _finer if isinstance(family, Multinomial) else _dense
    finer = finer(family, y_long, m_long, v_long)[: len(some)]
    weights = likelihood.weights[some] * (1.0 if share is None else share[some])
    gaps = weights * (finer - log_outcome[some])
    ratio = len(open_rows) / len(some)
    missed = np.sqrt(max(ratio - 1, 0.0) * ratio * len(some)) * float(np.std(gaps))
    return abs(float(gaps.sum()) * ratio), missed


def _dense(family: AbstractFamily, y: np.ndarray, m: np.ndarray, v: np.ndarray) -> np.ndarray:
    """log p(y) for a predictor N(m, v), by a dense trapezoidal rule over all where the integrand can be."""
    low, high = _reach(y, m, v) if isinstance(family, Poisson) else (m - 10 * np.sqrt(v), m + 10 * np.sqrt(v))
    grid = np.linspace(low, high, NODES, axis=1)
    logs: Any = np.asarray(_log_density(family, np.asarray(y)[:, None], grid))
    logs = logs - (grid - m[:, None]) ** 2 / (2 * v[:, None])
    return scipy.special.logsumexp(logs, axis=1) + np.log((grid[:, 1] - grid[:, 0]) / np.sqrt(2 * np.pi * v))


def _reach(y: np.ndarray, m: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Where the integrand of counts has fallen by `LOST` on either side of its mode, which with W Lambert's function is
    $m + vy - W(ve^{m+vy})$: a step t away it has fallen by $e^{mode}(e^t - 1 - t) + t^2/2v$."""
    mode = m + v * y - scipy.special.wrightomega(np.log(v) + m + v * y)
    ends = []
    for side in (-1.0, 1.0):
        near, far = np.zeros_like(m), np.sqrt(2 * LOST * v)
        for _ in range(40):
            t = side * (near + far) / 2
            short = np.exp(mode) * (np.expm1(np.minimum(t, 500)) - t) + t**2 / (2 * v) < LOST
            near, far = np.where(short, np.abs(t), near), np.where(short, far, np.abs(t))
        ends.append(mode + side * far)
    return ends[0], ends[1]


@compiled
def _log_density(family: AbstractFamily, y: Array, eta: Array) -> Any:
    return family.log_density(y, eta, jnp.ones((), eta.dtype))


def _finer(family: Multinomial, y: np.ndarray, m: np.ndarray, v: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(v)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None]
    return np.asarray(_finer_marginal(family, jnp.asarray(y), jnp.asarray(m.T), jnp.asarray(np.moveaxis(root, 0, 2))))


@compiled
def _finer_marginal(family: Multinomial, y: Array, mean: Array, root: Array) -> Any:
    return family.marginal(y, mean, root, finer=True)[0]


def _gradient(distance: float) -> Check:
    if np.isnan(distance):
        said = "The estimate is at no maximum: the likelihood curves upwards there; standard errors are left out."
        return Check("gradient", distance, 0.0, AT, "failed", said)
    level: Level = "pass" if distance < AT else "careful" if distance < OFF else "failed"
    said = f"The estimate is {distance:.2g} standard errors from the maximum" + (
        "." if level == "pass" else ": the search for it ended early, as where it has not been polished or hardly has an end."
    )
    return Check("gradient", distance, 0.0, AT, level, said)


def _likelihood(error: float, missed: float) -> Check:
    level: Level = "pass" if error < EXACT else "careful" if error < WRONG else "failed"
    good = f"The log-likelihood agrees with a finer rule to {error:.1g}."
    bad = (f"The log-likelihood is off by {error:.2g} by a finer rule: the predictor is too uncertain for the quadrature, as "
           "where coefficients are very large or more than three classes miss much.")  # fmt: skip
    return Check("likelihood", error, missed, EXACT, level, good if level == "pass" else bad)


def _information(least: float) -> Check:
    good = least > 1e-10
    bad = "The information is singular: some combination of parameters is not determined by these data; drop a column."
    return Check("information", least, float("nan"), 1e-10, "pass" if good else "failed",
                 "The information is positive definite." if good else bad)  # fmt: skip


def _separation(names: list[str]) -> Check:
    if not names:
        return Check("separation", 0.0, float("nan"), 0.0, "pass", "No coefficient is infinite.")
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    said = (f"The estimate of {shown} may be infinite: the covariates all but tell the outcomes apart, or too few rows tell the "
            "covariates apart; it has no standard error. Drop or merge columns.")  # fmt: skip
    return Check("separation", float(len(names)), float("nan"), 0.0, "failed", said)


def _falls(likelihood: Likelihood, flat: np.ndarray, information: np.ndarray, kept: np.ndarray) -> np.ndarray:
    r"""Of each coefficient, by how much the log-likelihood falls a standard error away, the others following as the information
    says; the lesser of both sides. Infinite of those that are infinite themselves.

    One side is looked at; $\frac12t^2 + ct^3 + dt^4$ with the fall and the slope there tells the other.
    """
    value = likelihood.objective(flat)[0]
    covariance = within(information, kept)
    count = int(np.sum(likelihood.free < likelihood.struct.sizes[0]))
    out = np.full(count, np.inf)
    for j in np.flatnonzero(np.linalg.norm(kept[:count], axis=1) > 1 - ALONG):
        step = covariance[:, j] / np.sqrt(covariance[j, j])
        there, slope = likelihood.objective(flat + step)
        if not there < UNDEFINED:
            step = -step
            there, slope = likelihood.objective(flat + step)
        fall, steep = likelihood.size * (there - value), likelihood.size * float(slope @ step)
        cubic = 4 * (fall - 0.5) - (steep - 1)
        out[j] = min(fall, fall - 2 * cubic)
    return out


def _shape(layout: Layout, likelihood: Likelihood, falls: np.ndarray) -> list[Check]:
    if not np.isfinite(falls).any():
        return []
    j, table = int(falls.argmin()), layout.table
    lead = likelihood.struct.lead
    index = answers.coefficient_index(table.names, table.classes if lead else None)
    k, place = divmod(int(likelihood.free[j]), likelihood.struct.sizes[0] // int(np.prod(lead, dtype=int)))
    name = index[k * len(table.order) + int(np.flatnonzero(table.order == place)[0])]
    fall = float(falls[j])
    if fall < -FLAT:
        level = "failed"
        said = f"The likelihood is higher by {-fall:.2g} a standard error away along {name}: the estimate is no maximum."
    elif fall < SHALLOW:
        level = "careful"
        said = (f"The likelihood falls by {fall:.2g} only a standard error away along {name}, where a half is expected: too "
                "much is missing for its standard error and interval to mean much.")  # fmt: skip
    else:
        level, said = "pass", "The likelihood falls on both sides of the estimate as its standard errors say."
    return [Check("shape", fall, float("nan"), SHALLOW, level, said)]  # type: ignore[arg-type]


def _starts(loglik: float, others: np.ndarray) -> Check | None:
    if not others.size:
        return None
    same = int(np.sum(others > loglik - 2 * CLOSE))
    figure = float(same / len(others))
    if same:
        return Check("starts", figure, float("nan"), 0.0, "pass", f"{same} of {len(others)} other starts reach this maximum.")
    return Check("starts", figure, float("nan"), 0.0, "careful",
                 f"None of {len(others)} other starts reaches this maximum, the nearest ends {loglik - others.max():.2g} below: "
                 "with so few complete rows there may be a higher one.")  # fmt: skip


def _boundary(layout: Layout, likelihood: Likelihood, params: PyTree, distance: float) -> Check:
    table = layout.table
    names = [name for name, own in zip(table.names, table.gaussian, strict=True) if own]
    covariance = np.asarray(params["covariance"])
    if len(covariance):
        scale = np.sqrt(np.diagonal(covariance))
        values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
        # Columns that are all but the same are so wherever a maximum has been found.
        if values[0] < (SINGULAR if not distance < AT else COLLINEAR):
            involved = [f'"{names[j]}"' for j in np.argsort(-np.abs(vectors[:, 0]))[:3]]
            return Check("boundary", float(values[0]), float("nan"), SINGULAR, "failed",
                         f"The covariance of the covariates is all but singular along {', '.join(involved)}: too few rows "
                         "have them together, so that the likelihood grows towards its edge; drop one of them.")  # fmt: skip
    if "scale" in params and float(params["scale"]) < PERFECT * float(np.var(table.y)):
        return Check("boundary", float(params["scale"]), float("nan"), PERFECT * float(np.var(table.y)), "failed",
                     "The residual variance is all but zero: the covariates tell the outcome exactly, as where there are as many "
                     "coefficients as rows.")  # fmt: skip
    one = likelihood.sample.completions
    if one is not None:
        logits = np.asarray(one.designs) @ np.asarray(params["cells"]) @ np.asarray(one.features).T
        share = scipy.special.softmax(logits, axis=1)
        least = float(likelihood.size * share.max(axis=0).min())
        if least < EMPTY:
            return Check("boundary", least, float("nan"), EMPTY, "careful",
                         f"A cell of the discrete covariates is expected to hold {least:.2g} rows: standard errors near it are "
                         "rough; merge levels.")  # fmt: skip
        return Check("boundary", least, float("nan"), EMPTY, "pass", "No parameter lies on the edge of what it may be.")
    figure = float("nan") if not len(covariance) else float(values[0])
    return Check("boundary", figure, float("nan"), SINGULAR, "pass", "No parameter lies on the edge of what it may be.")
