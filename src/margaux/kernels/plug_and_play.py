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
from .scaling import EVERY, FIRST, FORGET, Scaling, step_schedule

#: the default step in units of 1 / (L_y + weight L / eps + 1 / smoothing): just below the third that the theorem asks for, and
#: the step beyond which chains of Gaussian targets diverge
SAFE, STABLE = 0.33, 2.0


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
            such as `margaux.families.inverse.denoisers.train`'s, or any callable.
        eps: $\epsilon > 0$, the *variance* of the noise that D removes.
        weight: $\alpha > 0$, the power of the prior. It is no parameter of the model: its likelihood would need the normaliser of
            $p_\epsilon^\alpha$, and scores do not tell that.
        bounds: (low, high) of every entry, the box C; None for none. smoothing: $\lambda$; by default the largest that the
            theorem allows, $1/(2\alpha L/\epsilon + 4L_y)$.
        step_size: $\delta$; by default 0.33 of $1/(L_y + \alpha L/\epsilon + 1/\lambda)$.
        lipschitz: L; None to measure it.
        averaged: take $(\xi_n + \xi_{n+1})/2$ for $\xi$, as `LeimkuhlerMatthews` does: the bias of $\delta$ is of second order
            and that of a Gaussian posterior none. With False, the paper's algorithm to the letter, variances are too large by up
            to a fifth at the default step, and an estimated noise variance may be by a factor of two.

    Raises:
        ValueError: eps, weight, smoothing or lipschitz that is not positive, or bounds out of order; before a fit, a denoiser
            that changes the shape or is not finite, or a step of more than $2/(L_y + \alpha L/\epsilon + 1/\lambda)$.
        TypeError: a denoiser that cannot be called, or that jax cannot trace.

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
        eps: float,
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
        self.eps, self.weight = _positive("eps", eps), _positive("weight", weight)
        self.bounds = None if bounds is None else _box(bounds)
        if smoothing is not None and bounds is None:
            raise ValueError("smoothing is that of the tail beyond bounds; pass bounds=(low, high) too")
        self.smoothing = None if smoothing is None else _positive("smoothing", smoothing)
        self.lipschitz = None if lipschitz is None else _positive("lipschitz", lipschitz)
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
            state |= {"direction": _direction(z), "lipschitz": jnp.zeros((), dtype)}
        return state | ({"noise": jnp.zeros(size, dtype)} if self.averaged else {})

    def noise(self, key, z):
        return normal_like(key, z)

    def refresh(self, z, kstate, logdensity):
        if "direction" in kstate:
            visits, old = kstate["scaling"]["visits"], kstate["lipschitz"]
            due = visits % EVERY == 0
            turns = jnp.where(due, jnp.where(visits == 0, FIRST, 2), 0)
            direction, found = self._stretched(z, kstate["direction"], old, turns)
            kstate = kstate | {
                "direction": direction,
                "lipschitz": jnp.where(due, jnp.maximum(found, FORGET * old), old),
            }
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
            own = float(_stretch(self, z) if self.lipschitz is None else self.lipschitz)
        except Exception as error:
            return (
                "the denoiser cannot be differentiated, by which its Lipschitz constant is measured: pass lipschitz=, that of "
                f"D(z) - z ({str(error).splitlines()[0]})"
            )
        if self.automatic:
            return None
        rough = float(_curvature(logdensity, z))
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

    def _stretched(self, z: Array, direction: Array, old: Scalar, turns: Scalar) -> tuple[Array, Scalar]:
        """The right singular vector of the residual's Jacobian at z, by power iteration from `direction`, and its value."""

        def turn(_, pair):
            v, _ = pair
            stretched = jax.jvp(self._residual, (z,), (v,))[1]
            (back,) = jax.vjp(self._residual, z)[1](stretched)
            size = jnp.linalg.norm(back)
            return jnp.where(size > 0, back / jnp.where(size > 0, size, 1.0), v), jnp.linalg.norm(stretched)

        return jax.lax.fori_loop(0, turns, turn, (direction, old))


@eqx.filter_jit
def _curvature(logdensity: LogDensity, z: Array) -> Scalar:
    """L_y near z."""
    scaling = Scaling(None, relative=True)
    return scaling.refresh(z, scaling.init(z), logdensity)["curvature"]


@eqx.filter_jit
def _stretch(kernel: PlugAndPlayULA, z: Array) -> Scalar:
    """L near z."""
    return kernel._stretched(z, _direction(z), jnp.zeros((), z.dtype), jnp.asarray(FIRST))[1]


def _direction(z: Array) -> Array:
    """Orthogonal to no singular vector in practice."""
    start = jnp.cos(jnp.arange(1, z.size + 1, dtype=z.dtype) ** 2).reshape(z.shape)
    return start / jnp.linalg.norm(start)


class _Function(eqx.Module):
    """A function as a module without weights."""

    function: Callable[[Any], Any] = eqx.field(static=True)

    def __call__(self, z: Array) -> Array:
        return self.function(z)


def _positive(name: str, value: Any) -> np.ndarray:
    if isinstance(value, bool) or np.ndim(value) or not (np.isreal(value) and 0 < value < math.inf):
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return np.asarray(float(value))


def _box(bounds: Any) -> np.ndarray:
    box = np.asarray(bounds, float)
    if box.shape != (2,) or not box[0] < box[1] or np.any(np.isnan(box)):
        raise ValueError(f"bounds must be two numbers (low, high), low below high; got {bounds!r}")
    return box
