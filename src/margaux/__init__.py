"""margaux: maximum marginal likelihood for latent-variable models, on JAX."""

from typing import Any

from .collector import paused as _paused

with _paused():
    from .algorithm import AbstractAlgorithm, Algorithm
    from .algorithms import (
        aisgd,
        incremental_em,
        ipla,
        isgd,
        mcem,
        miso,
        misso,
        online_em,
        pgd,
        saem,
        sag,
        saga,
        slow_fast,
        souk,
        soul,
        svrg,
    )
    from .average import AbstractAverage, LastIterate, LinearlyWeighted, PolyakRuppert, StepWeighted
    from .callbacks import AbstractCallback, Checkpoint, EarlyStopping, Progress
    from .data import pad_ragged
    from .density import bernoulli_logit
    from .esteps import MCMC, AbstractEStep, Exact, ImportanceSampling, Noise, Quadrature
    from .fit import fit
    from .kernels import (
        MALA,
        MYULA,
        SGLD,
        ULA,
        AbstractKernel,
        Alternating,
        BlackJAX,
        Blocked,
        CrankNicolson,
        EllipticalSlice,
        IndependenceMH,
        ProximalULA,
        RandomWalk,
        UnadjustedHMC,
        Underdamped,
    )
    from .model import (
        AbstractBatchSurrogate,
        AbstractConjugate,
        AbstractDiscrete,
        AbstractExponentialFamily,
        AbstractFactorised,
        AbstractModel,
        AbstractNonSmooth,
        AbstractPointwise,
        AbstractPredictive,
        AbstractShared,
        AbstractSurrogate,
        one_unit,
    )
    from .particles import ParticleLangevin
    from .penalty import L1, L2, AbstractPenalty, ElasticNet, Huber, NoPenalty
    from .result import RESULTS, Fit, FitError, load
    from .scaled import ScaledAscent
    from .schedule import AbstractSchedule, Constant, ConstantThenDecay, Growth, Polynomial, check_schedules
    from .space import AbstractSpace, Ball, Box, Positive, PositiveDefinite, Product, Real, Simplex

__version__ = "0.1.0"

#: estimators and what takes long to import, by module, imported when first asked for
_LATER = {
    "BayesianClassifier": "estimators.bayesian",
    "BayesianRegressor": "estimators.bayesian",
    "EmpiricalBayesLogistic": "estimators.empirical_bayes",
    "MissingGLM": "estimators.missing",
    "MissingLinear": "estimators.missing",
    "MissingLogistic": "estimators.missing",
    "NLME": "estimators.nlme",
    "PLNPCA": "estimators.pln",
    "RankChoice": "estimators.ranks",
    "SparseInverse": "estimators.sparse_inverse",
    "SparseMixedLogistic": "estimators.sparse_mixed",
    "fit_numpyro": "bridges.numpyro_entry",
    "fit_variational": "estimators.variational",
    "from_numpyro": "bridges.numpyro_entry",
    "pln_ranks": "estimators.ranks",
}
__all__ = [*(name for name in dir() if not name.startswith("_") and name != "Any"), *_LATER]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        with _paused():
            return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"margaux has no {name!r}")
