"""The public names, by the module that has each: what is listed here is imported when it is first asked for."""

from . import datasets, distributed, problem
from .algorithms.average import LastIterate, LinearlyWeighted, PolyakRuppert, StepWeighted
from .algorithms.base import Algorithm
from .algorithms.recipes import (
    aisgd,
    incremental_em,
    ipla,
    isgd,
    lbfgs,
    mcem,
    miso,
    misso,
    myipla,
    mypgd,
    newton,
    online_em,
    pgd,
    pipgla,
    saem,
    sag,
    saga,
    slow_fast,
    souk,
    soul,
    svrg,
)
from .answers.fit import Fit
from .answers.load import load
from .answers.many import ManyFits, fit_many
from .bridges.numpyro.entry import fit_numpyro, from_numpyro
from .distributed import shard
from .engine.callbacks import AbstractCallback, Checkpoint, EarlyStopping
from .engine.outcome import RESULTS, FitError
from .esteps import MCMC, AbstractEStep, Exact, ImportanceSampling, Laplace, Noise, Quadrature
from .families.empirical_bayes.estimator import EmpiricalBayesLogistic
from .families.glmm.estimator import GLMM
from .families.inverse.estimator import SparseInverse
from .families.missing.estimator import MissingGLM, MissingLinear, MissingLogistic
from .families.nlme.estimator import NLME
from .families.pln.estimator import PLNPCA
from .families.pln.ranks import pln_ranks
from .families.sparse_mixed.estimator import SparseMixedLogistic
from .families.variational.density import fit_variational
from .families.variational.estimator import BayesianClassifier, BayesianRegressor
from .fitting import fit
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
    LeimkuhlerMatthews,
    PlugAndPlayULA,
    ProximalULA,
    RandomWalk,
    UnadjustedHMC,
    Underdamped,
)
from .numerics.structures import Band, Blocks
from .problem.model import (
    AbstractConjugate,
    AbstractDiscrete,
    AbstractExponentialFamily,
    AbstractLikelihood,
    AbstractModel,
    AbstractStructured,
)
from .problem.penalty import L1, L2, ElasticNet, Huber, NoPenalty
from .problem.schedule import Constant, ConstantThenDecay, Growth, Polynomial
from .problem.space import Ball, Box, Positive, PositiveDefinite, Product, Real, Simplex
from .problem.units import one_unit, pad_ragged
from .replicating.replicates import ReplicateError, Replicates
from .replicating.study import replicate
from .tables.on_disk import on_disk
from .tables.sparse_parquet import sparse_parquet

__version__: str
__all__ = [
    "AbstractCallback",
    "AbstractConjugate",
    "AbstractDiscrete",
    "AbstractEStep",
    "AbstractExponentialFamily",
    "AbstractKernel",
    "AbstractLikelihood",
    "AbstractModel",
    "AbstractStructured",
    "Algorithm",
    "Alternating",
    "Ball",
    "Band",
    "BayesianClassifier",
    "BayesianRegressor",
    "BlackJAX",
    "Blocked",
    "Blocks",
    "Box",
    "Checkpoint",
    "Constant",
    "ConstantThenDecay",
    "CrankNicolson",
    "EarlyStopping",
    "ElasticNet",
    "EllipticalSlice",
    "EmpiricalBayesLogistic",
    "Exact",
    "Fit",
    "FitError",
    "GLMM",
    "Growth",
    "Huber",
    "ImportanceSampling",
    "IndependenceMH",
    "L1",
    "L2",
    "Laplace",
    "LastIterate",
    "LeimkuhlerMatthews",
    "LinearlyWeighted",
    "MALA",
    "MCMC",
    "ManyFits",
    "MYULA",
    "MissingGLM",
    "MissingLinear",
    "MissingLogistic",
    "NLME",
    "NoPenalty",
    "Noise",
    "PLNPCA",
    "PlugAndPlayULA",
    "PolyakRuppert",
    "Polynomial",
    "Positive",
    "PositiveDefinite",
    "Product",
    "ProximalULA",
    "Quadrature",
    "RESULTS",
    "RandomWalk",
    "Real",
    "ReplicateError",
    "Replicates",
    "SGLD",
    "Simplex",
    "SparseInverse",
    "SparseMixedLogistic",
    "StepWeighted",
    "ULA",
    "UnadjustedHMC",
    "Underdamped",
    "aisgd",
    "datasets",
    "distributed",
    "fit",
    "fit_many",
    "fit_numpyro",
    "fit_variational",
    "from_numpyro",
    "incremental_em",
    "ipla",
    "isgd",
    "lbfgs",
    "load",
    "mcem",
    "miso",
    "misso",
    "myipla",
    "mypgd",
    "on_disk",
    "one_unit",
    "online_em",
    "pad_ragged",
    "pgd",
    "pipgla",
    "pln_ranks",
    "problem",
    "replicate",
    "saem",
    "sag",
    "newton",
    "saga",
    "slow_fast",
    "souk",
    "shard",
    "soul",
    "sparse_parquet",
    "svrg",
]
