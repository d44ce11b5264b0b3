"""What a machine has."""

from __future__ import annotations

import os

import numpy as np


def memory() -> float:
    """Bytes; without end where the system does not say."""
    names = getattr(os, "sysconf_names", {})
    if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(names):
        return np.inf
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
