"""Markov kernels for one unit's latents. One file each; the target is an argument, never captured."""

from .alternating import Alternating as Alternating
from .base import AbstractBlockedKernel as AbstractBlockedKernel
from .base import AbstractKernel as AbstractKernel
from .base import AbstractPriorKernel as AbstractPriorKernel
from .base import AbstractProximalKernel as AbstractProximalKernel
from .base import AbstractSubsamplingKernel as AbstractSubsamplingKernel
from .blackjax import BlackJAX as BlackJAX
from .blocked import Blocked as Blocked
from .imh import IndependenceMH as IndependenceMH
from .leimkuhler_matthews import LeimkuhlerMatthews as LeimkuhlerMatthews
from .mala import MALA as MALA
from .myula import MYULA as MYULA
from .myula import ProximalULA as ProximalULA
from .plug_and_play import PlugAndPlayULA as PlugAndPlayULA
from .prior import CrankNicolson as CrankNicolson
from .prior import EllipticalSlice as EllipticalSlice
from .rwm import RandomWalk as RandomWalk
from .sgld import SGLD as SGLD
from .uhmc import UnadjustedHMC as UnadjustedHMC
from .ula import ULA as ULA
from .underdamped import Underdamped as Underdamped
