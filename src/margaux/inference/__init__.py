"""What follows from an estimate: information, tests, marginal likelihood, latents, diagnostics."""

from .bias import bias_probe as bias_probe
from .diagnostics import diagnostics as diagnostics
from .diagnostics import rhat as rhat
from .draws import draws as draws
from .fisher import Information as Information
from .fisher import WaldTest as WaldTest
from .fisher import information as information
from .fisher import wald_table as wald_table
from .fisher import wald_test as wald_test
from .marginal import LogLikelihood as LogLikelihood
from .marginal import loglik as loglik
from .posterior import UndefinedDensity as UndefinedDensity
from .posterior import each_unit as each_unit
from .posterior import latents as latents
from .posterior import proposals as proposals
from .profile import profile as profile
from .profile import slice as slice
from .rules import Rule as Rule
from .rules import best_rule as best_rule
