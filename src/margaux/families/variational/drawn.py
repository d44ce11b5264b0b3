r"""Bayesian networks by draws of their weights: `method="sgmcmc"`, and an ensemble by SWAG (`method="ensemble", swag=True`).

Each member has starting weights of its own, and a posterior that is no independent Gaussian of its weights: draws of a chain
(`margaux.families.variational.langevin`), or SWAG's Gaussian (`margaux.families.variational.trajectory`). Steps are in units of
the inverse of the largest curvature of the log posterior an observation where the fit begins; a chain that falls apart, or whose
momentum is a fifth hotter than it should be, begins again with a quarter of its step, three times at most. The noise of a
regression is that of the highest marginal likelihood, by its score along the way of the weights.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from ...answers.certificate import Certificate, Check
from ...engine.validate import whole
from ...numerics.precision import precision, settle
from .answers import WeightPosterior
from .bound import Bound
from .drawn_verdict import SPREAD, averaged, chained, failing
from .draws import AbstractDraws, Shared, as_draws, default_draws
from .evaluation import outputs_at
from .influence import Influential
from .methods import ENSEMBLE, MEMBERS, SGMCMC
from .model import Variational
from .posterior import GaussianPosterior
from .tempering import RISING
from .training import train
from .trajectory import CYCLES, FRICTION, Averaging, Chain, Cycles, Swag

if TYPE_CHECKING:
    from jaxtyping import PyTree

    from .networks import Network
    from .priors import AbstractWeightPrior
    from .tempering import Choice
    from .training import Settings

#: the deviation of weights that are one point to the ELBO, and the least deviation that is told
TINY = 1e-6
#: settings of independent Gaussians by the ELBO, and what they have to be
FOREIGN = {"spread": "weight", "sigma": None, "draws": None, "n_draws": 1, "antithetic": False, "average": None,
           "early_stopping": False}  # fmt: skip
#: observations up to which a chain takes all of them at each step, blocks of SWAG at least, and iterations of both
FEW, BLOCKS, ITERATIONS = 1000, 8, 4000
#: observations that chains are compared at
COMPARED = 100


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


class Drawn(Influential, WeightPosterior):
    """An estimator whose posterior may be one of draws of the weights, `_kept`."""

    method: Any
    step: Any
    cycles: int
    friction: float
    swag: bool
    n_members: int
    members_: tuple[Any, ...]
    _kept: Chain | Swag | None = None

    def _check_drawn(self) -> None:
        """Raises: ValueError, TypeError: settings that do not go with the method."""
        whole("cycles", self.cycles, 1)
        whole("n_members", self.n_members, 1)
        if not _is_number(self.friction) or not 0 < self.friction <= 1:
            raise ValueError(f"friction must be a number above 0, and 1 at most (Langevin dynamics), got {self.friction!r}")
        if not isinstance(self.swag, bool | np.bool_):
            raise TypeError(f"swag must be True or False, got {self.swag!r}")
        if self.swag and self.method != ENSEMBLE:
            raise ValueError(
                'swag is a setting of method="ensemble"; pass it, with n_members=1 for SWAG alone, or leave swag out'
            )
        if self.method not in (ENSEMBLE, SGMCMC) and self.n_members != MEMBERS:
            raise ValueError('n_members is a setting of method="ensemble" and "sgmcmc"; leave it out, or pass one of them')
        if self.method != SGMCMC and (self.cycles != CYCLES or self.friction != FRICTION):
            raise ValueError('cycles and friction are settings of method="sgmcmc"; leave them out, or pass it')
        if not self._walks:
            return
        said = f'method="{SGMCMC}"' if self.method == SGMCMC else "swag=True"
        for name, only in FOREIGN.items():
            if getattr(self, name) != only:
                raise ValueError(f"{name} is a setting of posteriors by the ELBO; leave it at {only!r} with {said}")
        step = self.step
        if step is not None and not (_is_number(step) and 0 < step < np.inf):
            raise ValueError(
                f"step must be a positive number with {said}, the first step over the inverse of the largest curvature, such as "
                f"0.5; got {step!r}"
            )

    @property
    def _walks(self) -> bool:
        """Whether weights are kept along their way."""
        return bool(self.method == SGMCMC or self.swag)

    def _walking(self, settings: Settings, n: int) -> Settings:
        """The settings of a fit to n observations, of weights that are kept along their way.

        Raises:
            ValueError: too few iterations or blocks.
        """
        walk = Cycles(self.cycles, float(self.friction)) if self.method == SGMCMC else Averaging()
        walk.check(round(settings.epochs * settings.n_blocks))
        if self.swag and settings.n_blocks < 2:
            raise ValueError(f"swag=True is by the noise of blocks, and {n} observations are in one; pass n_blocks=2 at least")
        return dataclasses.replace(settings, method="momentum", spread="all", sigma=TINY, bounded=False, falling=False, walk=walk)

    def _blocks_by_default(self, n: int, size: int) -> int:
        """Blocks of about so many observations; of chains by few observations one, of SWAG some."""
        blocks = -(-n // size)
        if self.method == SGMCMC and n <= FEW:
            return 1
        return max(blocks, min(BLOCKS, n)) if self.swag else blocks

    def _related(self, network: Network, weights: PyTree, prior: AbstractWeightPrior) -> AbstractDraws:
        """How draws of a block's observations are related."""
        if self._walks:
            return Shared()
        given: Any = self.draws  # type: ignore[attr-defined]
        return default_draws(network, weights, prior) if given is None else as_draws(given)

    def _fitted_walk(self, x: np.ndarray, outcome: np.ndarray, choice: Choice, settings: Settings, held: Any = None) -> Any:
        """One chain, or one way of SWAG."""
        me: Any = self
        network, weights = me._network(settings.dtype)
        prior = me._prior(choice.candidate.prior, weights)
        if settings.begin is not None:
            means, _, own = settings.begin
            settings.begin = means, jax.tree.map(lambda leaf: np.full(np.shape(leaf), TINY), means), own
        trained = train(network, weights, me._likelihood(), prior, Shared(), me._scaled(x), outcome, settings)
        assert trained.kept is not None
        me.n_observations_, me._data, me._held_out = len(x), (x, outcome), held
        me._choice_made, me.temperature_, me.temperatures_ = choice, choice.candidate.temperature, choice.table
        me.result_, me.step_, me.curvature_, me.n_iter_ = trained.fit, trained.step, trained.curvature, trained.fit.n_iter
        me.history_ = trained.history.rename(columns={"elbo": "log_posterior"})
        me._heat = 1.0 if settings.walk is None else settings.walk.heat(trained.fit.trace["kinetic"])
        me.converged_, me.message_, me._certificate = not trained.fit.result.failed, trained.fit.message, Certificate(())
        self._keep_drawn(trained.model, trained.kept, np.dtype(trained.fit.dtype))
        return self

    def _keep_drawn(self, model: Variational, kept: Chain | Swag, dtype: np.dtype) -> None:
        """Take what was kept along the way: means and deviations are its own."""
        own = Variational(model.network, model.likelihood, model.prior, GaussianPosterior(), int(model.n), int(model.n_blocks),
                          temperature=float(model.temperature))  # fmt: skip
        params = {"mean": kept.mean}
        params["log_sigma"] = jax.tree.map(lambda leaf: np.log(np.maximum(leaf, TINY)), kept.deviations)
        params |= {name: np.mean(logs) for name, logs in kept.scales.items()}
        self._keep(own, params, dtype)
        self._kept, self._deviations = kept, jax.tree.map(lambda leaf: np.asarray(leaf, dtype), kept.deviations)

    def _judged_together(self) -> None:
        """Take means and deviations of the draws of all chains together, and say what is to be said of all members."""
        me: Any = self
        if self.method == SGMCMC:
            self._keep_drawn(self._model, self._joined(), self._dtype)
        failed = [one.message_ for one in self.members_ if one.result_.result.failed]
        checks = failing(failed[0]) if failed else self._checks()
        me._certificate, trouble = Certificate(checks), [check.sentence for check in checks if check.level != "pass"]
        me.converged_ = all(check.level == "pass" or check.name == SPREAD for check in checks) and not me._choice_made.rising
        said = [] if failed else [self._told(), *([RISING] if me._choice_made.rising else []), me._choice_made.said]
        me.message_ = " ".join([*said[:1], *trouble, *filter(None, said[1:])])
        if failed:
            warnings.warn(f"{type(self).__name__}: {me.message_}", RuntimeWarning, stacklevel=2)

    def _joined(self) -> Any:
        """Draws of all chains, one after the other; of SWAG what the first member has."""
        every = [one._kept for one in self.members_]
        return Chain.joined(every) if self.method == SGMCMC else every[0]

    def _told(self) -> str:
        """What there is."""
        count, kept = len(self.members_), self.members_[0]._kept
        if self.method == SGMCMC:
            chains = "one chain" if count == 1 else f"{count} chains"
            return f"{self._joined().count} draws of the weights, by {chains} of {self.cycles} cycles."
        gaussians = "A Gaussian" if count == 1 else f"{count} Gaussians"
        return f"{gaussians} by SWAG, of {int(kept.kept)} weights along the way."

    def _checks(self) -> tuple[Check, ...]:
        """What the members say of themselves."""
        me: Any = self
        if self.method != SGMCMC:
            return averaged([one.result_.trace["log_joint"].ravel() for one in self.members_])
        x, y = me._data
        some = np.random.default_rng(0).choice(len(y), min(len(y), COMPARED), replace=False)
        scaled, count = me._scaled(x[some]), min(one._kept.count for one in self.members_)
        values = np.stack([one._log_likelihoods(scaled, y[some])[-count:] for one in self.members_], axis=1)
        return chained(values, [one._heat for one in self.members_])

    # -- answers --------------------------------------------------------------------------------

    def _log_likelihoods(self, x: Any, y: np.ndarray) -> np.ndarray:
        """Of each draw that is kept and each observation, (m, n)."""
        assert self._kept is not None
        outputs, noises = self._outputs(x, self._kept.count, 0), self._log_noises(self._kept.count)
        double = np.dtype(float)
        with precision(double):
            likelihood = settle(self._model.likelihood, double)
            each = [likelihood.log_prob({"log_noise": noise}, jnp.asarray(one), jnp.asarray(y)) for one, noise in
                    zip(outputs, noises, strict=True)]  # fmt: skip
            return np.asarray(each)

    def _log_noises(self, n_draws: int) -> np.ndarray:
        """Logarithms of the noise of as many draws, zero where there is none that is learned."""
        kept = None if self._kept is None else self._kept.log_noises(n_draws)
        if kept is None:
            kept = np.full(n_draws, self._model.natural(self._params).get("log_noise", 0.0))
        return np.asarray(kept, float)

    def _outputs(self, x: Any, n_draws: int, random_state: int) -> np.ndarray:
        if self._kept is None:
            return super()._outputs(x, n_draws, random_state)
        with precision(self._dtype):
            return outputs_at(self._model.network, self._kept.draws(n_draws, random_state), x, self._dtype).astype(float)

    def posterior_draws(self, n_draws: int = 1000, random_state: int = 0) -> dict[str, np.ndarray]:
        if self._kept is None:
            return super().posterior_draws(n_draws, random_state)
        return {name: leaf[None] for name, leaf in self._named(self._kept.draws(n_draws, random_state)).items()}

    def _elbo_of(self, x: Any, y: np.ndarray, random_state: int = 0) -> Bound:
        if self._kept is not None:
            raise ValueError("a posterior of draws has no density, and so no ELBO; evaluate(X, y) scores its predictions")
        return super()._elbo_of(x, y, random_state)

    def pruned(self, share: float) -> Any:
        if self._kept is not None:
            raise ValueError("weights of draws depend on each other, and none can be left out alone; prune a variational fit")
        return super().pruned(share)

    def influence(self, n_draws: int = 100, random_state: int = 0) -> pd.DataFrame:
        if self._kept is not None:
            raise ValueError(
                "influence is by the curvature of Gaussian posteriors, and this is one of draws; ask a variational fit"
            )
        return super().influence(n_draws, random_state)
