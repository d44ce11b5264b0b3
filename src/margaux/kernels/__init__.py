"""Markov kernels for one unit's latents. One file each; the target is an argument, never captured."""

from .base import AbstractKernel as AbstractKernel
from .blackjax import BlackJAX as BlackJAX
from .imh import IndependenceMH as IndependenceMH
from .mala import MALA as MALA
from .rwm import RandomWalk as RandomWalk
from .ula import ULA as ULA
