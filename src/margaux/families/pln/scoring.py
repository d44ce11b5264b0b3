r"""The score of the Poisson log-normal model of rank q by importance sampling, to which draws can be added."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...numerics.threads import side_by_side
from .filling import at_zero
from .fitting import Design
from .importance import BLOCK, Block, blocks, random_bits
from .proposals import Plan, Proposal, chosen, nets
from .variational import Loadings, Posterior
from .weighted import CHUNK, Sums, Weighted, nothing, span_score, weighted, width

#: rows of a net of which some are taken; numbers that are kept for draws to be added to, at most
NET, KEPT = 1 << 12, 1 << 24
#: features up to which expectations to first order are in closed form: they take pairs of them
NARROW = 256
#: parts of a table at least, for threads to share, and the units of one that are worth it
PARTS, UNITS = 4, 16


def score(
    design: Design, loadings: Loadings, posterior: Posterior, proposal: Proposal | str = "vem",
    plan: Plan = Plan(replicates=1), control: bool = True,  # noqa: B008
) -> Loadings:  # fmt: skip
    r"""The gradient of the log-likelihood in (B, C), $\sum_i\sum_j(y_{ij} - E[A_{ij}u_i\mid y_i])$ with $u_i = (x_i, w_i)$ and
    $A_{ij}$ the rate at $w_i$.

    With `control`, the expectation of $h = A_{ij}(1, w_i)$ or $w_i$ is that under $g = N(\mu_i, S_i)$, in closed form, plus
    $\sum_r(\omega_r - \omega^g_r)h(v_r)$, where $\omega^g_r$ are the self-normalised weights of g, 1/N where g is the proposal.
    What is left to the draws is the difference of $p(\cdot\mid y_i)$ from g; with up to `NARROW` features, only what is of second
    order in it (see `margaux.families.pln.weighted.weighted`).
    """
    found = scores(design, loadings, posterior, proposal, plan, control)

    def mean(name):
        return jnp.mean(jnp.stack([each[name] for each in found]), axis=0)

    return Loadings(mean("B"), mean("C"))


def scores(
    design: Design, loadings: Loadings, posterior: Posterior, proposal: Proposal | str = "vem",
    plan: Plan = Plan(replicates=1), control: bool = True,  # noqa: B008
) -> list[dict[str, Array]]:  # fmt: skip
    r"""`score` of each replicate, "B" and "C", and within the span of C "slope", $\sum_ix_iE[w_i]^\top$, and "scale", the lower
    triangle of $\sum_iE[w_iw_i^\top] - I$."""
    return Scoring(design, loadings, posterior, proposal, plan, control).by(plan.draws)


class Scoring:
    """`scores` under given loadings by more and more draws of a plan: those of nets are visited once, unless what is to be kept
    of them is too much."""

    def __init__(
        self, design: Design, loadings: Loadings, posterior: Posterior, proposal: Proposal | str, plan: Plan, control: bool = True
    ) -> None:
        self.design, self.loadings, self.posterior = design, loadings, posterior
        n, (p, q) = design.counts.n, loadings.C.shape
        self.proposal, self.plan, self.control = chosen(proposal), plan, (2 if p <= NARROW else 1) if control else 0
        wide = width(p, q, self.control)
        self.size = min(BLOCK // wide, max(-(-n // PARTS), UNITS))
        self.kept = list(self._blocks()) if plan.sobol and n * wide * plan.replicates <= KEPT else None
        self.visited = 0
        self.sums: dict[tuple[int, int], Sums] = {}

    def by(self, draws: int) -> list[dict[str, Array]]:
        """By that many draws, no fewer than before."""
        design, (p, q), k, dtype = self.design, self.loadings.C.shape, len(self.loadings.B), self.loadings.C.dtype
        plan = self.plan._replace(draws=draws)
        digits = nets(plan, self.proposal, q)
        # Nets as long as they get, so that one program serves all numbers of draws.
        longer = plan.sobol and CHUNK <= draws < NET
        digits = [at_zero(net, NET) for net in digits] if longer else digits
        if self.visited % CHUNK:
            self.visited, self.sums = 0, {}
        pulls = [np.zeros((p, k + q)) for _ in digits]
        means = [np.zeros((design.counts.n, q), dtype) for _ in digits]
        spreads = [np.zeros((design.counts.n, q * (q + 1) // 2), dtype) for _ in digits]

        def visit(part: tuple[Block, int]) -> Weighted:
            return self._weighted(*part, digits[part[1]], plan)

        for some in [self.kept] if self.kept else ([block] for block in self._blocks()):
            parts = list(itertools.product(some, range(len(digits))))
            for (block, replicate), found in zip(parts, side_by_side(visit, parts, dtype), strict=True):
                pulls[replicate] += found.pull[:p]
                means[replicate][block.span], spreads[replicate][block.span] = block.emptied((found.mean, found.spread))
        self.visited = draws if self.kept else 0
        x = np.asarray(design.x)
        observed, out = design.counts.own_transposed_times(x).T, []
        for pull, mean, spread in zip(pulls, means, spreads, strict=True):
            C = design.counts.own_transposed_times(mean) - pull[:, k:]
            slope, scale = span_score(np.asarray(x, dtype), mean, spread)
            out.append({"B": observed - pull[:, :k].T, "C": C, "slope": slope, "scale": scale})
        return jax.tree.map(lambda leaf: np.asarray(leaf, dtype), design.share.summed(out))

    def _blocks(self) -> Iterator[Block]:
        return blocks(self.design, self.loadings, self.posterior, self.proposal, self.size)

    def _weighted(self, block: Block, replicate: int, net: np.ndarray, plan: Plan) -> Weighted:
        """What the draws of a block of units say, with those that were visited before."""
        (full, units, gaussian), place = block.full, (block.span.start, replicate)
        bits = at_zero(random_bits(plan, replicate, block.numbers, (plan.draws, net.shape[1])), len(units.x))
        sums = self.sums.get(place, nothing(len(units.x), full.C, self.control)) if self.kept else None
        numbers: Any = np.asarray(len(block.units.x), np.int32), np.asarray([self.visited, plan.draws], np.int32)
        found, sums = weighted(full, units, gaussian, bits, net, sums, *numbers, self.proposal, self.control)
        if sums is not None:
            self.sums[place] = sums
        arrays: Any = map(np.asarray, found)
        return Weighted(*arrays)
