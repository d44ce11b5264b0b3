"""Which class each subject belongs to, and what else is told of classes once a model with some is fitted."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from ...answers.certificate import Check
from ...answers.posterior import each_unit
from ...answers.rules import best_rule
from ...esteps import ImportanceSampling, ModeMixture
from ...numerics.precision import precision
from ...showing.parts import check_fitted
from . import answers, classes

if TYPE_CHECKING:
    from ...answers.fit import Fit
    from ...answers.rules import Rule
    from .data import LongData
    from .estimator import NLME
    from .model import MixedEffects

#: draws of each subject by which memberships are averaged where there is no quadrature, and of which draws are taken
DRAWS, POOL = 8000, 2000
#: by how much modes that splits reached may differ in log-likelihood before it is told
APART = 0.1
#: a probability at which the class of a subject is about known
SURE = 0.9


class Membership:
    """Of `NLME`: the classes of subjects."""

    @functools.cached_property
    def membership_(self) -> pd.DataFrame:
        r"""One row a subject: the posterior probability of each class, "class 1", "class 2", ..., and the most likely, "class".

        $P(k\mid y_i) = \int P(k\mid\phi)\,p(\phi\mid y_i)\,d\phi$ at the estimate, by the quadrature or the draws of the
        likelihood. Where the data did not ask for a class, nobody belongs to it.

        Raises:
            ValueError: no parameter has classes.

        Reference: McLachlan and Peel, Finite Mixture Models (2000), section 1.15.

        >>> import numpy as np
        >>> import pandas as pd
        >>> from margaux import NLME
        >>> from margaux.nlme import LogNormal, bolus1cpt
        >>> rng = np.random.default_rng(0)
        >>> clearance = np.where(np.arange(30) < 12, 6.0, 2.0) * np.exp(0.2 * rng.normal(size=30))
        >>> table = pd.DataFrame({"id": np.repeat(np.arange(30), 2), "time": np.tile([1.0, 5.0], 30), "dose": 100.0})
        >>> table["y"] = 5 * np.exp(-clearance[table["id"]] / 20 * table["time"]) + 0.2 * rng.normal(size=60)
        >>> model = NLME(structural=bolus1cpt, individual={"V": LogNormal(20, random=False), "CL": LogNormal(3, classes=2)},
        ...              n_starts=1, n_iter=60, n_burn=40, verbose=False)
        >>> model.fit(table, id="id", time="time", y="y", dose="dose").membership_["class"].value_counts().to_dict()
        {1: 18, 2: 12}
        """
        check_fitted(self)
        return table(self)  # type: ignore[arg-type]


def table(fitted: NLME) -> pd.DataFrame:
    """See `Membership.membership_`."""
    wanted = classes.count((fitted.individual or {}).items())
    if wanted == 1:
        raise ValueError("no parameter has classes: ask for them as LogNormal(4.0, classes=2)")
    labels, model = fitted.data_.labels, fitted.model_
    p = np.zeros((len(labels), wanted))
    p[:, 0] = 1.0
    if model.classes > 1:
        p[:, : model.classes] = averaged(fitted.result_, answers.rule_of(fitted))
    out = pd.DataFrame(p, columns=[f"class {k}" for k in range(1, wanted + 1)])
    out["class"] = p.argmax(axis=1) + 1
    return out.set_axis(pd.Index(labels, name=fitted.data_.roles["id"]))


def averaged(fit: Fit, rule: Rule) -> np.ndarray:
    """Posterior probabilities of the classes, (n, K)."""
    if rule.deterministic:
        return np.asarray(each_unit(fit, _of_classes, rule.estep, width=rule.width, rows=rule.rows)[0], float)
    d = np.shape(rule.rows["mean"])[-1]
    estep = ImportanceSampling(DRAWS, ModeMixture(), quasi=True)
    return np.asarray(each_unit(fit, _of_classes, estep, width=DRAWS * (d + 3), rows=rule.rows)[0], float)


def _of_classes(model: Any, params: Any, z: Any, w: Any, batch: Any) -> Any:
    return w[:, 0] @ jax.vmap(lambda z: classes.posterior(model, params, z, batch["design"][0]))(z[:, 0])


def draws_of(fit: Fit, count: int, key: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draws of the individual parameters of each subject given its data (n, m, d), and their weights (n, m), of sum one."""
    estep = ImportanceSampling(count, ModeMixture(), quasi=True)
    rule = best_rule(fit, n_draws=count)
    rows = rule.rows
    found = each_unit(fit, _as_they_are, estep, key=key, width=count * (np.shape(rows["mean"])[-1] + 3), rows=rows)[0]
    return np.asarray(found["z"], float), np.asarray(found["w"], float)


def _as_they_are(model: Any, params: Any, z: Any, w: Any, batch: Any) -> Any:
    return {"z": z[:, 0], "w": w[:, 0]}


def draws(fitted: NLME, n_draws: int, key: int) -> np.ndarray:
    """Draws of phi given the data, (n_draws, n, d), from weighted ones in proportion to their weights."""
    z, w = draws_of(fitted.result_, max(POOL, 4 * n_draws), key)
    rng = np.random.default_rng(key)
    at = np.stack([rng.choice(len(own), size=n_draws, p=own / own.sum()) for own in w])
    return np.swapaxes(np.take_along_axis(z, at[:, :, None], axis=1), 0, 1)


def levels(fitted: NLME) -> list[str]:
    """Of `NLME.predict`, those of classes."""
    return [f"class {k}" for k in range(1, fitted.model_.classes + 1)] if fitted.model_.classes > 1 else []


def predicted(fitted: NLME, model: MixedEffects, data: LongData, units: dict, level: str) -> np.ndarray:
    """Predictions (n, T) for the typical subject of a class; for the population, which is their mean by the shares; or for
    individuals, of whom new ones get that of the population."""
    with precision(fitted.result_.dtype):
        params = jax.tree.map(jnp.asarray, fitted.result_.params)
        curve = jax.vmap(lambda z, y: model.outcome.prediction(model.psi(params, z, y["design"]), y["rows"]))
        typical = jnp.swapaxes(jax.vmap(lambda y: classes.means(model, params, y["design"]))(units), 0, 1)
        if level in levels(fitted):
            return np.asarray(jax.jit(curve)(typical[levels(fitted).index(level)], units))
        each = jax.jit(jax.vmap(curve, (0, None)))(typical, units)
        out = np.einsum("k,knt->nt", np.exp(np.asarray(classes.log_shares(params))), np.asarray(each))
        if level == "population":
            return out
        # A known subject's effects, added to the mean its new covariates give.
        gaps = answers.modes(fitted) - model.means(fitted.result_.params, np.asarray(fitted.result_.data["design"]))
        at = {label: gaps[i] for i, label in enumerate(fitted.data_.labels)}
        own = np.stack([at.get(label, np.zeros(gaps.shape[1])) for label in data.labels])
        values = np.asarray(jax.jit(curve)(typical[0] + own, units))
        return np.where(np.asarray([label in at for label in data.labels])[:, None], values, out)


def told(fitted: NLME) -> str:
    """How many subjects are of which class, in words."""
    frame = fitted.membership_
    likely, sure = frame["class"].to_numpy(), frame.drop(columns="class").to_numpy().max(axis=1)
    counts = ", ".join(f"{int(np.sum(likely == k))} of class {k}" for k in range(1, frame.shape[1]))
    open_ = int(np.sum(sure < SURE))
    return f"Most likely classes: {counts}; of {open_} subjects none has a probability of {SURE:g} (model.membership_ has all)."


def note(fitted: NLME) -> str:
    """What is to be said of classes; "" if there is nothing."""
    wanted, left = classes.count((fitted.individual or {}).items()), fitted.model_.classes
    if wanted == left:
        hardly = left > 1 and fitted.starts_.attrs["gain"] < _needed(fitted)
        said = [f"the data hardly ask for {left} classes: BIC is lower {_fewer(left)}"] if hardly else []
        if alike := classes.vanished(fitted.model_, fitted.result_.params):
            said.append(f"{', '.join(alike)} vanishes: the subjects of a class are alike, and it has no standard error")
        return "; ".join(said)
    of = "one population" if left == 1 else f"{left} classes"
    return f"the data do not ask for {wanted} classes: no split of {of} has a higher likelihood, and {of} is what was fitted"


def _fewer(left: int) -> str:
    return "with one population" if left == 2 else f"with {left - 1} classes"


def _needed(fitted: NLME) -> float:
    """The rise of the log-likelihood that BIC asks for the last class."""
    return fitted.starts_.attrs["more"] * float(np.log(fitted.n_subjects_)) / 2


def check(fitted: NLME) -> Check | None:
    """Whether the classes are worth their parameters by BIC; None where there are none."""
    model = fitted.model_
    wanted = classes.count((fitted.individual or {}).items())
    if wanted == 1:
        return None
    nan = float("nan")
    if model.classes < wanted:
        return Check("classes", 0.0, nan, nan, "careful", f"{note(fitted).capitalize()}.")
    gain, more = fitted.starts_.attrs["gain"], fitted.starts_.attrs["more"]
    needed, fewer = _needed(fitted), _fewer(model.classes)
    told = f"the log-likelihood is {gain:.2f} higher than {fewer}, with {more} parameters more"
    ended = fitted.starts_.loc[fitted.starts_["origin"] == f"{model.classes} classes", "split"].to_numpy(float)
    if np.ptp(ended) > APART:
        told += f"; splits ended in modes up to {np.ptp(ended):.1f} apart, of which the highest was kept (see starts_)"
    if gain < needed:
        sentence = (
            f"The data hardly ask for {model.classes} classes: {told}; BIC is lower {fewer}, and standard errors of shares and "
            "shifts take the classes for granted."
        )
        return Check("classes", gain, nan, needed, "careful", sentence)
    return Check("classes", gain, nan, needed, "pass", f"The data ask for {model.classes} classes: {told}.")
