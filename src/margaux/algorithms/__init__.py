"""How parameters move: an algorithm is a statistic, a memory and an update."""

from .average import AbstractAverage as AbstractAverage
from .average import LastIterate as LastIterate
from .average import LinearlyWeighted as LinearlyWeighted
from .average import PolyakRuppert as PolyakRuppert
from .average import StepWeighted as StepWeighted
from .base import AbstractAlgorithm as AbstractAlgorithm
from .base import Algorithm as Algorithm
from .particles import ParticleLangevin as ParticleLangevin
from .recipes import aisgd as aisgd
from .recipes import incremental_em as incremental_em
from .recipes import ipla as ipla
from .recipes import isgd as isgd
from .recipes import mcem as mcem
from .recipes import miso as miso
from .recipes import misso as misso
from .recipes import online_em as online_em
from .recipes import pgd as pgd
from .recipes import saem as saem
from .recipes import sag as sag
from .recipes import saga as saga
from .recipes import slow_fast as slow_fast
from .recipes import souk as souk
from .recipes import soul as soul
from .recipes import svrg as svrg
from .scaled import ScaledAscent as ScaledAscent
