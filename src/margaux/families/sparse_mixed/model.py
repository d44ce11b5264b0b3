"""Logistic regression with a random intercept a group."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from scipy import sparse
from scipy.special import expit, logsumexp

from ...numerics.density import bernoulli_logit
from ...problem.model import AbstractModel, AbstractPointwise, AbstractPredictive

#: Newton steps to a posterior mode, at most, and the change at which they end
NEWTON_STEPS, NEWTON_TOLERANCE = 100, 1e-10


class MixedLogistic(AbstractModel, AbstractPointwise, AbstractPredictive):
    r"""$y_i\sim\mathrm{Bernoulli}(\mathrm{logit}^{-1}(a + v_i^\top\beta + \sigma x_{g(i)}))$, $x_j\sim N(0, 1)$.

    The model of De Bortoli, Durmus, Pereyra and Vidal (2021), section 4.3, with the loading vector of an
    observation the indicator of its group. One unit: its data are `X` (rows, p), `y` (rows,) in {0, 1} and
    `group` (rows,), codes in 0, ..., n_groups - 1; its latent is x (n_groups,). Parameters: "beta" (p,),
    "sigma" and, where there is one, "intercept" (a).

    >>> import jax.numpy as jnp
    >>> unit = {"X": jnp.ones((2, 1)), "y": jnp.array([0.0, 1.0]), "group": jnp.array([0, 1])}
    >>> params = {"beta": jnp.zeros(1), "sigma": jnp.ones(())}
    >>> round(float(MixedLogistic(n_groups=2).log_joint(params, jnp.zeros(2), unit)), 4)
    -3.2242
    """

    n_groups: int = eqx.field(static=True)

    def log_joint(self, params, z, y):
        return jnp.sum(self.pointwise(params, z, y)) + jnp.sum(norm.logpdf(z))

    def pointwise(self, params, z, y):
        return bernoulli_logit(y["y"], self._logits(params, z, y))

    def simulate(self, key, params, z, y):
        return {"y": jax.random.bernoulli(key, jax.nn.sigmoid(self._logits(params, z, y))).astype(z.dtype)}

    def _logits(self, params, z, y):
        return y["X"] @ params["beta"] + params.get("intercept", 0.0) + params["sigma"] * z[y["group"]]

    def init_latents(self, key, params, y):
        return jnp.zeros(self.n_groups, y["X"].dtype)


def group_posteriors(
    eta: np.ndarray, sigma: float, y: np.ndarray, group: np.ndarray, n_groups: int, n_nodes: int = 40
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Marginal log-likelihood and posterior of each group's effect, by adaptive Gauss-Hermite quadrature.

    Given $\eta_i = a + v_i^\top\beta$ the groups are independent, so that the likelihood is a product of
    one-dimensional integrals. Nodes are centred at each posterior mode and scaled by its curvature
    (Pinheiro and Bates 1995).

    Returns:
        log p(y of group j), E[x_j | y] and sd[x_j | y], each (n_groups,).

    >>> import numpy as np
    >>> value, mean, sd = group_posteriors(np.zeros(2), 1.0, np.array([0.0, 1.0]), np.array([0, 1]), 2)
    >>> np.round(value, 6).tolist(), np.round(mean, 3).tolist()
    ([-0.693147, -0.693147], [-0.413, 0.413])
    """

    x, share, norming = _nodes(eta, sigma, y, group, n_groups, n_nodes)
    mean = np.sum(share * x, axis=0)
    return norming, mean, np.sqrt(np.sum(share * (x - mean) ** 2, axis=0))


def _nodes(
    eta: np.ndarray, sigma: float, y: np.ndarray, group: np.ndarray, n_groups: int, n_nodes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes of each group's effect, their posterior weights, (nodes, groups) both, and log p(y of group j)."""

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(group, weights=values, minlength=n_groups)

    def log_joint(x: np.ndarray) -> np.ndarray:
        logit = eta + sigma * x[group]
        return total(y * logit - np.logaddexp(0, logit)) - x**2 / 2 - np.log(2 * np.pi) / 2

    def curvature(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = expit(eta + sigma * x[group])
        return sigma * total(y - p) - x, 1 + sigma**2 * total(p * (1 - p))

    mode = np.zeros(n_groups)
    height = log_joint(mode)
    for _ in range(NEWTON_STEPS):
        gradient, hessian = curvature(mode)
        step = gradient / hessian
        if np.max(np.abs(step)) < NEWTON_TOLERANCE:
            break
        # The log joint is strictly concave: a halved Newton step always ends higher.
        for _ in range(30):
            risen = log_joint(mode + step)
            worse = risen < height - 1e-12 * np.abs(height)
            if not worse.any():
                break
            step = np.where(worse, step / 2, step)
        mode, height = mode + step, risen
    scale = curvature(mode)[1] ** -0.5
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    x = mode + scale * nodes[:, None]
    logs = np.stack([log_joint(row) for row in x]) + nodes[:, None] ** 2 / 2 + np.log(weights)[:, None]
    norming = np.asarray(logsumexp(logs, axis=0))
    return x, np.exp(logs - norming), norming + np.log(scale)


def group_scores(
    X: np.ndarray,
    eta: np.ndarray,
    sigma: float,
    y: np.ndarray,
    group: np.ndarray,
    n_groups: int,
    active: np.ndarray,
    intercept: bool,
    n_nodes: int = 40,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Gradient of the marginal log-likelihood, and Louis' observed information of some of its parameters.

    Args:
        active: (p,), the coefficients of the information, which the intercept, where there is one, and $\sigma$ follow.

    Returns:
        The gradient in beta, intercept and $\sigma$; the information; and of each coefficient that of complete data, (p,).

    >>> import numpy as np
    >>> X, y, group = np.ones((4, 1)), np.array([0.0, 0.0, 1.0, 1.0]), np.array([0, 1, 0, 1])
    >>> slope, information, _ = group_scores(X, np.zeros(4), 0.0, y, group, 2, np.array([True]), False)
    >>> bool(np.abs(slope).max() < 1e-12), bool(np.allclose(information, np.eye(2)))
    (True, True)
    """
    x, share, _ = _nodes(eta, sigma, y, group, n_groups, n_nodes)
    p = expit(eta + sigma * x[:, group])
    weight = share[:, group]
    gap, curved = y - p, weight * p * (1 - p)
    fixed = np.hstack([X[:, active], np.ones((len(y), int(intercept)))])
    slope = np.concatenate(
        [X.T @ (weight * gap).sum(axis=0), np.ones(int(intercept)) * np.sum(weight * gap), [np.sum(weight * gap * x[:, group])]]
    )
    k = fixed.shape[1]
    complete, lost = np.empty((k + 1, k + 1)), np.zeros((k + 1, k + 1))
    complete[:k, :k] = fixed.T @ (fixed * curved.sum(axis=0)[:, None])
    complete[:k, k] = complete[k, :k] = fixed.T @ np.sum(curved * x[:, group], axis=0)
    complete[k, k] = np.sum(curved * x[:, group] ** 2)
    member = sparse.csr_matrix((np.ones(len(y)), (group, np.arange(len(y)))), shape=(n_groups, len(y)))
    mean = np.zeros((n_groups, k + 1))
    for node, own, one in zip(x, share, gap, strict=True):
        score = np.hstack([member @ (fixed * one[:, None]), ((member @ one) * node)[:, None]])
        mean += own[:, None] * score
        lost += score.T @ (own[:, None] * score)
    return slope, complete - lost + mean.T @ mean, curved.sum(axis=0) @ X**2


def complete_curvature(X: np.ndarray, intercept: bool = False, turns: int = 50) -> float:
    r"""A bound on the largest eigenvalue of $-\nabla^2_\theta\log p(x, y\mid\theta)$ at a typical x, by power iteration.

    It is a quarter of that of $V^\top V$, of the intercept's column and of $\sigma$'s, the squares of each of the last
    two summing to about the number of rows.

    >>> import numpy as np
    >>> complete_curvature(np.eye(4) * 2)
    2.0
    """
    v = np.cos(np.arange(1.0, X.shape[1] + 1) ** 2)
    for _ in range(turns):
        v = X.T @ (X @ (v / np.linalg.norm(v)))
    return float(np.linalg.norm(v) + len(X) * (1 + intercept)) / 4
