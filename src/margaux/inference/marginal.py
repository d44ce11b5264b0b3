"""Marginal log-likelihood, with its Monte Carlo error."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import PyTree

from ..esteps import AbstractEStep, Exact, ImportanceSampling, Quadrature
from .evidence import annealed, harmonic_mean, student
from .posterior import each_unit, latent_size, nothing

#: method of `loglik`: function and its usual number of draws
EVIDENCE = {"harmonic": (harmonic_mean, 100_000), "student": (student, 20_000), "annealed": (annealed, 500)}


class LogLikelihood(float):
    """A log-likelihood: a float with `.se`, its error, and `.per_unit`, the units' own."""

    se: float
    per_unit: np.ndarray

    def __new__(cls, per_unit: np.ndarray, se: float) -> LogLikelihood:
        out = super().__new__(cls, float(np.sum(per_unit)))
        out.se, out.per_unit = float(se), per_unit
        return out

    def __getnewargs__(self) -> tuple[np.ndarray, float]:
        return self.per_unit, self.se

    def __repr__(self) -> str:
        return f"{float(self):.4f} (se {self.se:.2g})"


def loglik(
    fit: Any,
    method: str = "importance",
    n_draws: int | None = None,
    params: PyTree = None,
    n_nodes: int = 21,
    replicates: int = 16,
    estep: AbstractEStep | None = None,
    rows: PyTree = None,
) -> LogLikelihood:
    r"""$\log p(y\mid\theta)$, every constant included, at the estimate (or at `params`).

    "importance": a Laplace proposal widened by a defensive mixture, `replicates` independent
    randomisations of a quasi-Monte-Carlo rule with n_draws / replicates points each (n_draws: 2 million
    in all, 2,000 to 32,000 a unit); the error is the delta method's over them; `estep` puts another importance sampler
    in its place, with draws (and `rows`, see `proposals`) of its own. "quadrature": adaptive
    Gauss-Hermite; the error is the change from n_nodes - 4. "laplace": the same with one node, of
    unknown error (NaN). "exact": enumeration of a discrete latent. "harmonic", "student" and "annealed": see
    `margaux.inference.evidence`, for posteriors that one Gaussian does not cover.

    Raises:
        ValueError: unknown method. TypeError: the model does not allow it.
    """
    if method == "exact":
        exact = Exact()
        trouble = exact.requires(fit._model().model, None)
        values = None if trouble else each_unit(fit, nothing, exact, params)[1].get("log_marginal")
        if values is None:
            raise TypeError(trouble or "exact draws give no likelihood; use method='importance' or 'quadrature'")
        return LogLikelihood(values, 0.0)
    if method in ("quadrature", "laplace"):
        nodes = n_nodes if method == "quadrature" else 1
        _affordable(nodes, latent_size(fit))
        value = _quadrature(fit, params, nodes)
        if method == "laplace":
            return LogLikelihood(value, np.nan)
        return LogLikelihood(value, abs(value.sum() - _quadrature(fit, params, max(nodes - 4, 1)).sum()))
    if method in EVIDENCE:
        function, default = EVIDENCE[method]
        values, errors = function(fit, params, n_draws or default)
        return LogLikelihood(values, float(np.sqrt(np.sum(errors**2))))
    if method != "importance":
        raise ValueError(f"method must be one of {['importance', 'quadrature', 'laplace', 'exact', *EVIDENCE]}, got {method!r}")
    if n_draws is None:
        n_draws = int(np.clip(2_000_000 // fit._model().n, 2_000, 32_000))
    m = max(n_draws // replicates, 2) if estep is None else getattr(estep, "n_draws", 1000)
    estep = ImportanceSampling(m, quasi=True, control_variate=False) if estep is None else estep
    width = m * (latent_size(fit) + 2)
    draws = [
        each_unit(fit, nothing, estep, params, key=1 + r, width=width, rows=rows)[1]["log_marginal"] for r in range(replicates)
    ]
    logs = np.stack(draws).astype(float)
    top = logs.max(axis=0)
    ratios = np.exp(logs - top)
    mean = ratios.mean(axis=0)
    relative = ratios.std(axis=0, ddof=1) / mean / np.sqrt(replicates)
    return LogLikelihood(top + np.log(mean), float(np.sqrt(np.sum(relative**2))))


def _quadrature(fit: Any, params: PyTree, n_nodes: int) -> np.ndarray:
    width = n_nodes ** latent_size(fit) * (latent_size(fit) + 2)
    _, info = each_unit(fit, nothing, Quadrature(n_nodes), params, width=width)
    return info["log_marginal"].astype(float)


def _affordable(n_nodes: int, size: int) -> None:
    digits = size * np.log10(n_nodes)
    if digits > np.log10(2_000_000):
        raise ValueError(f"{n_nodes} nodes in {size} dimensions are 10^{digits:.1f} points a unit; use method='importance'")
