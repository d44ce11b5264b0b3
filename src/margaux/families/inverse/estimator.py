"""Linear inverse problems with sparse or piecewise constant signals, the regularisation estimated."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from ...algorithms.average import AbstractAverage
from ...algorithms.recipes import soul
from ...answers.bias import kernel_bias
from ...answers.certificate import Certificate, Check
from ...engine.validate import whole
from ...esteps import MCMC
from ...fitting import fit as run
from ...kernels import MALA, MYULA, ULA, AbstractKernel
from ...numerics.precision import default_dtype, precision, settle
from ...problem.space import Box
from ...problem.units import one_unit
from ..base import AbstractEstimator
from .model import AbstractOperator, LinearInverse, as_operator, maximum_a_posteriori, norm_squared
from .priors import L1, AbstractPrior, GroupL2, HuberPrior, TotalVariation1D, TotalVariation2D

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, DTypeLike

    from ...problem.schedule import AbstractSchedule
    from ...showing.axes import AxesLike


#: how far log theta may go from its start, either way
REACH = 9.0
#: entries of x up to which its chain is adjusted by default, and the priors, with a gradient almost everywhere, that allow it
ADJUSTED, SLOPED = 200, (L1, HuberPrior, TotalVariation1D)
#: standard errors of log theta that what an envelope does to it may amount to
MATTERS = 0.1


class SparseInverse(AbstractEstimator):
    r"""Recover x from $y = Ax + \varepsilon$, $\varepsilon\sim N(0,\sigma^2I)$, with $p(x\mid\theta)\propto e^{-\theta\phi(x)}$.

    The weight $\theta$ maximises the marginal likelihood $p(y\mid\theta)$, by SOUL on $\log\theta$ (De Bortoli, Durmus,
    Pereyra and Vidal 2021, section 4.2; Vidal, De Bortoli, Pereyra and Durmus 2020), and x is the maximum a posteriori
    $\arg\min_x |y-Ax|^2/(2\sigma^2) + \theta\phi(x)$.

    Args:
        prior: $\phi$: "huber" (smoothed Laplace), "l1", "tv" (of a signal, or isotropic of an image), "group" (norms of
            the rows of a two-dimensional x), or an object of `margaux.families.inverse.priors`.
        noise_sd: $\sigma$; None to estimate it too.
        step_size: of the Langevin chain: for a smooth prior then ULA's, else MYULA's. By default MALA up to 200 entries where
            the prior has a gradient almost everywhere (all but "group" and "tv" of an image); above, MYULA, with a step and a
            smoothing from the norm of A.
        step: $\delta_n$ of $\log\theta$, as in `margaux.soul`; by default scaled by the information.
            The paper's is `margaux.Polynomial(20 / d, 0.8)`.
        theta_start: by default $0.1|A^\top y|_\infty/\sigma^2$, and for total variation d over that of y (or $A^\top y$).
        average: how iterates are averaged, as in `margaux.soul`.
        n_iter: iterations of theta. n_steps: transitions each. warm_up: transitions before the first.
        random_state: an int. dtype: "float32" or "float64". verbose: show progress.

    Attributes:
        theta_, sigma_: estimates (sigma_ is noise_sd where given). x_: maximum a posteriori, shaped as asked.
        operator_, prior_: what was fitted. params_: "theta" and, if estimated, "sigma". See `AbstractEstimator`.

    >>> import numpy as np
    >>> from margaux import SparseInverse
    >>> rng = np.random.default_rng(0)
    >>> A, x = rng.normal(size=(60, 100)) / 8, np.zeros(100)
    >>> x[[3, 50, 70]] = 2.0, -3.0, 1.0
    >>> y = A @ x + 0.05 * rng.normal(size=60)
    >>> model = SparseInverse(prior="l1", noise_sd=0.05, n_iter=500, verbose=False).fit(A, y)
    >>> np.argsort(-np.abs(model.x_))[:3].tolist()
    [50, 3, 70]
    """

    def __init__(
        self,
        *,
        prior: str | AbstractPrior = "huber",
        noise_sd: float | None = None,
        step_size: float | AbstractSchedule | None = None,
        step: float | AbstractSchedule | None = None,
        theta_start: float | None = None,
        average: AbstractAverage | None = None,
        n_iter: int = 3000,
        n_steps: int = 2,
        warm_up: int = 100,
        random_state: int = 0,
        dtype: DTypeLike | None = None,
        verbose: bool = True,
    ) -> None:
        self.prior = prior
        self.noise_sd = noise_sd
        self.step_size = step_size
        self.step = step
        self.theta_start = theta_start
        self.average = average
        self.n_iter = n_iter
        self.n_steps = n_steps
        self.warm_up = warm_up
        self.random_state = random_state
        self.dtype = dtype
        self.verbose = verbose

    def fit(self, A: Any, y: ArrayLike, shape: tuple[int, ...] | None = None) -> SparseInverse:
        """Estimate theta (and the noise level), then x.

        Args:
            A: (rows, d), an array or a scipy sparse matrix, in which blocks are looked for; or a pair (forward, adjoint)
                of functions of jax arrays. y: (rows,), or what forward returns.
            shape: of x, where it is not a vector of d entries.

        Raises:
            ValueError, TypeError: values not finite, shapes that do not fit, a noise level that is not positive, an
                unknown prior, or functions that are no transposes of each other; before the fit is compiled.
        """
        for name, least in [("n_iter", 1), ("n_steps", 1), ("warm_up", 0)]:
            whole(name, getattr(self, name), least)
        sd, start_at = self.noise_sd, self.theta_start
        for name, value in [("noise_sd", sd), ("theta_start", start_at)]:
            if value is not None and not (np.isreal(value) and 0 < value < np.inf):
                raise ValueError(f"{name} must be a positive number or None, got {value!r}")
        if isinstance(self.prior, str) and self.prior not in ("huber", "l1", "tv", "group"):
            raise ValueError(
                f'prior must be "huber", "l1", "tv", "group" or an object of margaux.families.inverse.priors; got {self.prior!r}'
            )
        if not isinstance(self.prior, str | AbstractPrior):
            raise TypeError(
                f"prior must be a name or an object of margaux.families.inverse.priors, such as L1(); got {self.prior!r}"
            )
        y = np.asarray(y, float)
        if not np.all(np.isfinite(y)):
            raise ValueError(f"y holds {int(np.sum(~np.isfinite(y)))} values that are not finite; drop those rows of A and y")
        dtype = default_dtype(self.dtype)
        with precision(dtype):
            self.operator_ = settle(as_operator(A, y, shape, dtype), dtype)
            back = np.asarray(self.operator_.adjoint(jnp.asarray(y, dtype)), float)
            norm = float(norm_squared(self.operator_))
        if not np.abs(back).max() > 0:
            raise ValueError("A^T y is zero: y says nothing of x")
        self.prior_ = self._prior(back, norm)
        self.prior_.check(self.operator_.shape)
        variance = 0.1 * float(np.mean(y**2)) if sd is None else float(sd) ** 2
        kernel = self._kernel(norm / variance, back.size)
        with precision(dtype):
            z, theta = self._start(y, back / norm, 0.1 * np.abs(back).max() / variance, dtype)
            if kernel.adjusted:
                # Far from its posterior an adjusted chain is stuck where one that is not would come down.
                prior, target = settle((self.prior_, jnp.asarray(y, dtype)), dtype)
                z = maximum_a_posteriori(self.operator_, prior, target, theta * variance, jnp.zeros(back.shape, dtype))
                z = np.asarray(z)
        params = {"log_theta": float(np.log(theta))}
        space = {"log_theta": Box(params["log_theta"] - REACH, params["log_theta"] + REACH)}
        if sd is None:
            params["log_sigma2"] = float(np.log(variance))
            space["log_sigma2"] = Box(params["log_sigma2"] - 2 * REACH, params["log_sigma2"] + REACH)
        result = run(
            LinearInverse(self.operator_, self.prior_, z, None if sd is None else np.asarray(float(sd))),
            one_unit({"y": y}),
            soul(self.step, average=self.average),
            MCMC(kernel, n_steps=self.n_steps, warm_up=self.warm_up),
            params=params,
            space=space,
            n_iter=self.n_iter,
            key=self.random_state,
            dtype=dtype,
            progress=bool(self.verbose),
        )
        self.n_observations_ = y.size
        self.y_ = y
        self._keep(result)
        self.theta_ = float(np.exp(result.params["log_theta"]))
        self.sigma_ = float(np.exp(result.params["log_sigma2"] / 2)) if sd is None else float(sd)
        self.params_ = {"theta": self.theta_} | ({"sigma": self.sigma_} if sd is None else {})
        self.x_ = self.map(self.theta_)
        self._norm = norm
        vars(self).pop("certificate_", None)
        return self

    def _prior(self, back: np.ndarray, norm: float) -> AbstractPrior:
        if isinstance(self.prior, AbstractPrior):
            return self.prior
        shape = back.shape
        if self.prior == "huber":
            return HuberPrior(4e-5 * float(np.abs(back).max()) / norm)
        if self.prior == "l1":
            return L1()
        if self.prior == "tv":
            return TotalVariation1D() if len(shape) == 1 else TotalVariation2D()
        if len(shape) != 2:
            raise ValueError(
                f'prior="group" takes the rows of a two-dimensional x, here {shape}; pass shape=, or GroupL2(labels)'
            )
        return GroupL2(np.repeat(np.arange(shape[0]), shape[1]).reshape(shape))

    def _start(self, y: np.ndarray, back: np.ndarray, heuristic: float, dtype: np.dtype) -> tuple[np.ndarray, float]:
        """Where x and theta start."""
        flat = isinstance(self.prior_, TotalVariation1D | TotalVariation2D)
        z = (y if y.shape == back.shape else back) if flat else np.zeros(back.shape)
        if self.theta_start is not None:
            return z, float(self.theta_start)
        if flat:
            return z, z.size / max(float(self.prior_.value(jnp.asarray(z, dtype))), 1e-12)
        return z, heuristic

    def _kernel(self, curvature: float, size: int) -> AbstractKernel:
        if self.step_size is not None:
            return ULA(self.step_size) if self.prior_.smooth else MYULA(self.step_size)
        if size <= ADJUSTED and isinstance(self.prior_, SLOPED):
            return MALA()
        if self.noise_sd is None:
            return MYULA()
        return MYULA(0.49 / curvature, smoothing=1 / curvature)

    @functools.cached_property
    def certificate_(self) -> Certificate:  # type: ignore[override]
        """Whether theta maximises the marginal likelihood, and its errors are true; where the chain is not adjusted also what
        its steps and the envelope of the prior do."""
        check_is_fitted(self, "result_")
        fit: Any = self.result_
        certificate = fit.certificate
        if fit.estep is None or fit.estep.kernel.adjusted or fit.result.failed:
            return certificate
        names = {check.name for check in certificate.checks}
        certificate = certificate.and_also(None if "kernel bias" in names else kernel_bias(fit))
        return certificate.and_also(self._enveloped() if isinstance(fit.estep.kernel, MYULA) else None)

    def _enveloped(self) -> Check:
        r"""What MYULA's envelope does to $\log\theta$, in standard errors: a Laplace entry whose density is smoothed by $\lambda$
        is about $\theta^2\lambda/4$ larger on average."""
        smoothing = self.result_.estep.kernel.smoothing  # type: ignore[union-attr]
        width = self.sigma_**2 / self._norm if smoothing is None else float(smoothing)
        error = float(self.result_.summary()["se"].to_dict()["log_theta"])
        figure = self.theta_**2 * width / 4 / error
        if figure < MATTERS:
            return Check("smoothing", figure, float("nan"), MATTERS, "pass", "The prior is hardly smoothed by its envelope.")
        return Check(
            "smoothing",
            figure,
            float("nan"),
            MATTERS,
            "careful",
            f"The chain sees an envelope of the prior that is too smooth: theta comes out too small, by about "
            f"{figure:.2g} standard errors.",
        )

    def map(self, theta: float) -> np.ndarray:
        r"""The maximum a posteriori of x at a given theta (and the estimated noise level).

        L-BFGS for a smooth prior; otherwise FISTA, so that zeros are exact.
        """
        check_is_fitted(self, "result_")
        if not theta > 0:
            raise ValueError(f"theta must be positive, got {theta}")
        dtype = self.result_.dtype
        with precision(dtype):
            prior, y = settle((self.prior_, jnp.asarray(self.y_, dtype)), dtype)
            start = jnp.zeros(self.operator_.shape, dtype)
            x = maximum_a_posteriori(self.operator_, prior, y, theta * self.sigma_**2, start)
        return np.asarray(x)

    def predict(self, A: Any = None) -> np.ndarray:
        """A x at the estimate of x, for the fitted A or another (a matrix, or a function of x)."""
        check_is_fitted(self, "result_")
        if A is not None:
            return np.asarray(A(jnp.asarray(self.x_))) if callable(A) else A @ self.x_.ravel()
        operator: AbstractOperator = self.operator_
        with precision(self.result_.dtype):
            return np.asarray(operator(jnp.asarray(self.x_)))

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """As of any estimator, on the natural scale: estimates and intervals are transformed, errors by the delta method.

        The z and p of a positive parameter, which test nothing, are left out.
        """
        check_is_fitted(self, "result_")
        table = self.result_.summary(level)
        power = np.where(table.index == "log_theta", 1.0, 0.5)
        out: pd.DataFrame = table.filter(["estimate", "ci_low", "ci_high"]).mul(power, axis=0).map(np.exp)
        out.insert(1, "se", out["estimate"] * table["se"] * power)
        out = out.rename(index={"log_theta": "theta", "log_sigma2": "sigma"}).loc[list(self.params_)]
        out.attrs = dict(table.attrs)
        return out

    def cov_params(self) -> pd.DataFrame:
        """Covariance of `params_`, by the delta method; NaN where it is not to be trusted."""
        check_is_fitted(self, "result_")
        logs = self.result_.cov_params()
        power = np.where(logs.index == "log_theta", 1.0, 0.5)
        names = {"log_theta": "theta", "log_sigma2": "sigma"}
        scale = np.array([self.params_[names[name]] for name in logs.index]) * power
        renamed = (logs * np.outer(scale, scale)).rename(index=names, columns=names)
        return renamed.loc[list(self.params_), list(self.params_)]

    @functools.cached_property
    def stderr_(self) -> dict[str, Any]:
        """Standard errors of `params_`; NaN where they are not to be trusted."""
        return self.summary()["se"].to_dict()

    def trace(self) -> np.ndarray:
        """The iterates of theta, (n_iter,)."""
        check_is_fitted(self, "result_")
        column = self.result_.names.index("log_theta")
        return np.exp(self.result_.trace["params"][:, 0, column])

    def plot_trace(self, ax: Axes | None = None) -> Any:
        """Iterates of theta and their running average, in log scale (SOUL, figure 5 left), on one Axes."""
        from .plots import theta_trace

        check_is_fitted(self, "result_")
        return theta_trace(self, ax)

    def plot_reconstruction(self, truth: ArrayLike | None = None, ax: AxesLike | None = None) -> Any:
        """The data and x (an image beside y; a vector as lines), with the true x where given, an Axes each."""
        from .plots import reconstruction

        check_is_fitted(self, "result_")
        return reconstruction(self, truth, ax)
