"""Marginal log-likelihood, with its Monte Carlo error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import PyTree

from ..esteps import AbstractEStep, Exact, ImportanceSampling, Laplace, ModeMixture, Quadrature
from ..numerics.ladder import rung
from ..numerics.sampling import HEAVY, pooled
from ..problem.model import AbstractDiscrete, AbstractLikelihood, costly
from .evidence import annealed, harmonic_mean, student
from .posterior import each_unit, latent_size, nothing
from .proposing import proposals
from .rules import CORRECTED, TRIED, Rule, best_rule, weighted_draws

if TYPE_CHECKING:
    from .fit import Fit


#: scale of the wider rule that a quadrature is held to
WIDER = 1.4
#: of four latents, whose other answers are by draws: nodes, those that they are to agree with, and the scale of wider ones; and
#: points over all units, of the finer grid, up to which they are no more than draws would be
FOUR, FEW_POINTS = (7, 9, 1.2), 2_000_000

#: method of `loglik`: function and its usual number of draws
EVIDENCE = {"harmonic": (harmonic_mean, 100_000), "student": (student, 20_000), "annealed": (annealed, 500)}
#: standard error that a likelihood by "auto" is brought below, and times its draws that this may take
TOLERANCE, PATIENCE = 0.02, 16
#: share of it that a quadrature may be off by, and of models whose densities take long
SHARE, COSTLY_SHARE = 0.5, 1.5
#: effective draws from Laplace's approximation, in a replicate, below which they tell nothing
FEW_EFFECTIVE = 5
#: replicates of importance sampling
REPLICATES = 8


class LogLikelihood(float):
    """A log-likelihood: a float with `.se`, its error, and `.per_unit`, the units' own.

    `.method` says how it was computed, `.message` what is not to be trusted about it, if anything is.
    """

    se: float
    per_unit: np.ndarray
    method: str
    message: str

    def __new__(cls, per_unit: np.ndarray, se: float, method: str = "", message: str = "") -> LogLikelihood:
        out = super().__new__(cls, float(np.sum(per_unit)))
        out.se, out.per_unit, out.method, out.message = float(se), per_unit, method, message
        return out

    def __getnewargs__(self) -> tuple[np.ndarray, float, str, str]:
        return self.per_unit, self.se, self.method, self.message

    def __repr__(self) -> str:
        return f"{float(self):.4f} (se {self.se:.2g})"


def loglik(
    fit: Fit,
    method: str = "auto",
    n_draws: int | None = None,
    params: PyTree = None,
    n_nodes: int = 21,
    replicates: int = REPLICATES,
    estep: AbstractEStep | None = None,
    rows: PyTree = None,
    rule: Rule | None = None,
    tol: float = TOLERANCE,
    first_key: int = 1,
    units: np.ndarray | None = None,
) -> LogLikelihood:
    r"""$\log p(y\mid\theta)$, every constant included, at the estimate (or at `params`).

    "auto": enumeration of a discrete latent; up to three latents, or four of few units, adaptive Gauss-Hermite quadrature, if
    each posterior has one mode and the rule agrees with a finer and with a finer and wider one; otherwise "importance": draws
    from a mixture over the modes of each unit (`margaux.esteps.ModeMixture`), `replicates` independent randomisations of a
    quasi-Monte-Carlo rule, more of them for the units that need it until the error is below `tol`, or `.message` says that it
    is not, or that modes may be missing. The error is the delta method's over replicates. `estep` puts another importance sampler
    in its place, with draws (and `rows`, see `proposals`) of its own. "quadrature" and "laplace" (one node, of unknown error)
    whatever the posterior looks like,
    "exact": enumeration alone. "harmonic", "student" and "annealed": see `margaux.answers.evidence`.

    Args:
        n_draws: of importance sampling, in all replicates; by default two million over all units, 2,000 to 32,000 a unit.
        rule: from `best_rule`, where it is there already. first_key: draws are by this key and the next ones. units: ids of
            those that `estep` is for; all by default.

    Raises:
        ValueError: unknown method. TypeError: the model does not allow it. UndefinedDensity: a log density is NaN.
    """
    if isinstance(model := fit._model().model, AbstractLikelihood):
        raise TypeError(
            f"the prior of {type(model).__name__} is known by its score alone, not by its density, and so no marginal "
            "likelihood is, nor AIC or BIC"
        )
    if estep is not None:
        width = _width(fit, estep)
        keys = range(first_key, first_key + replicates)
        infos = [each_unit(fit, nothing, estep, params, key=key, width=width, rows=rows, units=units)[1] for key in keys]
        values, relative = pooled(np.stack([info["log_marginal"] for info in infos]))
        return LogLikelihood(values, float(np.sqrt(np.sum(relative**2))), "importance sampling")
    if method == "auto" or method == "importance":
        rule = best_rule(fit, params) if rule is None else rule
        if isinstance(rule.estep, Exact) and rule.deterministic:
            method = "exact"
        elif isinstance(rule.estep, Laplace):
            return _approximated(fit, params, rule, method)
        elif method == "auto" and isinstance(rule.estep, Quadrature) and n_draws is None:
            found = agreed(fit, params, rule)
            if found.se <= tol * share_of_quadrature(fit):
                return found
        elif method == "auto" and n_draws is None and (grid := _grid_of_four(fit, rule)) is not None:
            found = agreed(fit, params, grid, wider=FOUR[2])
            if found.se <= tol * share_of_quadrature(fit):
                return found
    if method == "exact":
        return _enumerated(fit, params)
    if method in ("quadrature", "laplace"):
        return _by_quadrature(fit, params, n_nodes if method == "quadrature" else 1)
    if method in EVIDENCE:
        _refuse_discrete(fit, method)
        function, default = EVIDENCE[method]
        values, errors = function(fit, params, n_draws or default)
        return LogLikelihood(values, float(np.sqrt(np.sum(errors**2))), method)
    if method not in ("auto", "importance"):
        known = ["auto", "importance", "quadrature", "laplace", "exact", *EVIDENCE]
        raise ValueError(f"method must be one of {known}, got {method!r}")
    return _by_importance(fit, params, rule, n_draws, replicates, tol, first_key)


def _approximated(fit: Fit, params: PyTree, rule: Rule, method: str) -> LogLikelihood:
    """Laplace's, whose error weighted draws tell; or by these."""
    draws = _corrected(fit, rule, params)
    if method == "importance":
        return draws
    figures = each_unit(fit, nothing, rule.estep, params, width=_width(fit, rule.estep), rows=rule.rows)[1]
    values = figures["log_marginal"].astype(float)
    # Where determinants are estimated, both have them.
    estimated = float(np.sqrt(np.sum(figures.get("log_marginal_se", np.zeros(1)) ** 2)))
    error = abs(float(draws) - values.sum()) + 2 * draws.se + estimated
    return LogLikelihood(values, error, "Laplace's approximation", draws.message)


def _corrected(fit: Fit, rule: Rule, params: PyTree = None, tol: float = 0.02) -> LogLikelihood:
    """The log-likelihood by weighted draws from the approximation; more of them until its error is small."""
    draws = weighted_draws(fit, rule)
    logs: list[np.ndarray] = []
    ess = np.zeros(0)
    for count in range(4):
        found: list[dict[str, np.ndarray]] = []
        for key in range(count * CORRECTED, (count + 1) * CORRECTED):
            found.append(each_unit(fit, nothing, draws.estep, params, key=1 + key, width=draws.width, rows=rule.rows)[1])
            ess = np.min([info["ess"] for info in found], axis=0)
            if len(found) > 1 and np.median(ess) < FEW_EFFECTIVE:
                break  # more of them tell no more
        logs += [info["log_marginal"] for info in found]
        values, relative = pooled(np.stack(logs))
        se = float(np.sqrt(np.sum(relative**2)))
        if se <= tol or ess.min() < FEW_EFFECTIVE:
            break
    few = float(ess.min())
    message = "" if few >= FEW_EFFECTIVE else f"the weights have an effective size of {few:.1f}: the error itself is too small"
    return LogLikelihood(values, se, "weighted draws from Laplace's approximation", message)


def _enumerated(fit: Fit, params: PyTree) -> LogLikelihood:
    exact = Exact()
    trouble = exact.requires(fit._model().model, None)
    values = None if trouble else each_unit(fit, nothing, exact, params)[1].get("log_marginal")
    if values is None:
        raise TypeError(trouble or "exact draws give no likelihood; use method='auto'")
    return LogLikelihood(values, 0.0, "enumeration")


def _refuse_discrete(fit: Fit, method: str) -> None:
    if isinstance(fit._model().model, AbstractDiscrete):
        raise TypeError(f'method="{method}" needs continuous latents; those of this model are enumerated: use method="exact"')


def _by_quadrature(fit: Fit, params: PyTree, n_nodes: int) -> LogLikelihood:
    _refuse_discrete(fit, "quadrature")
    _affordable(n_nodes, latent_size(fit))
    value = _marginals(fit, params, Quadrature(n_nodes))
    if n_nodes == 1:
        return LogLikelihood(value, np.nan, "Laplace approximation")
    error = abs(value.sum() - _marginals(fit, params, Quadrature(max(n_nodes - 4, 1))).sum())
    return LogLikelihood(value, error, "quadrature")


def _grid_of_four(fit: Fit, rule: Rule) -> Rule | None:
    """A quadrature over four latents at the means and scales of proposals for draws; None where it cannot be trusted, or costs
    more than draws."""
    nodes, finer, _ = FOUR
    if not isinstance(rule.estep, ImportanceSampling) or rule.modes is None or rule.modes.max() > 1:
        return None
    if latent_size(fit) != 4 or fit._model().n * finer**4 > FEW_POINTS:
        return None
    own = {name: rule.rows[name][:, 0] for name in ("mean", "cholesky")}
    return Rule(Quadrature(nodes, held=True), own, 1, nodes**4 * 6, rule.modes, rule.away, finer)


def agreed(
    fit: Fit, params: PyTree, rule: Rule, coarse: np.ndarray | None = None, wider: float = WIDER
) -> LogLikelihood:  # fmt: skip
    """By the finer rule; its error is how far the given one (whose values may be there already), and a wider one, are from it."""
    return of_quadrature(*beside_others(fit, params, rule, coarse, wider))


def of_quadrature(value: np.ndarray, off: np.ndarray) -> LogLikelihood:
    """Of units' own (n,), which other rules were so far from (2, n)."""
    # Errors of units may cancel in the sum: no less than they would make if they were independent.
    error = max(np.abs(off.sum(axis=1)).max(), float(np.sqrt(np.sum(np.abs(off).max(axis=0) ** 2))))
    return LogLikelihood(value, error, "quadrature")


def beside_others(
    fit: Fit, params: PyTree, rule: Rule, coarse: np.ndarray | None = None, wider: float = WIDER
) -> tuple[np.ndarray, np.ndarray]:
    """Each unit's log-likelihood by the finer quadrature, and how far the given one and a wider one are from it (2, n)."""
    value, reaching = (_marginals(fit, params, rule.finely(wide), rule.rows) for wide in (1.0, wider))
    coarse = _marginals(fit, params, rule.estep, rule.rows) if coarse is None else coarse
    return value, np.stack([value - coarse, value - reaching])


def share_of_quadrature(fit: Fit) -> float:
    """Of the error that a likelihood may have, what a quadrature may be off by; beyond it finer rules or draws are tried."""
    return COSTLY_SHARE if costly(fit._model().model) else SHARE


def marginals(fit: Fit, rule: Rule) -> np.ndarray:
    """Of each unit by a deterministic rule, unchecked."""
    return _marginals(fit, None, rule.estep, rule.rows)


def _marginals(fit: Fit, params: PyTree, estep: AbstractEStep, rows: PyTree = None) -> np.ndarray:
    _, info = each_unit(fit, nothing, estep, params, width=_width(fit, estep), rows=rows)
    return info["log_marginal"].astype(float)


def _width(fit: Fit, estep: AbstractEStep) -> int:
    size = latent_size(fit)
    if isinstance(estep, Quadrature):
        return estep.n_nodes**size * (size + 2)
    draws = getattr(estep, "n_draws", 1000)
    return (draws if isinstance(draws, int) else 1000) * (size + 3)


def _by_importance(
    fit: Fit, params: PyTree, rule: Rule | None, n_draws: int | None, replicates: int, tol: float, first_key: int = 1
) -> LogLikelihood:
    n, size = fit._model().n, latent_size(fit)
    if size > TRIED:
        raise TypeError(
            f"importance sampling from dense Gaussians is hopeless for {size} latents a unit, and this model gives no other "
            'likelihood; use method="annealed", "harmonic" or "student", and look at its error'
        )
    if n_draws is None:
        n_draws = int(np.clip(2_000_000 // rung(n), 2_000, 32_000))
    draws = rule.estep if rule is not None and isinstance(rule.estep, ImportanceSampling) else None
    estep = ImportanceSampling(max(n_draws // replicates, 20), draws.proposal if draws else ModeMixture(), quasi=True)
    rows = rule.rows if draws and rule is not None else proposals(fit, estep, params)
    width = _width(fit, estep)

    def visited(keys: range, units: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        infos = [each_unit(fit, nothing, estep, params, key=first_key + r, width=width, rows=rows, units=units)[1] for r in keys]
        return np.stack([i["log_marginal"] for i in infos]).astype(float), infos[-1]

    everyone = np.arange(n)
    logs, figures = visited(range(replicates), everyone)
    values, relative = pooled(logs)
    ess, pareto = np.array(figures["ess"]), np.array(figures["pareto"])
    held = [logs[:, i] for i in range(n)]
    count, spent = replicates, 1
    while np.sqrt(np.sum(relative**2)) > tol and spent < PATIENCE:
        # More replicates for the units that hold most of the variance, from proposals learned anew where weights are heavy.
        order = np.argsort(-relative)
        enough = int(np.searchsorted(np.cumsum(relative[order] ** 2), 0.98 * np.sum(relative**2))) + 1
        some = np.sort(order[:enough])
        heavy = some[pareto[some] > HEAVY]
        if len(heavy):
            fresh = proposals(fit, estep, params, units=heavy, key=count)
            rows = jax.tree.map(lambda old, new, at=heavy: _placed(old, new, at), rows, fresh)
        more, figures = visited(range(count, count + replicates), some)
        count, spent = count + replicates, spent + 1
        ess[some], pareto[some] = figures["ess"], np.minimum(pareto[some], figures["pareto"])
        for place, i in enumerate(some):
            held[i] = np.concatenate([held[i], more[:, place]])
            value, error = pooled(held[i][:, None])
            values[i], relative[i] = value[0], error[0]
    se = float(np.sqrt(np.sum(relative**2)))
    message = ""
    bad = np.flatnonzero(pareto > HEAVY)
    worst = int(relative.argmax())
    if se > tol:
        message = f"its standard error of {se:.2g} is above {tol:g}, most of it from unit {worst}"
    if len(bad) and relative[bad].max() > tol / 4:
        shape, size = pareto[bad].max(), ess[bad].min()
        message += ("; " if message else "") + (
            f"the weights of {len(bad)} units are so uneven (Pareto k up to {shape:.2f}, effective size {size:.1f}) "
            "that the error itself is too small"
        )
    if lost := int(np.sum(rows.get("unseen", np.zeros(1)) > 0)):
        message += ("; " if message else "") + (
            f"the posteriors of {lost} units have more modes than were found ({int(rows['modes'].max())}), or may have: without "
            "the others a likelihood is too low"
        )
    return LogLikelihood(values, se, "importance sampling", message)


def _placed(old: np.ndarray, new: np.ndarray, at: np.ndarray) -> np.ndarray:
    out = np.array(old)
    out[at] = new[at]
    return out


def _affordable(n_nodes: int, size: int) -> None:
    digits = size * np.log10(n_nodes)
    if digits > np.log10(2_000_000):
        raise ValueError(f"{n_nodes} nodes in {size} dimensions are 10^{digits:.1f} points a unit; use method='importance'")
