"""The posterior mean of x in y = A x + noise under a prior that a kernel brings, the noise level estimated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ...algorithms.recipes import soul
from ...engine.validate import whole
from ...esteps import MCMC
from ...fitting import fit as run
from ...kernels import AbstractPriorKernel
from ...kernels.plug_and_play import positive
from ...numerics.compiling import compiled
from ...numerics.keys import key_of
from ...numerics.precision import default_dtype, precision, settle
from ...problem.schedule import Constant
from ...problem.space import Box
from ...problem.units import one_unit
from .model import LinearLikelihood, as_operator, norm_squared

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from ...answers.fit import Fit

#: stretches of the chain, from which the error of its mean is told
STRETCHES = 10
#: how far log sigma^2 may go from its start, down and up
REACH = (18.0, 9.0)
#: how near to an end of its range log sigma^2 is at it, and the drift from which on a chain is too short
AT_END, DRIFTS = 0.5, 0.3


class Restored(NamedTuple):
    r"""What `restore` returns.

    Attributes:
        mean, sd: of the posterior of each entry of x, shaped as x. error: the Monte Carlo standard error of `mean`.
        drift: how far the means of the chain's halves are apart, as a root of the mean square over entries, in units of `sd`.
        sigma: the noise's standard deviation, given or estimated. fit: that estimated it (see `margaux.fit`), or None.
        message: what is wrong, or that nothing was seen to be: the fit's own message, a $\sigma$ at the end of its range, or a
            chain that is too short.
    """

    mean: np.ndarray
    sd: np.ndarray
    error: np.ndarray
    drift: float
    sigma: float
    fit: Fit | None
    message: str


def restore(
    A: Any,
    y: ArrayLike,
    kernel: AbstractPriorKernel,
    *,
    shape: tuple[int, ...] | None = None,
    noise_sd: float | None = None,
    start: ArrayLike | None = None,
    n_draws: int = 5000,
    warm_up: int = 1000,
    n_iter: int = 1000,
    random_state: int = 0,
    dtype: DTypeLike | None = None,
) -> Restored:
    r"""Posterior means and standard deviations of x in $y = Ax + \varepsilon$, $\varepsilon\sim N(0,\sigma^2I)$.

    Where $\sigma$ is not given, `margaux.soul` maximises the marginal likelihood $p(y\mid\sigma)$ first. There is no weight of
    the prior to estimate: a denoiser gives its score, not its normaliser.

    Args:
        A: as of `SparseInverse.fit`. y: the data. kernel: such as `margaux.PlugAndPlayULA(denoiser)`.
        shape: of x, where it is not a vector. noise_sd: $\sigma$; None to estimate it. start: of the chain, shaped as x; by
            default y, or $A^\top y/|A|^2$ where that has another shape.
        n_draws: states of the chain that are averaged, all after `warm_up` of them. n_iter: iterations of $\sigma$, which is
            looked for from $e^{-9}$ to $e^{4.5}$ times a third of the root of the mean square of y.
        dtype: "float32" or "float64".

    Raises:
        ValueError, TypeError: as `SparseInverse.fit`; a kernel that brings no prior, or whose denoiser or step is refused; a y
            whose values are all the same, from which $\sigma$ is to be estimated.
        FloatingPointError: the chain diverged. FitError: the fit of $\sigma$ did.
    """
    if not isinstance(kernel, AbstractPriorKernel):
        raise TypeError(f"kernel must bring a prior, such as margaux.PlugAndPlayULA(denoiser, eps=...); got {kernel!r}")
    n_draws, warm_up, n_iter = whole("n_draws", n_draws, STRETCHES), whole("warm_up", warm_up, 0), whole("n_iter", n_iter, 1)
    random_state = whole("random_state", random_state, 0)
    known = None if noise_sd is None else positive("noise_sd", noise_sd)
    y = np.asarray(y, float)
    if not np.all(np.isfinite(y)):
        raise ValueError(f"y holds {int(np.sum(~np.isfinite(y)))} values that are not finite; drop those rows of A and y")
    if known is None and y.size and np.ptp(y) == 0:
        raise ValueError(
            f"y is {y.flat[0]:.6g} everywhere: nothing varies that would tell the noise level; pass noise_sd=, or mend the data"
        )
    dtype = default_dtype(dtype)
    with precision(dtype):
        operator = settle(as_operator(A, y, shape, dtype), dtype)
        first = _start(operator, y, start, dtype)
    model, params, fitted, troubles = LinearLikelihood(operator, first, known), {}, None, []
    if known is None:
        level = float(np.log(0.1 * np.mean(y**2)))
        low, high = level - REACH[0], level + REACH[1]
        fitted = run(
            model,
            one_unit({"y": y}),
            soul(),
            MCMC(kernel, n_steps=2, warm_up=warm_up),
            params={"log_sigma2": level},
            space={"log_sigma2": Box(low, high)},
            n_iter=n_iter,
            key=random_state,
            dtype=dtype,
            polish=False,
            progress=False,
        )
        params, troubles = fitted.params, [fitted.message]
        if not low + AT_END < params["log_sigma2"] < high - AT_END:
            side, end = ("lower", low) if params["log_sigma2"] < level else ("upper", high)
            troubles.append(
                f"sigma ended at the {side} end of its range, {np.exp(end / 2):.3g}, and is no estimate: pass noise_sd=, or look "
                "whether A, y and the denoiser belong together."
            )
    sigma = float(np.exp(params["log_sigma2"] / 2)) if known is None else float(known)
    with precision(dtype):
        model, chain, params, batch = settle(
            (model, MCMC(kernel, n_steps=Constant(n_draws // STRETCHES)), params, {"y": y[None]}), dtype
        )
        unit = jax.tree.map(lambda leaf: leaf[0], batch)
        if (trouble := chain.refused(model, params, jnp.asarray(first, dtype), unit)) is not None:
            raise ValueError(trouble)
        row = _started(model, MCMC(kernel, warm_up=warm_up), params, unit, key_of(random_state))
        if fitted is not None:
            row = settle(jax.tree.map(lambda leaf: np.asarray(leaf)[0], fitted.rows), dtype)
        centre, moments = row["z"][0, 0], []
        for part in range(STRETCHES):
            key = jax.random.fold_in(key_of(random_state), part + 1)
            found, row = _stretch(settle(chain, dtype), model, params, row, batch, key, centre)
            moments.append([np.asarray(moment, float) for moment in found])
            if not all(np.all(np.isfinite(moment)) for moment in moments[-1]):
                raise FloatingPointError(
                    f"the chain diverged within {(part + 1) * (n_draws // STRETCHES)} transitions: leave step_size out or lower "
                    "it, pass bounds= to the kernel, or use a denoiser whose residual has a smaller Lipschitz constant"
                )
    means, squares = (np.stack(part) for part in zip(*moments, strict=True))
    mean = means.mean(axis=0)
    sd = np.sqrt(np.maximum(squares.mean(axis=0) - mean**2, 0))
    half = STRETCHES // 2
    gap = (means[:half].mean(axis=0) - means[half:].mean(axis=0)) / np.where(sd > 0, sd, 1)
    error = means.std(axis=0, ddof=1) / np.sqrt(STRETCHES)
    drift = float(np.sqrt(np.mean(gap**2)))
    if drift > DRIFTS:
        troubles.append(
            "The chain is too short: raise n_draws (the means of its halves are "
            f"{drift:.2g} posterior standard deviations apart)."
        )
    told = " ".join(troubles) or "The chain ended as asked."
    return Restored(mean + np.asarray(centre, float), sd, error, drift, sigma, fitted, told)


def _start(operator: Any, y: np.ndarray, start: ArrayLike | None, dtype: np.dtype) -> np.ndarray:
    if start is None:
        if y.shape == operator.shape:
            return y
        return np.asarray(operator.adjoint(jnp.asarray(y, dtype)), float) / max(float(norm_squared(operator)), 1e-12)
    first = np.asarray(start, float)
    if first.shape != operator.shape or not np.all(np.isfinite(first)):
        raise ValueError(f"start must be finite and of shape {operator.shape}, that of x; it has {first.shape}")
    return first


@compiled
def _started(model: Any, estep: Any, params: PyTree, unit: PyTree, key: Array) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[None], estep.init(key, model, params, unit))


@compiled
def _stretch(
    estep: Any, model: Any, params: PyTree, row: PyTree, batch: PyTree, key: Array, centre: Array
) -> tuple[tuple[Array, Array], PyTree]:
    """Means of z and of its squares about a centre over some transitions, and the chain's row after them."""

    def moments(z, w):
        away = z[:, 0] - centre
        return jnp.einsum("m,m...->...", w[:, 0], away), jnp.einsum("m,m...->...", w[:, 0], away**2)

    noise = jax.tree.map(lambda leaf: leaf[None], estep.noise(key, centre))
    value, row, _ = estep.expect(moments, noise, model, params, row, batch, 1)
    return value, row
