"""E-steps: conditional expectation operators. One file each."""

from .base import AbstractEStep as AbstractEStep
from .exact import Exact as Exact
from .importance import ImportanceSampling as ImportanceSampling
from .mcmc import MCMC as MCMC
from .mixture import ModeMixture as ModeMixture
from .noise import Noise as Noise
from .proposals import AbstractProposal as AbstractProposal
from .proposals import Laplace as Laplace
from .proposals import Running as Running
from .quadrature import Quadrature as Quadrature
