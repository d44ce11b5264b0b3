r"""A log-likelihood whose error is small, and true.

The spread of replicates is the error of an estimate only where no part of the latents' law is missed by all of them. So
weights are judged first, by the Pareto shape of the largest: units of heavy weights, or few effective draws, get a proposal with
the mean and the covariance matrix that their own draws had, and are drawn anew. Then the units that matter to the error are
drawn again with two or four times as many draws, until it is small enough, and those of which weights may be heavy with so
many that it is known.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from .fitting import Design
from .importance import Marginal, marginal
from .proposals import Plan, Proposal
from .variational import Loadings, Posterior

#: draws of a replicate: of the largest tables at first, of others at first, and at most; and replicates
FEWEST, FIRST, MOST, REPLICATES = 16, 64, 1 << 14, 8
#: rates of a first round, about; and draws of all units, or rates, that all rounds may take
RATES, WHOLE, MOST_RATES = 1 << 28, 1024, 1 << 32
#: the proposal of units
PROPOSAL = "student"
#: share of what is wanted, squared, up to which a unit's error is left as it is
NEGLIGIBLE = 1 / 32
#: draws that tell the shape of a unit's weights
JUDGED = 512
#: standard errors, in nats and relative to the log-likelihood, of which the larger is good enough
ERROR, RELATIVE = 0.02, 1e-7
#: shape of weights, and their evenness at first and later, from which on a proposal is adapted; how often at most
ADAPTED, EVEN, EVEN_OWN, ROUNDS = 0.5, 0.85, 0.5, 4
#: shapes from which on the error of a unit is not to be trusted (Vehtari et al. 2024)
HEAVY = 0.7


class Adapted(NamedTuple):
    """What draws say so far, the Gaussians they were proposed about, and which units have one of their own."""

    found: Marginal
    about: Posterior
    own: Bool[np.ndarray, " n"]


def precise(
    design: Design,
    loadings: Loadings,
    posterior: Posterior,
    proposal: Proposal | str = PROPOSAL,
    error: float = ERROR,
    seed: int = 0,
    adapt: bool = True,
    begun: Adapted | None = None,
) -> Marginal:
    r"""`marginal`, until the standard error of the total is at most `error` nats, or $10^{-7}$ of the total where that is more.

    Args:
        posterior: where proposals begin. adapt: they may leave it; if not, uneven weights are not warned of. begun: what is
            known already, by the same proposal: it stands for the first round if it has the draws, else begins it.

    Raises:
        ValueError: `error` is not positive, or as of `marginal`.

    Warns:
        UserWarning: the error is still larger, or is not to be trusted.
    """
    if not error > 0:
        raise ValueError(f"error must be positive, the standard error to reach in nats, got {error}")
    share, p = design.share, design.counts.p
    n = share.n
    plan = Plan(first_draws(n, p), REPLICATES, seed=seed)
    if not adapt:
        begun = Adapted(marginal(design, loadings, posterior, proposal, plan), posterior, np.zeros(design.counts.n, bool))
    elif begun is None or share.least(begun.found.draws.min(initial=np.inf)) < plan.draws:
        begun = adapted(design, loadings, posterior, proposal, plan, begun)
    marginals, posterior, _ = begun
    spent, round = float(plan.draws), ROUNDS
    while True:
        value, reached = marginals.total
        wanted = max(error, RELATIVE * abs(value))
        # Units that matter to the error. To draw only those of large error anew would bias the sum: the others are those that
        # happen to lack a large ratio; where ratios are unbounded all are drawn anew.
        above = (marginals.error**2 > NEGLIGIBLE * wanted**2 / n) | (not adapt)
        short = (reached > wanted) & above & (marginals.draws < MOST)
        # Of few draws the shape of the largest weights is little known.
        doubtful = (marginals.pareto > ADAPTED) & (marginals.draws < JUDGED) & adapt
        again = np.flatnonzero(short | doubtful)
        draws = np.where(short, 2 if reached < 1.6 * wanted else 4, 1) * marginals.draws
        draws = np.where(doubtful, np.maximum(draws, JUDGED), draws)[again]
        wanted_of = share.joined(draws)
        spent += float(wanted_of.sum()) / n
        if not wanted_of.size or (spent > WHOLE and spent * REPLICATES * n * p > MOST_RATES):
            break
        for count in np.unique(wanted_of):
            those, round = again[draws == count], round + 1
            plan = Plan(int(count), REPLICATES, seed=seed + 101 * round)
            marginals = _again(marginals, design, loadings, posterior.rows(those), proposal, plan, those)
    _warn(marginals, value, reached, wanted, adapt)
    return marginals


def adapted(
    design: Design,
    loadings: Loadings,
    posterior: Posterior,
    proposal: Proposal | str,
    plan: Plan,
    begun: Adapted | None = None,
) -> Adapted:
    """`marginal`, with units of uneven weights drawn anew about what their draws were like: first, if given, those of `begun`."""
    share = design.share
    if begun is None:
        begun = Adapted(marginal(design, loadings, posterior, proposal, plan), posterior, np.zeros(design.counts.n, bool))
    else:
        begun = begun._replace(found=marginal(design, loadings, begun.about, proposal, plan))
    marginals, own = begun.found, begun.own.copy()
    mean, spread = (np.array(leaf, float) for leaf in begun.about)
    q = mean.shape[1]
    for round in range(1, ROUNDS + 1):
        uneven = np.flatnonzero((marginals.pareto > ADAPTED) | (marginals.even < np.where(own, EVEN_OWN, EVEN)))
        if not share.largest(uneven.size):
            break
        # Of few effective draws a covariance matrix is little known, and would lie in a plane.
        trust = (marginals.ess[uneven] / (marginals.ess[uneven] + 2 * q))[:, None]
        mean[uneven] = marginals.mean[uneven]
        spread[uneven] = trust * marginals.spread[uneven] + (1 - trust) * spread[uneven]
        about = Posterior(*(jnp.asarray(leaf[uneven], posterior.mean.dtype) for leaf in (mean, spread)))
        anew = plan._replace(seed=plan.seed + 101 * round)
        marginals = _again(marginals, design, loadings, about, proposal, anew, uneven)
        own[uneven] = True
    return Adapted(marginals, Posterior(*(jnp.asarray(leaf, posterior.mean.dtype) for leaf in (mean, spread))), own)


def _again(
    whole: Marginal, design: Design, loadings: Loadings, about: Posterior, proposal: Proposal | str, plan: Plan, rows: np.ndarray
) -> Marginal:
    """The same with some units drawn anew, in tables of a power of two units, so that few programs are compiled. The digits of
    a unit are those of its place among all that are drawn anew, in whatever process."""
    share = design.share.some(len(rows))
    if not len(rows):
        return whole
    size = min(1 << max(int(np.ceil(np.log2(len(rows)))), 4), len(whole.error))
    filled = np.resize(np.arange(len(rows)), max(size, len(rows)))
    some = rows[filled]
    found = marginal(design.rows(some, share), loadings, about.rows(filled), proposal, plan)
    places = np.arange(len(whole.error))
    places[rows] = len(places) + np.arange(len(rows))

    def put(old, new):
        return np.concatenate([old, new])[places]

    logs = np.concatenate([whole.logs, found.logs], axis=1)[:, places]
    return Marginal(*map(put, whole[:-2], found[:-2]), logs=logs, share=whole.share)


def _warn(found: Marginal, value: float, reached: float, wanted: float, adapt: bool) -> None:
    share = found.share
    heavy = int(share.summed(np.sum(found.pareto > HEAVY))) if adapt else 0
    draws, worst = (share.largest(each.max(initial=-np.inf)) for each in (found.draws, found.pareto))
    if reached > wanted:
        warnings.warn(
            f"the log-likelihood {value:.2f} still has a standard error of {reached:.2g} after up to {draws:.0f} "
            f"draws in each of {REPLICATES} replicates a unit, above {wanted:.2g}; criteria that differ by less than it do not "
            "tell models apart",
            stacklevel=3,
        )
    if heavy:
        warnings.warn(
            f"the error {reached:.2g} of the log-likelihood {value:.2f} is not to be trusted: the weights of {heavy} units are "
            f"uneven (Pareto shape up to {worst:.2f}, above {HEAVY})",
            stacklevel=3,
        )


def first_draws(n: int, p: int, enough: int = FIRST) -> int:
    """A power of two: `enough`, or fewer for large tables.

    >>> first_draws(300, 150), first_draws(5000, 2000)
    (64, 16)
    """
    return min(1 << int(np.log2(max(RATES // (REPLICATES * n * p), FEWEST))), enough)
