r"""Classes of subjects: $\phi_i\mid k\sim N(C_i\beta+\delta_k, \Omega)$ with probability $p_k$, and $\delta_1 = 0$.

The population of $\phi$ is a mixture of Gaussians, and the data depend on the class through $\phi$ alone. The engine's parameters
are `share`, $\log(p_k/p_1)$ of the classes from the second on (K - 1,), and `shift`, the $\delta_k$ of the parameters that have
classes, class by class ((K - 1) c,).

References: McLachlan and Peel, Finite Mixture Models (2000), chapters 2 and 3; Lavielle and Mbogning, An improved SAEM algorithm
for maximum likelihood estimation in mixtures of non linear mixed effects models, Stat. Comput. 24 (2014), 693-707.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ...numerics.precision import precision
from . import derivatives

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...answers.fit import Fit
    from .individual import Individual
    from .model import MixedEffects

#: the engine's parameters that the density of the individual parameters depends on
OF_POPULATION = ("beta", "omega", "omega2", "share", "shift")
#: share of the variance between classes below which that within them vanishes
ALIKE = 1e-4


def count(individual: Any) -> int:
    """How many classes (name, distribution) pairs have: one where none has any."""
    return max((one.classes or 1 for _, one in individual), default=1)


def places(model: MixedEffects) -> list[int]:
    """Positions, among the random parameters, of those that differ between classes."""
    return [at for at, j in enumerate(model.random) if model.individual[j][1].classes]


def without(individual: Mapping[str, Individual], left: int = 1) -> dict[str, Individual]:
    """Individual parameters with fewer classes, or none."""
    fewer = None if left == 1 else left
    return {name: dataclasses.replace(one, classes=fewer) if one.classes else one for name, one in individual.items()}


def check(individual: Mapping[str, Individual], priors: Any, polish: bool | None) -> None:
    """What classes do not go with, or not yet.

    Raises:
        ValueError: parameters that disagree on their number, a shape, an occasion, a prior, a name that a share would have, or a
            fit that is not to be polished.
    """
    asked = {name: one.classes for name, one in individual.items() if one.classes}
    if not asked:
        return
    if len(set(asked.values())) > 1:
        told = ", ".join(f"{name} has {number}" for name, number in asked.items())
        raise ValueError(f"one variable says which class a subject belongs to, and parameters differ on how many: {told}")
    for name, one in individual.items():
        for there, what in ((one.shape is not None, "shape="), (one.occasion, "occasion=True")):
            if there:
                raise ValueError(f"individual[{name!r}] has {what}, which does not go with classes= of {', '.join(asked)}")
        if name in [f"share_{k}" for k in range(2, max(asked.values()) + 1)]:
            raise ValueError(f"the share of a class is called {name}, and individual has a parameter of that name: rename it")
    if priors:
        raise ValueError(f"priors= does not go with classes= of {', '.join(asked)}: a mixture is fitted by its likelihood alone")
    if polish is False:
        raise ValueError("classes= are found by the polish of a fit, which does not go with polish=False; leave one of them out")


def check_occasions(model: MixedEffects) -> None:
    """Raises: ValueError: covariates that change between occasions."""
    if model.classes > 1 and model.changing:
        told = ", ".join(model.names[j] for j in model.changing)
        raise ValueError(f"covariates of {told} change between occasions, which does not go with classes=")


def log_shares(params: dict) -> Float[Array, " K"]:
    """log p_k."""
    return jax.nn.log_softmax(jnp.concatenate([jnp.zeros(1, params["share"].dtype), params["share"]]))


def shifts(model: MixedEffects, params: dict) -> Float[Array, "K d"]:
    """delta_k of all random parameters."""
    own, d = places(model), len(model.random)
    out = jnp.zeros((model.classes, d), params["shift"].dtype)
    return out.at[1:, np.asarray(own)].set(jnp.reshape(params["shift"], (model.classes - 1, len(own))))


def means(model: MixedEffects, params: dict, design: Float[Array, " P"]) -> Float[Array, "K d"]:
    """Of each class."""
    return model.mean(params, design) + shifts(model, params)


def log_joint_of_classes(model: MixedEffects, params: dict, effect: Float[Array, " d"]) -> Float[Array, " K"]:
    r"""$\log p_k + \log N(\phi-C_i\beta; \delta_k, \Omega)$."""
    return log_shares(params) + jax.vmap(lambda shift: model.log_normal(params, effect - shift))(shifts(model, params))


def log_density(model: MixedEffects, params: dict, effect: Float[Array, " d"]) -> Array:
    """Of an individual parameter less C_i beta."""
    return jax.nn.logsumexp(log_joint_of_classes(model, params, effect))


def posterior(model: MixedEffects, params: dict, z: Float[Array, " d"], design: Float[Array, " P"]) -> Float[Array, " K"]:
    """Probabilities of the classes given the individual parameters."""
    return jax.nn.softmax(log_joint_of_classes(model, params, z - model.mean(params, design)))


def shift_of_one(model: MixedEffects, key: Any, params: dict) -> Float[Array, " d"]:
    """delta_k of a class that is drawn."""
    return shifts(model, params)[jax.random.categorical(jax.random.fold_in(key, 1), log_shares(params))]


def moments(model: MixedEffects, params: dict, design: Float[Array, " P"]) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Mean of the whole population, and a Cholesky factor of its covariance, within and between classes."""
    p, own = jnp.exp(log_shares(params)), shifts(model, params)
    middle = p @ own
    gaps = own - middle
    between = jnp.einsum("k,ki,kj->ij", p, gaps, gaps)
    return model.mean(params, design) + middle, jnp.linalg.cholesky(model.covariance(params) + between)


def of_draws(model: MixedEffects, params: dict, z: Any, w: Float[Array, "m b"], batch: Any) -> tuple[Array, Array]:
    """As `margaux.problem.AbstractDifferentiated` has it, (m, b, p) and (p, p): the density of individual parameters by
    differentiation, the others' as without classes."""
    one = dataclasses.replace(model, individual=tuple(without(dict(model.individual)).items()))
    rest = {name: leaf for name, leaf in params.items() if name not in ("share", "shift")}
    each, hessian = derivatives.of_draws(one, rest, z, w, batch)
    x, back = ravel_pytree({name: leaf for name, leaf in params.items() if name in OF_POPULATION})

    def log_densities(x: Array) -> Float[Array, "m b"]:
        moved = params | back(x)
        units = jax.vmap(lambda z, y: model.log_effects(moved, z, y))
        return jax.vmap(lambda z: units(z, batch))(z)

    slopes = jax.jacfwd(log_densities)(x)
    bends = jax.hessian(lambda x: jnp.sum(w * log_densities(x)))(x)
    at, of_rest = _numbered(params), _numbered(rest)
    own = np.concatenate([np.ravel(at[name]) for name in sorted(set(params) & set(OF_POPULATION))])
    left = sorted(set(rest) - set(OF_POPULATION))
    size = sum(np.size(numbers) for numbers in at.values())
    out, bent = jnp.zeros((*w.shape, size), w.dtype).at[..., own].set(slopes), jnp.zeros((size, size), w.dtype)
    bent = bent.at[np.ix_(own, own)].set(bends)
    if left:
        here, there = (np.concatenate([numbers[name] for name in left]) for numbers in (at, of_rest))
        out = out.at[..., here].set(each[..., there])
        bent = bent.at[np.ix_(here, here)].set(hessian[np.ix_(there, there)])
    return out, bent


def _numbered(params: dict) -> dict[str, np.ndarray]:
    """Places of the entries of each parameter among flat ones."""
    out, first = {}, 0
    for name in sorted(params):
        size = sum(np.size(leaf) for leaf in jax.tree.leaves(params[name]))
        out[name], first = np.arange(first, first + size), first + size
    return out


def likeliest_shifts(model: MixedEffects, fit: Fit, z: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """delta of the class that is most likely where individual parameters are."""
    with precision(np.dtype(float)):
        params, design, z = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), (fit.params, fit.data["design"], z))
        likely = jax.vmap(lambda z, design: posterior(model, params, z, design))(z, design)
        return np.asarray(shifts(model, params))[np.argmax(likely, axis=1)]


def vanished(model: MixedEffects, params: dict) -> list[str]:
    """Names of the variances within classes that are next to none beside those between them."""
    if model.classes == 1:
        return []
    p, own = scipy.special.softmax(np.r_[0.0, params["share"]]), np.zeros((model.classes, len(model.random)))
    own[1:, places(model)] = np.reshape(params["shift"], (model.classes - 1, -1))
    within, between = np.diagonal(model.covariances(params)), p @ (own - p @ own) ** 2
    return [f"omega2_{model.names_of_random[place]}" for place in places(model) if within[place] < ALIKE * between[place]]


def carried_over(source: MixedEffects, target: MixedEffects, params: dict) -> dict[str, Any]:
    """The parameters of one model's classes as those of another's, which has as many of the same parameters."""
    if target.classes == 1:
        return {}
    return {name: np.asarray(params[name]) for name in ("share", "shift")}


def share_names(model: MixedEffects) -> list[str]:
    """Of the shares, as `params_` has them."""
    return [f"share_{k}" for k in range(2, model.classes + 1)]


def shift_names(model: MixedEffects, name: str) -> list[str]:
    """Of the shifts of a parameter, as `params_` has them; none where it is the same in all classes."""
    return [f"beta_{name}[class {k}]" for k in range(2, model.classes + 1)] if name in _classed(model) else []


def _classed(model: MixedEffects) -> list[str]:
    return [model.names_of_random[place] for place in places(model)] if model.classes > 1 else []


def names(model: MixedEffects) -> list[str]:
    """Of all parameters of classes, as `params_` has them."""
    return share_names(model) + [one for name in _classed(model) for one in shift_names(model, name)]


def engine_names(model: MixedEffects) -> dict[str, str]:
    """What the scalar parameters of the engine, such as `shift[1]`, are called in `names`."""
    own = _classed(model)
    out = {f"share[{at}]": name for at, name in enumerate(share_names(model))}
    for j, name in enumerate(own):
        out |= {f"shift[{k * len(own) + j}]": one for k, one in enumerate(shift_names(model, name))}
    return out


def natural_shifts(model: MixedEffects, params: dict, name: str) -> list[Array]:
    """Values in the order of `shift_names`."""
    own = _classed(model)
    return [params["shift"][k * len(own) + own.index(name)] for k in range(model.classes - 1)] if name in own else []


def natural_shares(model: MixedEffects, params: dict) -> list[Array]:
    """Values in the order of `share_names`."""
    return list(jnp.exp(log_shares(params))[1:]) if model.classes > 1 else []


def ordered(model: MixedEffects, params: dict) -> dict[str, Any]:
    """The same population with its classes in the order of the first parameter that has them, the lowest first."""
    own, intercepts = places(model), np.asarray([model.coefficients(j)[0] for j in model.random])
    logits = np.r_[0.0, np.asarray(params["share"], float)]
    each = np.concatenate([np.zeros((1, len(own))), np.reshape(params["shift"], (-1, len(own)))])
    order = np.argsort(each[:, 0], kind="stable")
    beta = np.array(params["beta"], float)
    beta[intercepts[own]] += each[order[0]]
    moved = each[order] - each[order[0]]
    return params | {"beta": beta, "share": logits[order[1:]] - logits[order[0]], "shift": np.ravel(moved[1:])}


def alone(dropped: tuple[str, ...]) -> bool:
    """Whether what was estimated as zero are shares of classes, and nothing else."""
    return any(name.startswith("share_") for name in dropped) and not any(name.startswith("omega2_") for name in dropped)


def lost(asked: Any, left: Mapping[str, Individual]) -> list[str]:
    """Names of the shares and shifts of the classes of (name, distribution) pairs that the data did not ask for."""
    most, kept = count(asked), count(left.items())
    out = [f"share_{k}" for k in range(kept + 1, most + 1)]
    for name, one in asked:
        first = (left[name].classes or 1) + 1
        out += [f"beta_{name}[class {k}]" for k in range(first, most + 1)] if one.classes else []
    return out


def refuse(individual: Mapping[str, Individual], what: str) -> None:
    """Raises: ValueError: there are classes."""
    if count(individual.items()) > 1:
        raise ValueError(
            f"{what} is of one population, and this model has classes; fit the candidates one by one, and compare bic_"
        )


def refuse_profile(model: MixedEffects, name: str) -> None:
    """Raises: ValueError: one of several shares, which are no coordinates of the engine's."""
    if model.classes > 2 and name in share_names(model):
        raise ValueError(f"{name} is one of {model.classes} shares that sum to one, which are not held one by one: no profile")


def refuse_test(wanted: list[str], model: MixedEffects) -> None:
    """Raises: ValueError: a test of whether there is a class, which no Wald test is."""
    for name in wanted:
        if name in names(model):
            raise ValueError(
                f"{name} is of a class: without a share a class has no shift, and without a shift no share, so that no Wald test "
                "holds; compare bic_ with that of fewer classes"
            )


def refuse_comparison(reduced: Mapping[str, Individual], full: Mapping[str, Individual]) -> None:
    """Raises: ValueError: models with other numbers of classes."""
    few, many = count(reduced.items()), count(full.items())
    if few != many:
        raise ValueError(
            f"models of {few} and {many} classes are no test by chi-squared, because the shift of a class without a share is not "
            "defined; compare bic_, or fit both to data simulated from the smaller model (a parametric bootstrap)"
        )
    for name, one in reduced.items():
        if one.classes and not (name in full and full[name].classes):
            raise ValueError(f"the models are not nested: {name} has classes in the reduced one alone")
