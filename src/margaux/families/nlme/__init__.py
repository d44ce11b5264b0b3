"""Nonlinear mixed-effects models: distributions, errors, outcomes, structural models, comparisons."""

from .autocorrelated import AR1
from .comparison import compare, lr_test
from .control import ControlStream, from_control
from .dosing import dosed
from .equations import ode
from .error import Combined, ConstantError, Exponential, Power, Proportional, ResidualError
from .individual import Individual, LogitNormal, LogNormal, Normal, ProbitNormal
from .model_file import ModelFile, from_toml
from .outcomes import (
    AbstractOutcome,
    Bernoulli,
    Binomial,
    Custom,
    ExponentialSurvival,
    NegativeBinomial,
    Ordinal,
    Poisson,
    WeibullSurvival,
    ZeroInflatedPoisson,
)
from .priors import InverseWishart, NormalPrior
from .ready_odes import friberg, iv1cpt_mm, metabolite, oral1cpt_mm, transit1cpt, turnover
from .several import outputs
from .shapes import BoxCox, StudentT
from .structural import (
    CURVES,
    Curve,
    asymptotic_growth,
    bolus1cpt,
    bolus1cpt_k,
    bolus1cpt_lag,
    bolus2cpt,
    bolus2cpt_lag,
    bolus3cpt,
    bolus3cpt_lag,
    curve,
    emax,
    emax_baseline,
    gompertz_growth,
    infusion1cpt,
    infusion1cpt_lag,
    infusion2cpt,
    infusion2cpt_lag,
    infusion3cpt,
    infusion3cpt_lag,
    linear_plateau,
    logistic_growth,
    oral1cpt,
    oral1cpt_k,
    oral1cpt_lag,
    oral2cpt,
    oral2cpt_lag,
    oral3cpt,
    oral3cpt_lag,
    polynomial,
    sigmoid_emax,
    sigmoid_emax_baseline,
    superposed,
)
from .structure_search import StructureSearch, choose_structure
