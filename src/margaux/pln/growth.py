"""As many draws as a log-likelihood needs."""

from __future__ import annotations

import warnings

import numpy as np

from .fitting import Design
from .importance import Marginal, marginal
from .proposals import Plan, Proposal
from .variational import Loadings, Posterior

#: draws of a replicate, at first and at most, and replicates
FEWEST, MOST, REPLICATES = 16, 1024, 8
#: rates of a first round, about: small tables begin with more draws
RATES = 1 << 28
#: standard errors, in nats and relative to the log-likelihood, of which the larger is good enough
ERROR, RELATIVE = 0.05, 1e-7


def precise(
    design: Design, loadings: Loadings, posterior: Posterior, proposal: Proposal | str = "vem mixture",
    error: float | None = None, seed: int = 0,
) -> tuple[Marginal, Plan]:  # fmt: skip
    r"""`marginal`, with draws doubled until the standard error of the total is at most `error` nats, or there are 8192 draws a
    unit. The default of `error` is 0.05, or $10^{-7}$ of the log-likelihood where that is more.

    Returns:
        The likelihoods, and how they were drawn.

    Raises:
        ValueError: `error` is not positive, or as of `marginal`.

    Warns:
        UserWarning: the error is still larger.
    """
    if error is not None and not error > 0:
        raise ValueError(f"error must be positive, the standard error to reach in nats, got {error}")
    draws = first_draws(design.counts.n, design.counts.p)
    while True:
        plan = Plan(draws=draws, replicates=REPLICATES, seed=seed)
        found = marginal(design, loadings, posterior, proposal, plan)
        value, reached = found.total
        wanted = max(ERROR, RELATIVE * abs(value)) if error is None else error
        if reached <= wanted:
            return found, plan
        if draws >= MOST:
            warnings.warn(
                f"the log-likelihood {value:.2f} still has a standard error of {reached:.2g} after {draws * REPLICATES} draws a "
                f"unit, above {wanted:.2g}; criteria that differ by less than it do not tell models apart",
                stacklevel=2,
            )
            return found, plan
        draws *= 2


def first_draws(n: int, p: int) -> int:
    """A power of two that suits the size of a table.

    >>> first_draws(300, 150), first_draws(5000, 2000)
    (512, 16)
    """
    return 1 << int(np.log2(np.clip(RATES // (REPLICATES * n * p), FEWEST, MOST)))
