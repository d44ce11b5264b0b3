"""Importance sampling from a Gaussian proposal of each unit."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..kernels.base import flat_size
from ..numerics.gaussian import normals
from ..numerics.sampling import effective_size
from ..problem.model import leading, mapped
from ..problem.schedule import AbstractSchedule, as_schedule
from .base import AbstractEStep, continuous, flat_target
from .mixture import ModeMixture
from .proposals import AbstractProposal, AtMode, Running

#: proposals by name; the mixture has settings of its own
PROPOSALS = {"laplace": AtMode, "adapted": Running, "mixture": None}


class ImportanceSampling(AbstractEStep):
    r"""Self-normalised importance sampling (ISGD: Batardiere, Chiquet, Kwon and Stoehr, algorithms 1 and 2).

    Gaussian proposals of unit i: $(1-\alpha) N(m_i, S_i) + \alpha N(m_i, \delta^2 S_i)$, a defensive mixture in fixed
    proportions.

    Args:
        n_draws: draws a unit, a number, or a growing schedule (rounded up to whole rounds of 64).
        proposal: "laplace", the mode and curvature at the current parameters, followed by `n_newton`
            Newton steps an iteration; "adapted", the running posterior mean and covariance of the draws; "mixture", every
            mode that is found, with learned moments and heavy tails (slow to begin with); or a proposal of `margaux.esteps`.
        defensive: $\alpha$, the share of wide draws (0 for none).
        widening: $\delta$, their standard deviations in units of the proposal's.
        quasi: quasi-Monte-Carlo normals (a randomly shifted lattice) in place of independent ones.
        control_variate: subtract a Gaussian control variate: the quadratic in z through 2d + 1 points of
            any averaged function, whose moment under the proposal is known exactly. It acts as 2d + 1
            more draws with signed weights that vanish as n_draws grows. By default with Gaussian proposals.

    Traces the effective sample size and the log marginal likelihood.
    """

    may_be_padded: ClassVar[bool] = True
    n_draws: int | AbstractSchedule
    proposal: AbstractProposal
    quasi: bool = eqx.field(static=True)
    control_variate: bool = eqx.field(static=True)

    def __init__(
        self,
        n_draws: int | AbstractSchedule = 64,
        proposal: str | AbstractProposal = "laplace",
        defensive: float = 0.1,
        widening: float = 2.0,
        quasi: bool = False,
        control_variate: bool | None = None,
        n_newton: int = 2,
    ) -> None:
        if isinstance(n_draws, int):
            if n_draws < 2:
                raise ValueError(f"n_draws must be at least 2, got {n_draws}")
            self.n_draws = n_draws
        else:
            self.n_draws = as_schedule(n_draws, name="n_draws")
        if not 0 <= defensive < 1:
            raise ValueError(f"defensive must be a share in [0, 1), got {defensive}")
        if not widening >= 1:
            raise ValueError(f"widening must be at least 1, got {widening}")
        if n_newton < 1:
            raise ValueError(f"n_newton must be at least 1, got {n_newton}")
        if isinstance(proposal, str):
            if proposal not in PROPOSALS:
                raise ValueError(f"proposal must be one of {sorted(PROPOSALS)} or a proposal of margaux.esteps, got {proposal!r}")
            gaussian = PROPOSALS[proposal]
            proposal = gaussian(n_newton, float(defensive), np.asarray(widening, float)) if gaussian else ModeMixture()
        self.proposal, self.quasi = proposal, quasi
        self.control_variate = isinstance(proposal, AtMode) if control_variate is None else control_variate
        if self.control_variate and not isinstance(proposal, AtMode):
            raise ValueError('the control variate is one of a Gaussian proposal ("laplace" or "adapted")')

    @property
    def _round(self) -> int:
        return self.n_draws if isinstance(self.n_draws, int) else 64

    def requires(self, model, latents):
        trouble = continuous(model, latents, "importance sampling from a Gaussian")
        size, _ = flat_size(latents)
        if trouble is None and size > 200:
            return (
                f"importance sampling from a dense Gaussian is hopeless for {size} latents a unit; "
                "use margaux.MCMC, or write the model for smaller units"
            )
        return trouble

    def init(self, key, model, params, y):
        return self.proposal.init(key, model, params, y)

    def compared(self, model, params, rows, data):
        return self.proposal.compared(model, params, rows, data)

    def for_rows(self):
        return ImportanceSampling(2, self.proposal, control_variate=False)

    def noise(self, key, latents):
        if not isinstance(self.n_draws, int):
            return key
        size, dtype = flat_size(latents)
        return normals(key, self.n_draws, size, dtype, self.quasi, self.proposal.extra)

    def expect(self, f, noise, model, params, rows, batch, k):
        b = leading(batch)
        rows = mapped(lambda row, y: self.proposal.follow(model, params, row, y), b)(rows, batch)
        if isinstance(self.n_draws, int):
            z, log_w, told = self._draws(noise, model, params, rows, batch)
            log_mean = jax.nn.logsumexp(log_w, axis=0) - jnp.log(self.n_draws)
            w = jax.nn.softmax(log_w, axis=0)
            ess = effective_size(w)
            value = f(*self._with_control_variate(z, w, told, model, params, rows, batch))
            figures = mapped(self.proposal.figures, b)(rows, log_w.T)
            rows = mapped(self.proposal.learn, b)(rows, jnp.moveaxis(told, 1, 0), w.T)
        else:
            value, log_mean, ess = self._growing(f, noise, model, params, rows, batch, k)
            figures = {}
        return value, rows, figures | {"ess": ess, "log_marginal": log_mean}

    def _draws(self, noise, model, params, rows, batch):
        """Latents (m, b, ...), log weights (m, b), what the proposal learns from (m, b, d), from normals (b, m, d).

        A log density that is NaN stays NaN, and so do the weights of its unit: the fit then fails, and says where.
        """

        def unit(e, row, y):
            target, unravel = flat_target(model, params, y)
            x, log_q, told = self.proposal.draw(e, model, params, row, y)
            return jax.vmap(unravel)(x), jax.vmap(target)(x) - log_q, told

        drawn = mapped(unit, leading(batch))(noise, rows, batch)
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), drawn)

    def _with_control_variate(self, z, w, u, model, params, rows, batch):
        """Append the 2d + 1 signed points: E_q[c] - mean_j c(u_j), c the quadratic through them."""
        if not self.control_variate:
            return z, w
        proposal: Any = self.proposal
        m, _, d = u.shape
        h = jnp.sqrt(jnp.asarray(3.0, u.dtype))
        variance = proposal.variance(m).astype(u.dtype)
        linear = jnp.mean(u, axis=0).T / (2 * h)
        curved = (variance - jnp.mean(u**2, axis=0)).T / (2 * h**2)
        signed = jnp.concatenate([curved - linear, curved + linear, -2 * jnp.sum(curved, axis=0, keepdims=True)])
        corners = jnp.concatenate([h * jnp.eye(d), -h * jnp.eye(d), jnp.zeros((1, d))]).astype(u.dtype)

        def unit(row, y):
            _, unravel = flat_target(model, params, y)
            return jax.vmap(unravel)(row["mean"] + corners @ row["cholesky"].T)

        points = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), mapped(unit, leading(batch))(rows, batch))
        return jax.tree.map(lambda a, c: jnp.concatenate([a, c]), z, points), jnp.concatenate([w, signed])

    def _growing(self, f, keys, model, params, rows, batch, k):
        """Two passes over rounds of the same draws: first each unit's normaliser, then the average."""
        d, dtype = rows["mean"].shape[-1], rows["mean"].dtype
        assert not isinstance(self.n_draws, int)
        rounds = jnp.maximum(jnp.ceil(self.n_draws(k) / self._round).astype(jnp.int32), 1)

        def draw(r):
            def unit(key):
                return normals(jax.random.fold_in(key, r), self._round, d, dtype, self.quasi, self.proposal.extra)

            return self._draws(jax.vmap(unit)(keys), model, params, rows, batch)

        def add(r, state):
            _, log_w, _ = draw(r)
            both = jnp.stack([jax.nn.logsumexp(log_w, axis=0), jax.nn.logsumexp(2 * log_w, axis=0)])
            return jnp.logaddexp(state, both)

        start = jnp.full((2, leading(batch)), -jnp.inf, dtype)
        log_sum, log_square = jax.lax.fori_loop(0, rounds, add, start)

        def average(r):
            z, log_w, u = draw(r)
            z, w = self._with_control_variate(z, jnp.exp(log_w - log_sum) * rounds, u, model, params, rows, batch)
            return f(z, w / rounds)

        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(average, 0))
        value = jax.lax.fori_loop(0, rounds, lambda r, value: jax.tree.map(jnp.add, value, average(r)), zero)
        return value, log_sum - jnp.log(rounds * self._round), jnp.exp(2 * log_sum - log_square)
