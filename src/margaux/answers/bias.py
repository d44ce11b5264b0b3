"""What the discretisation of an unadjusted kernel does to the estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from ..algorithms.average import PolyakRuppert
from ..engine.job import run_alone
from ..engine.loop import TRACED
from ..engine.settings import FitSettings
from ..esteps import MCMC
from ..kernels import PlugAndPlayULA
from ..kernels.coupling import halved
from ..numerics.arrays import taken
from ..numerics.compiling import compiled
from ..numerics.inverse import absolute
from ..numerics.precision import default_dtype, precision, settle
from ..problem.model import for_searches, mapped
from ..problem.schedule import AbstractSchedule
from ..problem.target import Target
from .certificate import Check

if TYPE_CHECKING:
    import pandas as pd

    from .fit import Fit


#: batches for the Monte Carlo error of the shift
BATCHES = 20
#: share of a fit's transitions that its certificate spends on the bias, sets of noise for its error, and a bias that matters,
#: in standard errors
SHARE, SETS, MATTERS = 0.2, 4, 0.25
#: transitions of all units together that a set has at least
LEAST = 2000
#: share of the longest stable step that a chain may have at the estimate
NEAR = 0.9
#: units that are asked for theirs at most, and numbers of latents that are asked at a time
LOOKED, AT_ONCE = 4096, 1 << 18


class Shifted(AbstractSchedule):
    """A schedule read `by` iterations further on."""

    schedule: AbstractSchedule
    by: int

    def __call__(self, k):
        return self.schedule(k + self.by)


def bias_probe(fit: Fit, n_iter: int | None = None, key: int = 0) -> pd.DataFrame:
    r"""The last stretch of a fit run again with its step $\gamma$ and with $\gamma/2$, on the same Brownian path.

    With a bias of order $\gamma^p$ the estimate is off by
    $(\hat\theta_\gamma-\hat\theta_{\gamma/2})/(1-2^{-p})$ (Richardson): p = 1 for overdamped kernels, 2 for
    `LeimkuhlerMatthews`, `Underdamped` and `UnadjustedHMC`. SOUL bounds it by $O(\gamma^{1/2})$ (theorem 2); it is measured here.

    Args:
        n_iter: iterations of the stretch, by default a fifth of the fit's, at least 2,000; the second half counts.

    Returns:
        A frame with a row a scalar parameter: `shift` ($\hat\theta_\gamma-\theta^\star$, estimated), its Monte
        Carlo error `mc_error`, both in standard errors (`shift_in_se`, `mc_error_in_se`), and the `corrected`
        estimate. `attrs["message"]` says whether the bias matters (more than a tenth of a standard error).

    Raises:
        ValueError, TypeError: not a chain, an exact kernel, or a loaded fit.
    """
    import pandas as pd

    if fit.algorithm is None:
        raise ValueError("a loaded fit has no algorithm to run again; probe the fit before saving it")
    if not isinstance(fit.estep, MCMC):
        raise TypeError(f"only Markov chains have a step to halve; this fit used {type(fit.estep).__name__}")
    coarse, fine, order = halved(fit.estep.kernel)
    if "params" not in fit.trace:
        raise ValueError(f"the probe follows traces, kept for at most {TRACED} scalar parameters; this fit has {len(fit.names)}")
    length = max(fit.n_iter // 5, 2000) if n_iter is None else n_iter
    start = max(fit.n_iter - length, 0)
    shifted = jax.tree.map(lambda s: Shifted(s, start) if _is_schedule(s) else s, fit.algorithm, is_leaf=_is_schedule)
    traces = []
    for kernel in (coarse, fine):
        estep = eqx.tree_at(lambda e: (e.kernel, e.warm_up), fit.estep, (kernel, max(fit.estep.warm_up, 500)))
        problem = fit._model()
        asked = FitSettings(
            params=fit.last_params,
            n_iter=length,
            dtype=fit.dtype,
            key=key,
            space=problem.space,
            penalty=problem.penalty,
            average=PolyakRuppert(),
        )
        out = run_alone(problem.model, fit.units, shifted, estep, asked)
        traces.append(out.trace["params"][length // 2 :, 0].astype(float))
    gap = (traces[0] - traces[1]) / (1 - 2.0**-order)
    shift = gap.mean(axis=0)
    each = len(gap) // BATCHES
    batches = gap[: each * BATCHES].reshape(BATCHES, each, -1).mean(axis=1)
    error = batches.std(axis=0, ddof=1) / np.sqrt(BATCHES)
    summary = fit.summary()
    estimate, se = summary["estimate"].to_numpy(float), summary["se"].to_numpy(float)
    frame = pd.DataFrame(
        {
            "estimate": estimate,
            "shift": shift,
            "mc_error": error,
            "shift_in_se": shift / se,
            "mc_error_in_se": error / se,
            "corrected": estimate - shift,
        },
        index=fit.names,
    )
    frame.attrs["message"] = _verdict(frame)
    return frame


def _verdict(frame: pd.DataFrame) -> str:
    size = frame["shift_in_se"].abs().to_numpy(float)
    if not np.all(np.isfinite(size)):
        return "Standard errors are missing, so the shift is judged by eye: compare it with the estimate."
    j = int(np.argmax(size))
    worst, name, noise = size[j], frame.index[j], frame["mc_error_in_se"].to_numpy(float)[j]
    if worst - 2 * noise > 0.1:
        return f"The kernel's bias matters: {name} is off by about {worst:.2f} standard errors; lower the step size."
    if worst + 2 * noise <= 0.1:
        return f"The kernel's bias is small: at most {worst:.3f} standard errors ({name})."
    return f"The probe is too noisy to tell ({worst:.2f} +- {noise:.2f} standard errors for {name}); run it longer."


def kernel_bias(fit: Fit) -> Check | None:
    r"""How far an unadjusted kernel's discretisation moves the estimate, in standard errors, by scores at the estimate alone.

    The chains go on with the step $\gamma$ and with $\gamma/2$ on the same Brownian path. Their scores differ by
    $b_\gamma - b_{\gamma/2}$, b the bias of the score, so that to first order the estimate is off by
    $I^{-1}(b_\gamma - b_{\gamma/2})/(1-2^{-p})$ (see `bias_probe`, which runs the fit's end again and needs more). The cost is at
    most a fifth of the fit's transitions, or `LEAST` of all units together.

    Returns:
        A check whose figure is the shift of the parameter that moves most; None where there is no unadjusted chain or no
        standard error to hold it to.
    """
    from .rules import Rule
    from .scores import Coordinates, evaluate

    estep = fit.estep
    if not isinstance(estep, MCMC) or estep.kernel.adjusted or fit.rows is None or fit.problem is None or fit.result.failed:
        return None
    information, coordinates = fit.information(), Coordinates(fit)
    se = information.se
    covariance = information.covariance
    if not np.any(np.isfinite(se)):
        # Away from the maximum, where a bias leads, curvatures may be of either sign: their size tells how far is far.
        jacobian = coordinates.jacobian(coordinates.to(fit.params))
        covariance = jacobian @ absolute(information.matrix) @ jacobian.T
        se = np.sqrt(np.diagonal(covariance))
    if not np.any(np.isfinite(se)):
        return None
    coarse, fine, order = halved(estep.kernel)
    n_steps = _transitions(fit)
    rows = jax.tree.map(lambda leaf: np.asarray(leaf[0]), fit.rows)
    width = 2 * n_steps * estep.n_chains * sum(leaf[0].size for leaf in jax.tree.leaves(rows["z"]))
    scores = []
    for kernel in (coarse, fine):
        # A schedule of the step is read where the fit ended.
        ended = jax.tree.map(lambda s: Shifted(s, fit.n_iter) if _is_schedule(s) else s, kernel, is_leaf=_is_schedule)
        chains = MCMC(ended, n_steps=n_steps, n_chains=estep.n_chains, burn_in=n_steps // 3)
        scores.append(evaluate(fit, Rule(chains, rows, SETS, width), fit.params, range(SETS), second=False).scores.sum(axis=1))
    # The score's bias at the estimate, in natural coordinates: cov(params) = J I^-1 J^T.
    jacobian = coordinates.jacobian(coordinates.to(fit.params))
    gap = (scores[0] - scores[1]) / (1 - 2.0**-order)
    with np.errstate(invalid="ignore", divide="ignore"):
        shifts = gap @ np.linalg.pinv(jacobian) @ covariance / se
    size, error = np.abs(shifts.mean(axis=0)), shifts.std(axis=0, ddof=1) / np.sqrt(SETS)
    if not np.any(np.isfinite(size)):
        return None
    worst = int(np.nanargmax(size))
    figure, noise, name = float(size[worst]), float(error[worst]), fit.names[worst]
    told = f"{figure:.2g} standard errors in {name}, with a Monte Carlo error of {noise:.1g}"
    if figure - 2 * noise > MATTERS:
        sentence = f"The kernel is not adjusted, and its bias moves the estimate by {told}: use margaux.MALA, or a shorter step."
        return Check("kernel bias", figure, noise, MATTERS, "careful", sentence)
    if figure + 2 * noise > MATTERS and noise > MATTERS / 2:
        sentence = f"What the bias of the kernel, which is not adjusted, does cannot be told ({told}): look at fit.bias_probe()."
        return Check("kernel bias", figure, noise, MATTERS, "careful", sentence)
    return Check("kernel bias", figure, noise, MATTERS, "pass", f"The kernel's bias is small: {told}.")


def stable_step(fit: Fit) -> Check | None:
    """Whether chains that bring their prior are stable at the estimate: at the edge a noise level settles where they just are.

    Where the step is given it is held to the chain whose target is the steepest, of all units or of `LOOKED` drawn at random.
    """
    if not isinstance(fit.estep, MCMC) or not fit.estep.kernel.brings_prior or fit.rows is None:
        return None
    n, kernel = jax.tree.leaves(fit.data)[0].shape[0], fit.estep.kernel
    given = isinstance(kernel, PlugAndPlayULA) and not kernel.automatic
    # A step that follows the curvature does so in each unit.
    ids = np.arange(n if given else 1)
    if n > LOOKED and given:
        ids = np.sort(np.random.default_rng(0).choice(n, LOOKED, replace=False))
    dtype = default_dtype(None)
    with precision(dtype):
        model, estep, params = settle((fit._model().model, fit.estep, fit.params), dtype)
        z, y = (
            settle(jax.tree.map(lambda leaf: taken(leaf, ids), tree), dtype)
            for tree in (jax.tree.map(lambda leaf: leaf[0], fit.rows["z"]), fit.data)
        )
        place, chain = _steepest(model, estep.kernel, params, z, y) if given else (0, 0)
        z, y = jax.tree.map(lambda leaf: leaf[place, chain], z), jax.tree.map(lambda leaf: leaf[place], y)
        trouble = estep.refused(model, params, z, y, fit.n_iter, NEAR)
    nan, seen = float("nan"), f" of {LOOKED} units drawn at random" if given and n > LOOKED else ""
    if trouble is None:
        return Check("step", nan, nan, nan, "pass", f"The chain's step is stable at the estimate{seen}.")
    whose = f" of unit {ids[place]}, the steepest{seen or f' of {n}'}," if given and n > 1 else ""
    return Check("step", nan, nan, nan, "failed", f"The chain{whose} is not stable at the estimate: {trouble}.")


def _steepest(model: Any, kernel: Any, params: Any, z: Any, y: Any) -> tuple[int, int]:
    """The unit and the chain whose step must be the shortest."""
    found = np.asarray(_stiffnesses(for_searches(model), kernel, params, z, y))
    unit, chain = np.unravel_index(np.argmax(found), found.shape)
    return int(unit), int(chain)


@compiled
def _stiffnesses(model: Any, kernel: PlugAndPlayULA, params: Any, z: Array, y: Any) -> Array:
    """Of the chains of each unit, (n, chains), blocks of units at a time."""
    n, chains = z.shape[:2]

    def unit(pair):
        target = Target(model, params, pair[1])
        return mapped(lambda z_c: kernel.stiffness(z_c, target), chains)(pair[0])

    block = min(max(AT_ONCE // z[0].size, 1), n)
    return jax.lax.map(unit, (z, y), batch_size=None if block == 1 else block)


def _transitions(fit: Any) -> int:
    """Transitions a unit of each set: two chains, of which the finer makes two steps for one."""
    n, n_steps = fit._model().n, fit.estep.n_steps
    each = n_steps if isinstance(n_steps, int) else float(n_steps(fit.n_iter))
    batch = fit.batch_size or n
    affordable = SHARE * fit.n_iter * each * batch / n / (SETS * 3 * 4 / 3)
    return int(max(affordable, LEAST / n, 10))


def _is_schedule(x: object) -> bool:
    return isinstance(x, AbstractSchedule)
