"""E-steps: conditional expectation operators. One file each."""

from .base import AbstractEStep as AbstractEStep
from .base import AbstractMarginal as AbstractMarginal
from .exact import Exact as Exact
from .importance import ImportanceSampling as ImportanceSampling
from .laplace import Laplace as Laplace
from .mcmc import MCMC as MCMC
from .mixture import ModeMixture as ModeMixture
from .noise import Noise as Noise
from .proposals import AbstractProposal as AbstractProposal
from .proposals import AtMode as AtMode
from .proposals import Running as Running
from .quadrature import Quadrature as Quadrature
