r"""Laplace's approximation of a posterior of weights: a Gaussian at the mode whose precision is the Gauss-Newton curvature.

What it predicts is by the network linearised at the mode, $f(x) + J(w-w^*)$: of that model the Gaussian is the posterior, and
of the network itself its draws predict badly (Immer, Korzepa and Bauer 2021, "Improving predictions of Bayesian neural nets via
local linearization"; Daxberger et al. 2021, "Laplace redux"). The mode and the scales of the prior and the noise are found in
turn.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import scipy
from jaxtyping import Float, PyTree

from ...numerics.nets import sobol
from ...numerics.precision import precision, settle
from .draws import is_linear, layers
from .evidence import Evidence, Prior, Scales
from .gauss_newton import AT_ONCE, Objective, Part, bent, mode, parts_of_jacobian, roots
from .kronecker import dense_layers, factors, index_of
from .networks import ModuleNetwork, Network
from .structures import DenseCurvature, DiagonalCurvature, Joint, KroneckerCurvature

STRUCTURES, LAYERS = ("full", "kronecker", "diagonal"), ("all", "last")
#: weights up to which the structure is full by default, and up to which it may be
FULL, MOST = 2000, 10_000
#: weights times observations up to which the mode is found anew for other scales
AFFORDABLE = 500_000_000
#: times that mode and scales are found in turn, at most, and what each has to add to the log evidence, for every hundred
#: weights; how much higher the log posterior may be than at a mode that is found in between, and at the last one
ROUNDS, SETTLED, ABOUT, CLOSE = 30, 1e-3, 1e-4, 1e-12
#: times that scales are chosen with no noise left: how wide priors are that interpolate may change for many rounds
NOISELESS = 2
#: share of the way to scales that were to raise the evidence below which one that has only fallen is given up, and a fall there
#: that says that the maximum is near: it was .02 and .07 higher where falls of .007 and .016 were looked into
SHORTEST, SLIGHT = 1 / 8, 0.05


class Approximation(NamedTuple):
    """A Gaussian of the weights that are free.

    Attributes:
        network: of these. weights: the mode, a tree. posterior: around it. structure: its name.
    """

    network: Part
    weights: PyTree
    posterior: Joint
    structure: str

    def moments(self, x: np.ndarray, outputs: np.ndarray) -> Float[np.ndarray, "n k k"]:
        r"""Covariances $J_i\Sigma J_i^\top$ of the outputs (n, k) of observations."""
        n, k = outputs.shape
        found = np.empty((n, k, k))
        with precision(np.dtype(float)):
            network, weights = settle((self.network, self.weights), np.dtype(float))
            for rows, jacobian in parts_of_jacobian(network, weights, x, k):
                white = self.posterior.white(jacobian.reshape(-1, jacobian.shape[2])).reshape(*jacobian.shape[:2], -1)
                found[rows] = white @ white.transpose(0, 2, 1)
        return found

    def draws(self, n_draws: int, seed: int) -> PyTree:
        """Of the weights, with a leading axis."""
        leaves, structure = jax.tree.flatten(self.weights)
        sizes = np.cumsum([leaf.size for leaf in leaves])
        z = self.posterior.coloured(np.random.default_rng(seed).normal(size=(n_draws, sizes[-1])))
        parts = zip(leaves, np.split(z, sizes[:-1], axis=1), strict=True)
        return jax.tree.unflatten(structure, [leaf + part.reshape(n_draws, *leaf.shape) for leaf, part in parts])


def drawn(
    outputs: Float[np.ndarray, "n k"], covariances: Float[np.ndarray, "n k k"], n_draws: int, seed: int
) -> Float[np.ndarray, "m n k"]:
    """Draws of Gaussian outputs, by the same points of a scrambled net for all observations."""
    power = int(np.ceil(np.log2(n_draws)))
    points = sobol(outputs.shape[1], power, np.random.default_rng(seed).spawn(1)[0])[:n_draws]
    z = scipy.special.ndtri(np.clip(points, 1e-12, 1 - 1e-12))
    return outputs + np.einsum("nkl,ml->mnk", roots(covariances), z)


class Found(NamedTuple):
    """What was found.

    Attributes:
        log_evidence: by Laplace. away: how much higher the log posterior is at the maximum, about. settled: whether mode and
            scales no longer change; None where they were found once. said: what ended at a bound. fell: by how much the log
            evidence was lower at the last scales that were tried, and not kept.
    """

    approximation: Approximation
    scales: Scales
    log_evidence: float
    away: float
    settled: bool | None
    said: list[str]
    fell: float = 0.0


def approximate(
    objective: Objective, structure: str, prior: Prior, scales: Scales, unit: float = 1.0, keep: bool = False
) -> Found:
    """Mode, scales and Gaussian, from the weights of the objective, which are near.

    Args:
        objective: the log-likelihood. scales: at the start. unit: the standard deviation of the outcome. keep: whether the
            scales stay what they are.
    """
    flat = objective.start
    again = objective.size * len(objective.y) <= AFFORDABLE

    def own(scales: Scales) -> dict[str, Any]:
        return {} if scales.noise is None else {"log_noise": np.log(scales.noise)}

    def held(scales: Scales) -> np.ndarray:
        return scales.factors[prior.groups] / prior.scales**2

    def evidence(flat: np.ndarray, scales: Scales) -> Evidence:
        outputs = objective.outputs(flat)
        value = objective.slope(flat, own(scales))[0]
        curved = curvatures(objective, structure, prior, flat, own(scales), outputs)
        residual = 0.0 if scales.noise is None else float(np.sum((np.asarray(objective.y) - outputs[:, 0]) ** 2))
        return Evidence(prior, curved, (flat / prior.scales) ** 2, value, len(outputs), residual, scales.noise, unit)

    here, away, settled, fell = evidence(flat, scales), np.inf, None, 0.0
    if again:
        best, gain = -np.inf, SETTLED * max(objective.size / 100, 1)
        settled = keep or not (prior.free or scales.noise is not None)
        tried = kept = flat, scales, here.gaussian(scales).times
        top, better, share, left = here, scales, 1.0, NOISELESS
        for _ in range(0 if settled else ROUNDS):
            flat, scales, inverse = tried
            flat, _ = mode(objective, flat, own(scales), held(scales), inverse, ABOUT)
            here = evidence(flat, scales)
            value = here(scales)[0]
            settled = bool(abs(value - best) < gain) and (share == 1 or value >= best)
            if settled:
                break
            if value > best:
                best, kept, share = value, (flat, scales, here.gaussian(scales).times), 1.0
                top, better = here, here.highest(scales)
                left -= scales.noiseless(unit)
                if left < 0:
                    break
            elif share <= SHORTEST:
                fell = float(best - value)
                settled = fell < SLIGHT
                break
            else:
                share /= 2  # the mode and the curvature, which were held, moved too far
            shorter = kept[1].towards(better, share)
            tried = kept[0], shorter, top.gaussian(shorter).times
        flat, scales, inverse = kept
        flat, away = mode(objective, flat, own(scales), held(scales), inverse, CLOSE)
        here = evidence(flat, scales)
    elif not keep:
        scales = here.highest(scales)
    posterior = here.gaussian(scales)
    if not again:
        slope = objective.slope(flat, own(scales))[1] - held(scales) * flat
        away = float(slope @ posterior.times(slope)) / 2
    network: Any = objective.network
    made = Approximation(network, jax.tree.map(np.asarray, objective.tree(flat)), posterior, structure)
    return Found(made, scales, here(scales)[0], away, settled, scales.at_bounds(prior, unit), 0.0 if settled else fell)


def curvatures(
    objective: Objective, structure: str, prior: Prior, flat: np.ndarray, own: dict[str, Any], outputs: np.ndarray
) -> list[Any]:
    """The Gauss-Newton curvature of the weights, in a structure."""
    network, weights, x = objective.network, settle(objective.tree(flat), np.dtype(float)), objective.x
    own = settle(own, np.dtype(float))
    bend = np.asarray(bent(objective.likelihood, own, settle(outputs[None], np.dtype(float)), objective.y)[1])
    n, k, _ = bend.shape
    if structure == "full":
        total = np.zeros((objective.size,) * 2, order="F")
        for rows, jacobian in parts_of_jacobian(network, weights, x, k):
            curved = (roots(bend[rows]).transpose(0, 2, 1) @ jacobian * prior.scales).reshape(-1, objective.size)
            # One triangle of the product alone.
            total = scipy.linalg.blas.dsyrk(1.0, curved.T, beta=1.0, c=total, lower=True, overwrite_c=True)
        return [DenseCurvature(np.arange(objective.size), prior.scales, np.tril(total) + np.tril(total, -1).T)]
    assert isinstance(network, Part)
    indices, found, rest = objective.tree(np.arange(objective.size)), [], np.ones(objective.size, bool)
    if structure == "kronecker":
        chosen = dense_layers(network, indices)
        pairs = factors(network, weights, tuple(chosen), x, bend)
        for layer, (outer, inner) in zip(chosen.values(), pairs, strict=True):
            index = index_of(layer)
            found.append(KroneckerCurvature.of(index, prior.scales[index], outer, inner))
            rest[index] = False
    left = np.flatnonzero(rest)
    if left.size:
        scale = prior.scales[left]
        found.append(DiagonalCurvature(left, scale, scale**2 * _squares(network, weights, objective.tree(rest), x, bend)))
    return found


def _squares(network: Part, weights: PyTree, chosen: PyTree, x: np.ndarray, bend: np.ndarray) -> np.ndarray:
    """The diagonal of the curvature, of those tensors that are chosen."""
    some, others = eqx.partition(weights, jax.tree.map(lambda leaf: bool(np.all(leaf)), chosen))
    within, total = Part(network, others), 0.0
    for rows, jacobian in parts_of_jacobian(within, some, x, bend.shape[1]):
        total = total + np.einsum("nkp,nkp->p", jacobian, bend[rows] @ jacobian)
    return np.asarray(total)


def free_part(network: Network, weights: PyTree, which: str) -> tuple[Part, PyTree]:
    """The network as a function of all weights, or of those of its last linear layer, and these.

    Raises:
        ValueError: there is no such layer.
    """
    if which == "all":
        return Part(network, jax.tree.map(lambda _: None, weights)), weights
    count = len(layers(network.module(weights))) if isinstance(network, ModuleNetwork) else 0
    if not count:
        raise ValueError('layers="last" needs a network whose layers are known, such as an equinox module; use layers="all"')
    numbers = iter(range(count))

    def last(part: Any) -> Any:
        own = is_linear(part) and next(numbers) == count - 1
        return jax.tree.map(lambda _: own, part)

    free, held = eqx.partition(weights, jax.tree.map(last, weights, is_leaf=is_linear))
    return Part(network, held), free


def structure_of(network: Part, weights: PyTree, outputs: int, asked: str | None) -> str:
    """The structure that is asked for, or by default.

    Raises:
        ValueError: it cannot be.
    """
    sizes = [np.size(leaf) for leaf in jax.tree.leaves(weights)]
    size = sum(sizes)
    ends = np.cumsum(sizes)
    indices = [np.arange(end - own, end).reshape(np.shape(leaf)) for end, own, leaf in
               zip(ends, sizes, jax.tree.leaves(weights), strict=True)]  # fmt: skip
    dense = dense_layers(network, jax.tree.unflatten(jax.tree.structure(weights), indices))
    within = sum(index_of(layer).size for layer in dense.values())
    found = asked or ("full" if size <= FULL else "kronecker" if within > size / 2 else "diagonal")
    if found == "kronecker" and not dense:
        raise ValueError('structure="kronecker" needs dense layers, and this network has none that are known; use "diagonal"')
    if found == "full" and size > MOST:
        raise ValueError(
            f"the full curvature of {size:,} weights is too large to be written out (up to {MOST:,}); use "
            'structure="kronecker" or "diagonal", or layers="last"'
        )
    if size * outputs > AT_ONCE:
        raise ValueError(
            f'{size:,} weights and {outputs} outputs are too many for Jacobians of every observation; use layers="last"'
        )
    return found
