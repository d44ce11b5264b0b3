"""Figures of a fit."""

from .fit import FitPlots as FitPlots
