"""What the estimators of latent-variable families give to ArviZ, with the names of their units and variables."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..estimators.fitted import check_fitted
from ..naming import precision
from .arviz import Parts
from .arviz_fit import OVER, _pointwise, _simulated, about, latents, over_draws, pointwise_of, shuffled, simulated_of, systematic

#: numbers of a block of units' draws
BLOCK = 1 << 24


def of_mixed_effects(fitted: Any, n_draws: int, seed: int) -> Parts:
    """Individual parameters a subject, and the observations in the order of the data."""
    from ..nlme.prediction import _restored

    check_fitted(fitted)
    fit, model, data = fitted.result_, fitted.model_, fitted.data_
    if not model.random:
        raise ValueError("no random effect is left in this fit: every variance was estimated as zero, and there is no latent")
    z, stats, drawn = latents(fit, n_draws, seed)
    with precision(np.dtype(float)):
        params, design = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), (fit.params, fit.data["design"]))
        psi = jax.vmap(lambda z: jax.vmap(lambda z, d: model.psi(params, z, d))(z, design))
        flat = {name: np.asarray(value) for name, value in psi(jnp.asarray(z).reshape(-1, *z.shape[2:])).items()}
    random = [model.names[j] for j in model.random]
    posterior = {name: flat[name].reshape(z.shape[:3]) for name in random}
    frame = data.frame.sort_index(kind="stable")
    outcome = data.roles["time"] if model.outcome.survival and "time" in data.roles else data.roles["y"]
    kept = [data.roles[role] for role in ("time", "dose") if role in data.roles]
    observed = {name: frame[name].to_numpy() for name in {data.roles["y"], outcome}}
    restored = lambda values: _restored(data, values)  # noqa: E731
    labels = frame[data.roles["id"]].to_numpy()
    return Parts(
        posterior, drawn, dims={name: ["subject"] for name in posterior}
        | {name: ["observation"] for name in [*observed, *kept, data.roles["y"]]},
        coords={"subject": data.labels}, beside={"subject_of": ("observation", labels)}, sample_stats=stats, observed=observed,
        constant={name: frame[name].to_numpy(float) for name in kept if name not in observed}, size=len(data.codes),
        log_likelihood=lambda: {data.roles["y"]: restored(pointwise_of(fit, z))},
        predictive=lambda: {outcome: restored(simulated_of(fit, z, seed)["y"])},
        attrs=_about(fitted),
    )  # fmt: skip


def of_counts(fitted: Any, n_draws: int, seed: int) -> Parts:
    """Scores of the units, by importance sampling from their variational posteriors."""
    from ..pln.frames import components
    from ..pln.importance import BLOCK as RATES
    from ..pln.importance import blocks, drawn
    from ..pln.model import PLN, units
    from ..pln.proposals import PROPOSALS, Plan, nets

    check_fitted(fitted)
    table, design = fitted.table_, fitted._design(fitted.table_)
    p, q = fitted.loadings_.shape
    plan = Plan(1 << int(np.ceil(np.log2(OVER * max(n_draws, 250)))), 1, True, seed)
    proposal, parts, ess = PROPOSALS["vem mixture"], [], []
    with precision(np.dtype(float)):
        loadings, posterior = fitted._double()
        net = nets(plan, proposal, q)[0]
        resampled = jax.jit(jax.vmap(lambda w, v: v[systematic(w, n_draws)]))
        for block in blocks(design, loadings, posterior, proposal, min(RATES // p, BLOCK // (plan.draws * (q + 2)))):
            found = drawn(loadings, block, proposal, plan, net)
            weight = jax.nn.softmax(found.log_ratio, axis=1)
            ess.append(np.asarray(1 / jnp.sum(weight**2, axis=1)))
            parts.append(np.asarray(resampled(weight, found.v)))
        data = units(design, fitted._posterior, float)
    scores = np.moveaxis(shuffled(np.concatenate(parts), seed), 1, 0)[None]
    params = {"B": fitted._loadings.B, "C": fitted._loadings.C}
    counts = np.asarray(data["counts"])
    return Parts(
        {"scores": scores},
        f"importance sampling from the variational posteriors, {n_draws} of {plan.draws} draws a unit resampled by their "
        "weights, one chain",
        dims={"scores": ["unit", "component"], "counts": ["unit", "feature"], "x": ["unit", "covariate"]},
        coords={"unit": np.asarray(table.units), "feature": np.asarray(table.features), "component": components(q),
                "covariate": table.covariate_names},
        sample_stats={"importance_ess": (["unit"], np.concatenate(ess))}, observed={"counts": counts.astype(int)},
        constant={"x": np.asarray(table.x, float), "offset": np.asarray(table.offset, float)}, size=counts.size,
        log_likelihood=lambda: {"counts": over_draws(_pointwise, PLN(), params, scores, data)},
        predictive=lambda: {"counts": over_draws(_simulated, PLN(), params, scores, data, seed)["counts"]},
        attrs={"algorithm": f"PLNPCA, method {fitted.method}", "seed": fitted.random_state, "message": fitted.ascent_},
    )  # fmt: skip


def of_holes(fitted: Any, n_draws: int, seed: int) -> Parts:
    """Missing entries of the covariates, drawn exactly and independently.

    The log-likelihood is that of the rows with holes: the outcome of the others depends on no latent.
    """
    check_fitted(fitted)
    table, params = fitted.table_, fitted.params_
    row, column = np.nonzero(np.isnan(table.x))
    if not len(row):
        raise ValueError("the covariates have no missing entry: the model has no latent to draw")
    filled, open_rows = fitted.impute(n_draws, seed), np.unique(row)
    family, classes = fitted._family(), table.classes
    slopes = np.atleast_2d(params["coef"])
    eta = filled @ slopes.T + np.ravel(params["intercept"])
    eta = np.moveaxis(eta, -1, 0) if np.ndim(params["coef"]) == 2 else eta[..., 0] + table.offset
    scale = () if np.ndim(params["coef"]) == 2 else (params.get("scale", 1.0),)

    def density() -> dict[str, np.ndarray]:
        with precision(np.dtype(float)):
            y = jnp.broadcast_to(jnp.asarray(table.y), filled.shape[:2])
            return {"y": np.asarray(family.log_density(y, jnp.asarray(eta), *scale))[None][:, :, open_rows]}

    def predictive() -> dict[str, np.ndarray]:
        with precision(np.dtype(float)):
            return {"y": np.asarray(family.simulate(jax.random.key(seed), jnp.asarray(eta), *scale))[None]}

    names = [f"{table.names[k]}[{i}]" for i, k in zip(row, column, strict=True)]
    return Parts(
        {"x_missing": filled[None][:, :, row, column]}, "independent draws of the exact posterior, one chain",
        dims={"x_missing": ["entry"], "y": ["row"], "X": ["row", "column"]},
        coords={"entry": names, "column": np.asarray(table.names, str)},
        beside={"entry_row": ("entry", row), "entry_column": ("entry", np.asarray(table.names, str)[column])},
        observed={"y": np.asarray(table.y)}, constant={"X": np.asarray(table.x, float)}, size=len(open_rows),
        log_likelihood=density, predictive=predictive, varying={"row": open_rows},
        attrs=_about(fitted) | ({} if classes is None else {"classes": [str(one) for one in classes]}),
    )  # fmt: skip


def of_coefficients(fitted: Any, n_draws: int, seed: int) -> Parts:
    """Coefficients of an empirical-Bayes regression."""
    check_fitted(fitted)
    own = getattr(fitted, "feature_names_in_", [f"x{j}" for j in range(fitted.n_features_in_)])
    names = (["intercept"] if fitted.fit_intercept else []) + [str(name) for name in own]
    parts = _of_rows(fitted, n_draws, seed, "x")
    return _renamed(parts, "coefficients", ["coefficient"], {"coefficient": names}, {"x": ["row", "coefficient"]})


def of_groups(fitted: Any, n_draws: int, seed: int) -> Parts:
    r"""Random effects $\sigma x_j$ of the groups."""
    check_fitted(fitted)
    parts = _of_rows(fitted, n_draws, seed, "X")
    parts.posterior = {name: fitted.sigma_ * value for name, value in parts.posterior.items()}
    coords = {"group": np.asarray(fitted.groups_), "column": fitted._names}
    parts.constant["group_code"] = parts.constant.pop("group")
    return _renamed(parts, "random_effects", ["group"], coords, {"X": ["row", "column"], "group_code": ["row"]})


def of_signal(fitted: Any, n_draws: int, seed: int) -> Parts:
    """The signal x of an inverse problem."""
    check_fitted(fitted)
    parts = _of_rows(fitted, n_draws, seed, None)
    (name,) = parts.posterior
    return _renamed(parts, "x", [f"x_dim_{k}" for k in range(parts.posterior[name].ndim - 2)], {}, {})


def _of_rows(fitted: Any, n_draws: int, seed: int, large: str | None) -> Parts:
    """Of a fit to one unit whose observations are rows."""
    from .arviz_fit import of_fit

    parts = of_fit(fitted.result_, n_draws, seed)
    parts.attrs = _about(fitted)
    if hasattr(fitted, "classes_"):
        parts.attrs["classes"] = [str(one) for one in fitted.classes_]
    (outcome,) = parts.observed.values()
    parts.dims["y"] = ["row"] if outcome.ndim == 1 else [f"y_dim_{k}" for k in range(outcome.ndim)]
    return parts


def _renamed(parts: Parts, name: str, dims: list[str], coords: dict[str, Any], others: dict[str, list[str]]) -> Parts:
    (own,) = parts.posterior
    parts.dims.pop(own)
    parts.posterior = {name: parts.posterior[own]}
    parts.dims |= others | {name: dims}
    parts.coords |= coords
    return parts


def _about(fitted: Any) -> dict[str, Any]:
    estimate = {name: np.asarray(value, float).tolist() for name, value in fitted.params_.items() if np.size(value) <= 512}
    return about(fitted.result_) | {"estimate": estimate, "estimator": type(fitted).__name__, "message": fitted.message_}
