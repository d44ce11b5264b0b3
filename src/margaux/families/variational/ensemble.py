"""Several posteriors of weights, each found from starting weights of its own, as one: their mixture with equal shares.

Networks from different starts predict differently, and averaging them tells what one maximum does not know (Lakshminarayanan,
Pritzel and Blundell 2017, "Simple and scalable predictive uncertainty estimation using deep ensembles"); where each has a
Gaussian around it, it is MultiSWAG (Wilson and Izmailov 2020, "Bayesian deep learning and a probabilistic perspective of
generalization"): with the Gaussians of the ELBO, or with `swag=True` those of SWAG. The divergence of a mixture from the prior is
at most the mean of its parts', so that the mean of their ELBOs is a bound of the evidence, too. Chains of `method="sgmcmc"` are
such members.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import PyTree

from .bound import Bound
from .drawn import Drawn
from .forgetting import Forgetful
from .methods import ENSEMBLE, FIRST

if TYPE_CHECKING:
    from .tempering import Choice
    from .training import Settings


def shuffled(weights: PyTree, seed: int) -> PyTree:
    """Starting weights as another draw would have them: the numbers of each tensor in random order."""
    rng = np.random.default_rng([seed, 2])
    return jax.tree.map(lambda leaf: rng.permutation(np.ravel(leaf)).reshape(np.shape(leaf)), weights)


def shares(n_draws: int, n_members: int) -> list[int]:
    """How many of the draws are of each member: the first have those that are left over."""
    return [len(part) for part in np.array_split(np.arange(n_draws), n_members)]


class Ensembled(Drawn, Forgetful):
    """An estimator that may be an ensemble: what is not of its members together is that of the first of them."""

    random_state: int
    members_: tuple[Any, ...] = ()
    #: whether starting weights that are given are those of another member
    _shuffled: bool = False

    def _fitted_members(self, x: np.ndarray, y: np.ndarray, choice: Choice, settings: Settings, *held: Any) -> Any:
        """The ensemble fitted to observations, member after member."""
        members = []
        for j in range(self.n_members):
            member: Any = copy.copy(self)
            member.method = None if self.method == ENSEMBLE else self.method
            member.random_state, member.members_ = self.random_state + j, ()
            member._shuffled = j > 0
            place = settings.checkpoint
            if place is not None:
                place = Path(place).with_name(f"{Path(place).stem}-{j}{Path(place).suffix}")
            own = dataclasses.replace(settings, seed=member.random_state, checkpoint=place)
            if j > 0 and choice.begin is not None:  # where another start has led is not where this one leads
                epochs = settings.epochs if member.epochs is not None else 2 * settings.epochs
                own = dataclasses.replace(own, begin=None, first=FIRST, epochs=epochs)
            members.append(member._fitted(x, y, choice, own, *held))
        return self._assembled(members)

    def _assembled(self, members: Sequence[Any]) -> Any:
        """Itself, with what the first member has found, and all of them."""
        me: Any = self
        settings = me.get_params(deep=False)
        for name, value in vars(members[0]).items():
            if name not in settings:
                setattr(self, name, value)
        self.members_ = tuple(members)
        if self._walks:
            self._judged_together()
            return self
        unsettled = [member for member in members if not member.converged_]
        if unsettled:
            me.converged_, me.message_ = False, unsettled[0].message_
        return self

    def _outputs(self, x: Any, n_draws: int, random_state: int) -> np.ndarray:
        """Outputs (n_draws, n, o), by as many draws of each member as may be."""
        if not self.members_:
            return super()._outputs(x, n_draws, random_state)
        pairs = zip(self.members_, shares(n_draws, len(self.members_)), strict=True)
        return np.concatenate([one._outputs(x, share, random_state) for one, share in pairs if share])

    def _elbo_of(self, x: Any, y: np.ndarray, random_state: int = 0) -> Bound:
        if not self.members_:
            return super()._elbo_of(x, y, random_state)
        each = [one._elbo_of(x, y, random_state) for one in self.members_]
        error = np.sqrt(sum(one.se**2 for one in each)) / len(each)
        return Bound(float(np.mean(each)), error, each[0].method)

    def posterior_draws(self, n_draws: int = 1000, random_state: int = 0) -> dict[str, np.ndarray]:
        if not self.members_:
            return super().posterior_draws(n_draws, random_state)
        pairs = zip(self.members_, shares(n_draws, len(self.members_)), strict=True)
        every = [one.posterior_draws(share, random_state) for one, share in pairs]
        return {name: np.concatenate([one[name] for one in every], axis=1) for name in every[0]}

    def pruned(self, share: float) -> Any:
        if not self.members_:
            return super().pruned(share)
        return copy.copy(self)._assembled([one.pruned(share) for one in self.members_])

    def influence(self, n_draws: int = 100, random_state: int = 0) -> pd.DataFrame:
        if not self.members_:
            return super().influence(n_draws, random_state)
        return sum(one.influence(n_draws, random_state) for one in self.members_) / len(self.members_)  # type: ignore[return-value]

    def forget(self, rows: Any, epochs: int | None = None) -> Any:
        if not self.members_:
            return super().forget(rows, epochs)
        return copy.copy(self)._assembled([one.forget(rows, epochs) for one in self.members_])
