"""E-steps: conditional expectation operators. One file each."""

from .base import AbstractEStep as AbstractEStep
from .exact import Exact as Exact
from .importance import ImportanceSampling as ImportanceSampling
from .mcmc import MCMC as MCMC
from .noise import Noise as Noise
from .quadrature import Quadrature as Quadrature
