r"""Bayesian networks by Laplace's approximation, `method="laplace"`: how they are fitted, and what they answer.

The mode is that of weights with prior N(0, 1/d) for those of a unit of d inputs, whose precisions are multiplied by a factor for
each layer (`prior=None`; one for all with `prior=Normal(learned=True)`, and none with a prior that is given). Training at a
temperature of next to zero ends near it, and Newton's steps at it; factors and noise are those of the highest evidence. That has
many maxima: fits begin with wider and wider priors as long as the evidence rises. `log_evidence_` is of the observations as they
were given, with all constants; `structure_` says how the precision was written.

`layers="last"` is of the weights of the last layer, the others being held where mode and scales of all layers are best (Daxberger
et al. 2021, "Laplace redux", section 3). Those have a standard deviation of zero, and `log_evidence_` is given them: it leaves
out what they cost, and is not to be compared with that of all layers, or of another network.

Predictions are those of the network linearised at the mode: of numbers in closed form, of classes and counts by 256 draws of the
outputs, the same whatever else is predicted. On one split each of `benchmarks/networks.py` they are worse than the default's: log
scores of -0.237 and -0.230 on two moons, -0.251 and -0.074 on digits, where they are too little sure (calibration errors of 0.157
and 0.019). Checkpoints are one for each start, `fit-0.npz` and so on.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree
from threadpoolctl import threadpool_limits

from ...answers.certificate import Certificate
from ...engine.outcome import FitError
from ...engine.validate import whole
from ...numerics.naming import path_name
from ...numerics.precision import precision
from .approximation import LAYERS, STRUCTURES, Approximation, Found, approximate, drawn, free_part, structure_of
from .bound import Bound
from .drawn import FOREIGN, TINY
from .draws import Shared, is_linear
from .ensemble import Ensembled
from .evaluation import outputs_of_draws
from .evidence import Prior, Scales
from .gauss_newton import Linearised, Objective
from .kronecker import factorises
from .laplace_verdict import NAMES, checks_of, converged
from .likelihoods import AbstractLikelihood, Gaussian
from .model import Variational
from .networks import Network
from .posterior import GaussianPosterior
from .priors import ByTensor, Normal
from .training import train
from .trajectory import Chain

if TYPE_CHECKING:
    import pandas as pd

    from .tempering import Choice
    from .training import Settings

LAPLACE = "laplace"
#: the temperature at which a posterior of weights is a point, and draws of outputs by default
COLD, DRAWS = 1e-8, 256
#: factors of the prior's precisions that fits begin with, one after the other as long as the evidence rises: it has many maxima
STARTS = (1.0, 0.1, 0.01, 0.001)


class Laplacian(Ensembled):
    """An estimator that may be a Laplace approximation."""

    method: Any
    structure: str | None
    layers: str
    prior: Any
    structure_: str
    log_evidence_: float
    _scales: Scales
    _approximation: Approximation | None = None

    def _check_laplace(self) -> None:
        """Raises: ValueError: settings that do not go with the method."""
        me: Any = self
        if self.layers not in LAYERS:
            raise ValueError(f'layers must be "all" or "last", got {self.layers!r}')
        if self.structure is not None and self.structure not in STRUCTURES:
            raise ValueError(f"structure must be one of {', '.join(map(repr, STRUCTURES))} or None, got {self.structure!r}")
        if self.method != LAPLACE:
            if self.structure is not None or self.layers != "all":
                raise ValueError('structure and layers are settings of method="laplace"; leave them out, or pass it')
            return
        for name, only in FOREIGN.items():
            if getattr(self, name) != only:
                raise ValueError(f'{name} is a setting of variational posteriors; leave it at {only!r} with method="laplace"')
        if me.temperature not in ("auto", 1):
            raise ValueError(
                f'temperature = {me.temperature!r} does not go with method="laplace", whose evidence is that of temperature 1; '
                "leave it out: the scales of the prior are chosen by the evidence"
            )

    def _fitted_mode(self, x: np.ndarray, outcome: np.ndarray, choice: Choice, settings: Settings, held: Any = None) -> Any:
        """The estimator with a Gaussian at the mode of its weights, whose neighbourhood is found by training at zero temperature.

        Raises:
            FitError: the training failed.
        """
        me: Any = self
        network, weights = me._network(settings.dtype)
        likelihood: AbstractLikelihood = me._likelihood()
        part, free = free_part(network, weights, self.layers)
        structure = structure_of(part, free, me._n_outputs(), self.structure)
        scaled = me._scaled(x)
        layers, written = (self.layers, structure) if self.layers == "all" else self._before(network, weights, scaled, structure)
        prior = self._prior_of(weights, free_part(network, weights, layers)[1])
        starts, noise = self._starts(prior, layers), float(me.noise) if likelihood.start() else None
        begin = None
        if settings.begin is not None:  # where the fit to more observations ended
            starts, noise, means = [self._scales.factors], self._scales.noise, settings.begin[0]
            begin = (means, jax.tree.map(lambda leaf: np.full(np.shape(leaf), TINY), means), {})
        fixed = likelihood if noise is None else Gaussian(noise, learned=False)
        own = dataclasses.replace(
            settings, method="adam", spread="all", sigma=TINY, temperature=COLD, falling=settings.step is None, begin=begin
        )
        apart = None if held is None else (me._scaled(held[0]), held[1])
        unit, best = float(np.std(outcome)) if noise else 1.0, cast(Any, None)
        for j, factors in enumerate(starts):
            scales = Scales(factors, noise)
            cold = ByTensor(list(np.sqrt(COLD) * prior.of_tensors(scales)))
            place = settings.checkpoint and Path(settings.checkpoint)
            own.checkpoint = place and place.with_name(f"{place.stem}-{j}{place.suffix}")
            trained = train(network, weights, fixed, cold, Shared(), scaled, outcome, own, apart)
            if trained.fit.result.failed:
                raise FitError(trained.fit)
            means: Any = trained.fit.params["mean"]
            means = jax.tree.map(lambda leaf: np.asarray(leaf, float), means)
            # Of matrices this small several threads wait for each other longer than they work.
            with precision(np.dtype(float)), threadpool_limits(1, user_api="blas"):
                objective = Objective(*free_part(network, means, layers), likelihood, scaled, outcome)
                found = approximate(objective, written, prior, scales, unit)
            if me.verbose:
                print(f"prior precisions from {factors[0]:g}: log evidence {found.log_evidence:.6g}", file=sys.stderr)
            if best is not None and found.log_evidence <= best[2].log_evidence:
                break
            best = trained, objective, found, means
            if found.scales.noiseless(unit):
                break  # wider priors leave no more noise than this one
        trained, objective, found, means = best
        means, fit = eqx.combine(found.approximation.weights, means), trained.fit
        if layers != self.layers:
            prior = self._prior_of(weights, free)
            with precision(np.dtype(float)), threadpool_limits(1, user_api="blas"):
                objective = Objective(*free_part(network, means, self.layers), likelihood, scaled, outcome)
                last = approximate(objective, structure, prior, found.scales, unit, keep=True)
            means = eqx.combine(last.approximation.weights, means)
            found = found._replace(
                approximation=last.approximation, log_evidence=last.log_evidence, away=max(found.away, last.away)
            )
        unseen = layers == "last" and len(prior.names) > 1
        self._take_mode(objective, found, prior, means, settings.n_blocks, unseen)
        self.n_observations_, self._data, self._held_out = len(x), (x, outcome), held
        me._choice_made, me.temperature_, me.temperatures_ = choice, 1.0, choice.table
        me.result_, me.step_, me.curvature_, me.n_iter_ = fit, trained.step, trained.curvature, fit.n_iter
        me.history_ = trained.history.rename(columns={"elbo": "log_posterior"})
        return self

    def _before(self, network: Network, weights: PyTree, x: np.ndarray, last: str) -> tuple[str, str]:
        """Layers that mode and scales are found of before those before the last are held, and the structure of their curvature:
        all, but of networks whose Jacobians are too large."""
        me: Any = self
        part = free_part(network, weights, "all")[0]
        try:
            structure = structure_of(part, weights, me._n_outputs(), None)
        except ValueError:
            return "last", last
        return "all", "diagonal" if structure == "kronecker" and not factorises(part, weights, x, me._n_outputs()) else structure

    def _starts(self, prior: Prior, which: str) -> list[np.ndarray]:
        """Factors of the prior's precisions that are tried in turn. One layer has one mode; and the evidence of the last layer
        alone does not know what the weights before it cost."""
        layers = len(prior.names)
        return [np.full(layers, start) for start in (STARTS if prior.free and layers > 1 and which == "all" else STARTS[:1])]

    def _prior_of(self, weights: PyTree, free: PyTree) -> Prior:
        """What is given, or else N(0, 1/d) by layer, each with a factor that the evidence chooses.

        Raises:
            ValueError, TypeError: it is not Gaussian.
        """
        me: Any = self
        given = me._prior("fan-in" if self.prior is None else "given", weights)
        if isinstance(given, ByTensor) and len(given.scales) == len(jax.tree.leaves(weights)):
            widths = np.array([float(scale) for scale in given.scales])
        elif isinstance(given, Normal):
            widths = np.full(len(jax.tree.leaves(weights)), float(given.scale))
        else:
            raise TypeError(
                f"Laplace's approximation is by a Gaussian prior of the weights, and {type(given).__name__} is none of these; "
                "pass a number, or margaux.families.variational.priors.Normal or ByTensor (one scale for each tensor)"
            )
        layers = jax.tree_util.tree_flatten_with_path(weights, is_leaf=is_linear)[0]
        groups = [np.full(len(jax.tree.leaves(layer)), j) for j, (_, layer) in enumerate(layers)]
        names = tuple(path_name(path) or "the weights" for path, _ in layers)
        members = np.concatenate(groups)
        if self.prior is not None:
            members, names = np.zeros_like(members), ("all layers",)
        sizes = [0 if leaf is None else np.size(leaf) for leaf in jax.tree.structure(weights).flatten_up_to(free)]
        return Prior(widths, members, np.array(sizes), names, self.prior is None or getattr(given, "learned", False))

    def _take_mode(self, objective: Objective, found: Found, prior: Prior, means: PyTree, n_blocks: int, unseen: bool) -> None:
        """Keep what was found, and say how."""
        me: Any = self
        double, n, made = np.dtype(float), len(objective.y), found.approximation
        variances = jax.tree.map(np.asarray, objective.tree(made.posterior.variances()))
        deviations = eqx.combine(jax.tree.map(np.sqrt, variances), jax.tree.map(np.zeros_like, means))
        network = me._network(double)[0]
        model = Variational(network, objective.likelihood, ByTensor(list(prior.of_tensors(found.scales))), GaussianPosterior(), n,
                            n_blocks)  # fmt: skip
        logs = jax.tree.map(lambda leaf: np.log(np.maximum(leaf, TINY)), deviations)
        params = {"mean": means, "log_sigma": logs}
        if found.scales.noise is not None:
            params["log_noise"] = np.log(found.scales.noise)
        self._keep(model, params, double)
        self._deviations, self._approximation, self._scales = deviations, made, found.scales
        self.structure_, self.log_evidence_ = made.structure, found.log_evidence - n * np.log(me._unit())
        every = self.layers == "all"
        which, given = ("", "") if every else (" of the last layer", ", given the layers before it")
        told = f"A Gaussian at the mode of {objective.size:,} weights{which}, its precision {NAMES[made.structure]}"
        checks = checks_of(found, unseen)
        trouble = [check.sentence for check in checks if check.level != "pass"]
        me.message_ = " ".join([f"{told}; the log evidence is {self.log_evidence_:.6g}{given}.", *trouble])
        me.converged_, me._certificate = converged(found), Certificate(checks)

    def _unit(self) -> float:
        """What an outcome of one is, in the terms in which outcomes were given."""
        return getattr(self, "_y_scale", (0.0, 1.0))[1]

    # -- answers --------------------------------------------------------------------------------

    def _moments(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means (n, k) and covariances (n, k, k) of the outputs."""
        assert self._approximation is not None
        with precision(np.dtype(float)):
            zeros = jax.tree.map(np.zeros_like, self._means)
            outputs = outputs_of_draws(self._model.network, self._means, zeros, x, 1, 0, np.dtype(float))[0]
        return outputs, self._approximation.moments(x, outputs)

    def _outputs(self, x: Any, n_draws: int, random_state: int) -> np.ndarray:
        if self._approximation is None:
            return super()._outputs(x, n_draws, random_state)
        return drawn(*self._moments(x), n_draws, random_state)

    def _number(self, n_draws: int | None, otherwise: int = 30) -> int:
        """Of draws that predictions are averaged over."""
        if n_draws is None and isinstance(self._kept, Chain):
            return self._kept.count
        if n_draws is None:
            return otherwise if self._approximation is None else DRAWS
        return whole("n_draws", n_draws, 1)

    def _scored(self, x: Any, y: np.ndarray) -> dict[str, Any]:
        """The ELBO an observation, where there is one."""
        return {"elbo": self._elbo_of(x, y)} if self._has_bound else {}

    @property
    def _has_bound(self) -> bool:
        """Whether the posterior is one that an ELBO is of."""
        return self._approximation is None and self._kept is None

    def _elbo_of(self, x: Any, y: np.ndarray, random_state: int = 0) -> Bound:
        if self._approximation is not None:
            raise ValueError("Laplace's approximation is no bound of the evidence: log_evidence_ has it")
        return super()._elbo_of(x, y, random_state)

    @property
    def _network_of_draws(self) -> Network:
        """That whose outputs at draws of the weights are the model's."""
        network = self._model.network
        return network if self._approximation is None else Linearised(network, self._means)

    def posterior_draws(self, n_draws: int = 1000, random_state: int = 0) -> dict[str, np.ndarray]:
        if self._approximation is None:
            return super().posterior_draws(n_draws, random_state)
        means = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (n_draws, *leaf.shape)), self._means)
        every = eqx.combine(self._approximation.draws(n_draws, random_state), means)
        return {name: leaf[None] for name, leaf in self._named(every).items()}

    def pruned(self, share: float) -> Any:
        if self._approximation is not None:
            raise ValueError(
                "weights of Laplace's approximation depend on each other, and none can be left out alone; prune a variational fit"
            )
        return super().pruned(share)

    def influence(self, n_draws: int = 100, random_state: int = 0) -> pd.DataFrame:
        if self._approximation is not None and self.layers == "last":
            raise ValueError('influence is on all weights, and those of one layer alone are free; fit with layers="all"')
        return super().influence(n_draws, random_state)
