"""When SAEM has run long enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ...engine.callbacks import AbstractCallback, Progress
from .model import MixedEffects
from .outcomes import PRESENT

if TYPE_CHECKING:
    from jaxtyping import PyTree


#: how far the last thirds of a trace may lie apart: in standard errors, and in standard deviations of the trace at gain one
IN_ERRORS, IN_NOISE, AT_LEAST = 0.25, 0.4, 0.1


class Settled(AbstractCallback):
    """Stops when the Monte Carlo error is small beside the statistical one.

    The means of the second and the last third of what came after the burn-in must differ by less than a quarter of the standard
    error that a parameter would have if the individual parameters were observed (its true one is larger), or by less than
    a tenth of the SD that its trace had in the second half of the burn-in. For parameters without random effect, and those
    of composite errors, 0.4 of that SD is the measure. Not before 100 iterations after the burn-in.

    Args:
        model, units, start: what is fitted, and from which parameters. n_burn: iterations at gain one.
        slack: times the measures above, where Newton's steps are to do the rest.
    """

    def __init__(
        self, model: MixedEffects, units: dict[str, Any], start: dict[str, Any], n_burn: int, slack: float = 1.0
    ) -> None:
        self.model, self.units, self.start, self.n_burn, self.slack = model, units, start, n_burn, slack

    def __call__(self, progress: Progress) -> bool:
        trace = progress.trace.get("params")
        if trace is None or progress.iteration < self.n_burn + 100:
            return False
        noise = trace[self.n_burn // 2 : self.n_burn, 0].std(axis=0)
        _, second, last = (part.mean(axis=0) for part in np.array_split(trace[self.n_burn :, 0], 3))
        errors = complete_errors(self.model, self.units, _like(self.start, last))
        allowed = np.where(np.isnan(errors), IN_NOISE * noise, np.fmax(IN_ERRORS * errors, AT_LEAST * noise))
        return bool(np.all(np.abs(last - second) <= self.slack * allowed + 1e-8 * (1 + np.abs(last))))

    def close(self) -> None:
        return None


def _like(tree: PyTree, flat: np.ndarray) -> Any:
    """A flat vector in the structure of a pytree."""
    leaves, structure = jax.tree.flatten(tree)
    parts = np.split(flat, np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
    return structure.unflatten([part.reshape(np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)])


def complete_errors(model: MixedEffects, units: dict[str, Any], params: dict[str, Any]) -> np.ndarray:
    r"""Standard errors of the parameters, flat, if every $\phi_i$ were observed: NaN where they have no closed form.

    $\omega_j\sqrt{((C_j^\top C_j)^{-1})_{kk}}$ of coefficients, $\sqrt{(\omega_{jj}\omega_{kk}+\omega_{jk}^2)/n}$ of
    (co)variances, $\gamma^2\sqrt{2/\sum_i K_i}$ between occasions,
    $\gamma\sqrt{((X^\top X)^{-1})_{kk}}$ of coefficients of covariates of occasions, $a/\sqrt{2N}$ of an
    error's scale with N observations.
    """
    design = np.asarray(units["design"])
    n = len(design)
    out: dict[str, Any] = jax.tree.map(lambda leaf: np.full(leaf.shape, np.nan), params)
    variances = np.zeros(len(model.random))
    if "omega2" in params:
        variances[model.independent] = params["omega2"]
        out["omega2"] = params["omega2"] * np.sqrt(2 / n)
    for block, matrix in zip(model.blocks, params.get("omega", ()), strict=True):
        variances[list(block)] = np.diagonal(matrix)
    if "omega" in params:
        own = [np.diagonal(matrix) for matrix in params["omega"]]
        out["omega"] = tuple(np.sqrt((np.outer(v, v) + m**2) / n) for v, m in zip(own, params["omega"], strict=True))
    for position, j in enumerate(model.random):
        columns = model.coefficients(j)
        gram = np.linalg.pinv(design[:, columns].T @ design[:, columns])
        out["beta"][columns] = np.sqrt(variances[position] * np.diagonal(gram))
    if model.varying:
        out["gamma2"] = params["gamma2"] * np.sqrt(2 / np.sum(units[PRESENT]))
    occasions: Any = model
    for place, j in enumerate(model.varying):
        if columns := model.shifts(j):
            x = occasions.covariates(design)[..., columns].reshape(-1, len(columns))
            out["delta"][columns] = np.sqrt(params["gamma2"][place] * np.diagonal(np.linalg.pinv(x.T @ x)))
    if model.closed_error:
        outcome: Any = model.outcome
        counts = [np.sum(units["mask"][own]) for _, own in outcome.error.parts(units["rows"])]
        out["error"] = params["error"] / np.sqrt(2 * np.asarray(counts))
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(out)])
