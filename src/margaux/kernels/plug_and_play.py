"""Unadjusted Langevin steps whose prior is a denoiser's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Scalar

from ..problem.schedule import AbstractSchedule
from .base import AbstractPriorKernel, LogDensity, flat_size, normal_like
from .scaling import Scaling, direction, followed, step_schedule

#: the default step in units of 1 / (L_y + weight L / eps + 1 / smoothing): just below the third that the theorem asks for, and
#: the step beyond which chains of Gaussian targets diverge
SAFE, STABLE = 0.33, 2.0
#: how far an eps that is given may be from the denoiser's own, which may have been stored in single precision
ROUNDING = 1e-6


class PlugAndPlayULA(AbstractPriorKernel):
    r"""ULA with the score of the prior from a denoiser, by Tweedie's identity (PnP-ULA).

    $z' = z + \delta\nabla\log p(y\mid z,\theta) + \frac{\delta\alpha}{\epsilon}(D_\epsilon(z) - z)
    + \frac\delta\lambda(\Pi_C(z) - z) + \sqrt{2\delta}\,\xi$

    (Laumont et al. 2022, algorithm 1). If $D_\epsilon(z)$ is the mean of $x\sim p$ given $z = x + N(0,\epsilon I)$, then
    $(D_\epsilon(z)-z)/\epsilon = \nabla\log p_\epsilon(z)$, with $p_\epsilon$ the prior p smoothed by that noise: the target is
    $p(y\mid z,\theta)\,p_\epsilon(z)^\alpha$, times the tail of C. It is for a `margaux.AbstractLikelihood` model, whose
    `log_joint` is the likelihood alone and whose latent is one array.

    With L a Lipschitz constant of the residual $D_\epsilon(z)-z$, and $L_y$ of the likelihood's gradient, the paper's theorem
    asks for $\delta < 1/[3(L_y + \alpha L/\epsilon + 1/\lambda)]$ (without C, no $1/\lambda$). Both are found by power iteration
    where the chain is, as it moves; a `lipschitz` that is known is better, for what is found is a lower bound.

    Args:
        denoiser: D, a function of jax that maps an array like the latent to one of its shape; an `equinox.Module` with weights,
            such as what `margaux.families.inverse.convolutional.train` returns, or any callable.
        eps: $\epsilon > 0$, the *variance* of the noise that D removes; by default `denoiser.eps`, from which it must not differ.
        weight: $\alpha > 0$, the power of the prior. It is no parameter of the model: its likelihood would need the normaliser of
            $p_\epsilon^\alpha$, and scores do not tell that.
        bounds: (low, high) of every entry, the box C; None for none. smoothing: $\lambda$; by default the largest that the
            theorem allows, $1/(2\alpha L/\epsilon + 4L_y)$.
        step_size: $\delta$; by default 0.33 of $1/(L_y + \alpha L/\epsilon + 1/\lambda)$.
        lipschitz: L; by default `denoiser.lipschitz`, or measured where the denoiser has none.
        averaged: take $(\xi_n + \xi_{n+1})/2$ for $\xi$, as `LeimkuhlerMatthews` does: the bias of $\delta$ is of second order
            and that of a Gaussian posterior none. With False, the paper's algorithm to the letter, variances are too large by up
            to a fifth at the default step, and an estimated noise variance may be by a factor of two.

    Raises:
        ValueError: eps, weight, smoothing or lipschitz that is not positive, an eps that is not the denoiser's, or bounds out of
            order; before a fit, a denoiser that changes the shape or is not finite, or a step of more than
            $2/(L_y + \alpha L/\epsilon + 1/\lambda)$ for the first unit.
        TypeError: a denoiser that cannot be called or that jax cannot trace, or no eps, neither here nor the denoiser's.

    Reference: Laumont, De Bortoli, Almansa, Delon, Durmus and Pereyra, Bayesian imaging using plug & play priors: when Langevin
    meets Tweedie, SIAM J. Imaging Sci. 15 (2022), 701-737.

    >>> import margaux as mx
    >>> kernel = mx.PlugAndPlayULA(lambda z: z / 1.1, eps=0.1)      # the denoiser of a N(0, I) prior
    >>> kernel.adjusted
    False
    """

    step_size: AbstractSchedule
    denoiser: Callable[[Array], Array]
    eps: Array | np.ndarray
    weight: Array | np.ndarray
    bounds: Array | np.ndarray | None
    smoothing: Array | np.ndarray | None
    lipschitz: Array | np.ndarray | None
    automatic: bool = eqx.field(static=True)
    averaged: bool = eqx.field(static=True)
    scaling: Scaling
    target_acceptance: None
    adjusted: ClassVar[bool] = False

    def __init__(
        self,
        denoiser: Callable[[Array], Array],
        eps: float | None = None,
        weight: float = 1.0,
        bounds: tuple[float, float] | None = None,
        smoothing: float | None = None,
        step_size: float | AbstractSchedule | None = None,
        lipschitz: float | None = None,
        averaged: bool = True,
    ) -> None:
        if not callable(denoiser):
            raise TypeError(f"denoiser must be a function of an array, got {denoiser!r}")
        self.step_size, self.automatic = step_schedule(step_size, SAFE)
        # A function is no leaf that a program can take; a module's weights are.
        made: Any = denoiser if isinstance(denoiser, eqx.Module) else _Function(denoiser)
        self.denoiser = made
        self.eps, self.weight = _noise(denoiser, eps), positive("weight", weight)
        self.bounds = None if bounds is None else _box(bounds)
        if smoothing is not None and bounds is None:
            raise ValueError("smoothing is that of the tail beyond bounds; pass bounds=(low, high) too")
        self.smoothing = None if smoothing is None else positive("smoothing", smoothing)
        if lipschitz is not None:
            self.lipschitz = positive("lipschitz", lipschitz)
        else:
            known = getattr(denoiser, "lipschitz", None)
            self.lipschitz = None if known is None else positive("denoiser.lipschitz", known)
        self.averaged = bool(averaged)
        self.scaling = Scaling(None, self._follows)
        self.target_acceptance = None

    @property
    def _follows(self) -> bool:
        """Whether a step needs the Lipschitz constants."""
        return self.automatic or (self.bounds is not None and self.smoothing is None)

    def init(self, z):
        size, dtype = flat_size(z)
        state: dict[str, Any] = {"scaling": self.scaling.init(z)}
        if self._follows and self.lipschitz is None:
            state |= {"direction": direction(size, dtype).reshape(z.shape), "lipschitz": jnp.zeros((), dtype)}
        return state | ({"noise": jnp.zeros(size, dtype)} if self.averaged else {})

    def noise(self, key, z):
        return normal_like(key, z)

    def refresh(self, z, kstate, logdensity):
        if "direction" in kstate:
            v, found = self._stretched(z, kstate["direction"], kstate["lipschitz"], kstate["scaling"]["visits"])
            kstate = kstate | {"direction": v, "lipschitz": found}
        return kstate | {"scaling": self.scaling.refresh(z, kstate["scaling"], logdensity)}

    def step(self, noise, z, kstate, logdensity, scale):
        dtype = z.dtype
        gamma, tail = scale.astype(dtype), jnp.zeros((), dtype)
        if self._follows:
            rough = jnp.maximum(kstate["scaling"]["curvature"], 0)
            own = kstate["lipschitz"] if self.lipschitz is None else jnp.asarray(self.lipschitz, dtype)
            total, tail = self._total(rough, own)
            gamma = gamma / jnp.maximum(total, jnp.finfo(dtype).tiny ** 0.5) if self.automatic else gamma
        elif self.smoothing is not None:
            tail = 1 / jnp.asarray(self.smoothing, dtype)
        drift = jax.grad(logdensity)(z) + self._of(self.weight, z) / self._of(self.eps, z) * self._residual(z)
        if self.bounds is not None:
            low, high = jnp.asarray(self.bounds, dtype)
            drift = drift + tail * (jnp.clip(z, low, high) - z)
        spread = jnp.sqrt(2 * gamma) * noise
        if self.averaged:
            spread = (spread + jnp.sqrt(2 * gamma) * kstate["noise"]) / 2
            kstate = kstate | {"noise": noise}
        return z + gamma * drift + spread.reshape(z.shape), kstate, jnp.ones((), dtype)

    def refused(self, z, logdensity, k=1, reach=1.0):
        if not isinstance(z, jax.Array):
            return "PlugAndPlayULA moves one array, which the denoiser takes; return one from init_latents"
        try:
            made = jax.eval_shape(self.denoiser, z)
        except Exception as error:  # whatever a function of others raises
            return f"the denoiser fails on an array of shape {z.shape} and type {z.dtype}: {str(error).splitlines()[0]}"
        if getattr(made, "shape", None) != z.shape:
            return f"the denoiser maps shape {z.shape} to {getattr(made, 'shape', type(made).__name__)}; it must keep the shape"
        if not np.all(np.isfinite(eqx.filter_jit(self.denoiser)(z))):
            return f"the denoiser is not finite at latents that lie between {z.min():.3g} and {z.max():.3g}"
        try:
            own = float(_own(self, z))
        except Exception as error:
            return (
                "the denoiser cannot be differentiated, by which its Lipschitz constant is measured: pass lipschitz=, that of "
                f"D(z) - z ({str(error).splitlines()[0]})"
            )
        if self.automatic:
            return None
        rough = float(_rough(logdensity, z))
        total, tail = (float(part) for part in self._total(rough, own))
        step = float(self.step_size(k))
        if step * total <= reach * STABLE:
            return None
        return (
            f"step_size = {step:.3g} is too long: beyond {STABLE / total:.3g} = 2/(L_y + weight L/eps + 1/smoothing) chains "
            f"diverge. L_y = {rough:.3g} is the Lipschitz constant of the likelihood's gradient, L = {own:.3g} that of the "
            f"denoiser's residual, 1/smoothing = {tail:.3g}. The theorem asks for less than {1 / (3 * total):.3g}; leave "
            "step_size out to have it followed"
        )

    def stiffness(self, z: Array, logdensity: LogDensity) -> Scalar:
        r"""$L_y + \alpha L/\epsilon + 1/\lambda$ near z."""
        return self._total(_rough(logdensity, z), _own(self, z))[0]

    def _residual(self, z: Array) -> Array:
        return jnp.asarray(self.denoiser(z), z.dtype) - z

    def _of(self, number: Any, z: Array) -> Array:
        return jnp.asarray(number, z.dtype)

    def _total(self, rough: Any, own: Any) -> tuple[Any, Any]:
        r"""$L_y + \alpha L/\epsilon + 1/\lambda$, and $1/\lambda$ itself."""
        prior = self.weight / self.eps * own
        tail = 0.0 * rough
        if self.bounds is not None:
            tail = 2 * prior + 4 * rough if self.smoothing is None else tail + 1 / self.smoothing
        return rough + prior + tail, tail

    def _stretched(self, z: Array, vector: Array, old: Scalar, visits: Scalar) -> tuple[Array, Scalar]:
        """The right singular vector of the residual's Jacobian at z and its value, followed from visit to visit."""

        def multiply(v):
            stretched = jax.jvp(self._residual, (z,), (v,))[1]
            (back,) = jax.vjp(self._residual, z)[1](stretched)
            return back, jnp.linalg.norm(stretched)

        return followed(multiply, vector, old, visits)


@eqx.filter_jit
def _rough(logdensity: LogDensity, z: Array) -> Scalar:
    """L_y near z."""
    scaling = Scaling(None, relative=True)
    return scaling.refresh(z, scaling.init(z), logdensity)["curvature"]


@eqx.filter_jit
def _own(kernel: PlugAndPlayULA, z: Array) -> Scalar:
    """L, where it is not known that near z."""
    if kernel.lipschitz is not None:
        return jnp.asarray(kernel.lipschitz, z.dtype)
    start = direction(z.size, z.dtype).reshape(z.shape)
    return kernel._stretched(z, start, jnp.zeros((), z.dtype), jnp.zeros((), jnp.int32))[1]


class _Function(eqx.Module):
    """A function as a module without weights."""

    function: Callable[[Any], Any] = eqx.field(static=True)

    def __call__(self, z: Array) -> Array:
        return self.function(z)


def _noise(denoiser: Any, eps: float | None) -> np.ndarray:
    """The variance of the noise that the denoiser removes, as it says itself where it does."""
    known = getattr(denoiser, "eps", None)
    if eps is None:
        if known is None:
            raise TypeError(
                "the denoiser has no attribute eps that says which noise it removes: pass eps=, the variance of that noise"
            )
        return positive("denoiser.eps", known)
    given = positive("eps", eps)
    if known is not None and not math.isclose(float(given), float(positive("denoiser.eps", known)), rel_tol=ROUNDING):
        raise ValueError(
            f"the denoiser removes noise of variance {float(known):.6g}, eps = {float(given):.6g}: (D(z) - z)/eps is a score for "
            "the denoiser's own alone. Leave eps out, and pass weight= for a prior of another power"
        )
    return given


def positive(name: str, value: Any) -> np.ndarray:
    """A positive number, finite, as an array.

    Raises:
        ValueError: it is none.
    """
    number = np.asarray(value)
    if number.ndim or number.dtype.kind not in "iuf" or not 0 < number < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return np.asarray(float(number))


def _box(bounds: Any) -> np.ndarray:
    box = np.asarray(bounds, float)
    if box.shape != (2,) or not box[0] < box[1] or np.any(np.isnan(box)):
        raise ValueError(f"bounds must be two numbers (low, high), low below high; got {bounds!r}")
    return box
