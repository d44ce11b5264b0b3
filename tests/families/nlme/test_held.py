"""Parameters that are held: exact maxima over the others, degrees of freedom, errors before anything is fitted."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

import margaux as mx
from margaux.answers.posterior import _block
from margaux.answers.proposing import _proposals
from margaux.engine.loop import full_chunk
from margaux.families.nlme import Combined, ConstantError, LogNormal, Normal, ResidualError, lr_test
from margaux.families.nlme.answers import natural_jacobian
from margaux.families.nlme.start import _at_point
from prior_modes import COLUMNS, line, lines

NAMES = ["m", "beta_m[x]", "s", "omega2_m", "omega2_s", "a"]


def _exact(table: pd.DataFrame, held: dict[str, float], b: bool = False) -> tuple[dict[str, float], float, dict[str, float]]:
    """The maximum of the Gaussian likelihood over what is not held, the log-likelihood there, and standard errors."""
    parts = [(own["t"].to_numpy(), own["x"].iloc[0], own["y"].to_numpy()) for _, own in table.groupby("id")]
    free = [name for name in NAMES if name not in held]
    positive = np.asarray([name.startswith("omega2") or name == "a" for name in free])

    def loglik(values: np.ndarray) -> float:
        at = held | dict(zip(free, values, strict=True))
        total = 0.0
        for t, x, y in parts:
            covariance: Any = at["omega2_m"] + at["omega2_s"] * np.outer(t, t) + at["a"] ** 2 * np.eye(len(t))
            total += stats.multivariate_normal.logpdf(y, at["m"] + at["beta_m[x]"] * x + at["s"] * t, covariance)
        return total

    def natural(u: np.ndarray) -> np.ndarray:
        return np.where(positive, np.exp(np.minimum(u, 20)), u)

    start = np.where(positive, -1.0, 0.0)
    found = optimize.minimize(lambda u: -loglik(natural(u)), start, method="BFGS", options={"gtol": 1e-5})
    best, k = natural(found.x), len(free)
    step = 1e-4 * (1 + np.abs(best))
    hessian = np.empty((k, k))
    for i in range(k):
        for j in range(k):
            e, f = step * (np.arange(k) == i), step * (np.arange(k) == j)
            four = [loglik(best + p * e + q * f) * p * q for p in (1, -1) for q in (1, -1)]
            hessian[i, j] = sum(four) / (4 * step[i] * step[j])
    errors = np.sqrt(np.diagonal(np.linalg.inv(-hessian)))
    return dict(zip(free, best, strict=True)), -found.fun, dict(zip(free, errors, strict=True))


def _fit(table: pd.DataFrame, m: Any = None, s: Any = None, **settings: Any) -> mx.NLME:
    individual = {"m": Normal(1.0, covariates="x") if m is None else m, "s": Normal(0.0) if s is None else s}
    return mx.NLME(structural=line, individual=individual, n_starts=1, verbose=False, **settings).fit(table, **COLUMNS)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return lines()


@pytest.mark.parametrize(("held", "asked"), [
    ({"m": 1.7}, {"m": Normal(1.7, covariates="x", fixed=True)}),
    ({"beta_m[x]": 0.3, "omega2_s": 0.2},
     {"m": Normal(1.0, covariates="x", coefficients={"x": 0.3}), "s": Normal(0.0, variance=0.2)}),
    ({"a": 0.6, "s": -0.2, "omega2_m": 0.3},
     {"m": Normal(1.0, covariates="x", variance=0.3), "s": Normal(-0.2, fixed=True), "error": ConstantError(fixed=0.6)}),
])  # fmt: skip
def test_the_maximum_over_what_is_not_held(table, held, asked):
    fitted = _fit(table, **asked)
    exact, loglik, errors = _exact(table, held)
    assert list(fitted.params_) == NAMES
    assert fitted.held_ == pytest.approx(held)
    assert fitted.n_params_ == fitted.result_.n_params == len(NAMES) - len(held)
    assert float(fitted.loglik_) == pytest.approx(loglik, abs=0.01)
    for name, value in exact.items():
        assert abs(fitted.params_[name] - value) < 0.03 * errors[name]
        assert fitted.stderr_[name] == pytest.approx(errors[name], rel=0.02)
    summary = fitted.summary()
    assert summary.loc[list(held), ["se", "p", "ci_low"]].isna().all(axis=None)
    assert all(f"{name} = {value:g}" in summary.attrs["message"] for name, value in held.items())
    assert fitted.aic_ == pytest.approx(-2 * float(fitted.loglik_) + 2 * len(exact))
    assert fitted.certificate_.level in ("pass", "careful")


@pytest.mark.slow
def test_parameters_without_random_effect_and_of_a_composite_error():
    """Held entries of groups that have no closed M-step: the others move as if the model had none of them."""
    rng = np.random.default_rng(2)
    rows = [(i, t, (5 * np.exp(0.3 * e - 0.4 * t)) * (1 + 0.1 * rng.normal()) + 0.2 * rng.normal())
            for i, e in enumerate(rng.normal(size=30)) for t in (0.5, 1.0, 2.0, 3.0, 5.0)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["id", "t", "y"])

    def fitted(curve, error, fixed_effects="newton", **individual):
        settings: dict[str, Any] = {"error": error, "fixed_effects": fixed_effects, "n_starts": 1, "verbose": False}
        return mx.NLME(structural=curve, individual={"A": LogNormal(4.0), **individual}, **settings).fit(table, **COLUMNS)

    def decay(psi, row):
        return psi["A"] * jnp.exp(-psi["k"] * row["t"]) + 0.1 * psi["c"]

    held = fitted(decay, Combined(fixed={"b": 0.1}), k=LogNormal(0.3, random=False), c=LogNormal(0.5, random=False, fixed=True))
    assert held.held_ == pytest.approx({"c": 0.5, "b": 0.1})

    class OneTenth(ResidualError):
        names, closed = ("a",), False

        def sd(self, error, f):
            return jnp.sqrt(error[0] ** 2 + (0.1 * f) ** 2)

    written_in = fitted(lambda psi, row: decay(psi | {"c": 0.5}, row), OneTenth(), k=LogNormal(0.3, random=False))
    for name, value in written_in.params_.items():
        assert abs(held.params_[name] - value) < 0.03 * written_in.stderr_[name]
        assert held.stderr_[name] == pytest.approx(written_in.stderr_[name], rel=0.02)
    assert float(held.loglik_) == pytest.approx(float(written_in.loglik_), abs=0.01)
    assert held.bicc_ == pytest.approx(written_in.bicc_, abs=0.02)
    moved = fitted(
        decay,
        Combined(fixed={"b": 0.1}),
        k=LogNormal(0.3, random=False),
        c=LogNormal(0.5, random=False, fixed=True),
        fixed_effects="exponentialised",
    )
    assert moved.held_ == pytest.approx(held.held_)
    assert float(moved.loglik_) == pytest.approx(float(held.loglik_), abs=0.01)


@pytest.mark.slow
def test_correlated_effects_with_a_mean_that_is_held(table):
    held = _fit(table, s=Normal(-0.2, fixed=True), omega="full")
    free = _fit(table, omega="full")
    test = lr_test(held, free)
    assert test.df == 1 and test.note == ""
    wald = ((free.params_["s"] + 0.2) / free.stderr_["s"]) ** 2
    assert test.statistic == pytest.approx(wald, rel=0.3)
    assert held.params_["s"] == -0.2
    profile = free.profile("s", [-0.3, -0.2, -0.1])
    assert float(held.loglik_) == pytest.approx(profile.loc[-0.2, "loglik"], abs=0.02)
    assert held.params_["m"] == pytest.approx(profile.loc[-0.2, "m"], abs=0.05 * held.stderr_["m"])


@pytest.mark.slow
def test_a_held_model_is_the_reduced_one_of_a_test(table):
    free, held = _fit(table), _fit(table, m=Normal(1.0, covariates="x", coefficients={"x": 0.5}, variance=0.4))
    test = free.lr_test(held)
    assert test.df == 2 and test.note == ""
    with pytest.raises(
        ValueError, match=r"not nested: beta_m\[x\] is held at 0.5 in the full one and is estimated in the reduced"
    ):
        lr_test(free, held)
    without = _fit(table, m=Normal(1.0))
    with pytest.raises(ValueError, match=r"beta_m\[x\] is held at 0.5 in the full one and is 0 in the reduced"):
        lr_test(without, held)
    for asked in (lambda: held.profile("beta_m[x]", [0.1, 0.2, 0.3]), lambda: held.wald_test(["m", "beta_m[x]"], 0.0),
                  lambda: held.slice("omega2_m", [0.1, 0.2, 0.3])):  # fmt: skip
        with pytest.raises(ValueError, match=r"is held at 0\.[45] and was not estimated"):
            asked()


def test_another_value_compiles_nothing(table):
    def answered(by):
        one = Normal(2.0 + by, covariates="x", fixed=True, variance=0.5 + by)
        model = _fit(table, m=one, error=ConstantError(fixed=0.4 + by))
        return model.summary(), model.loglik_

    every = _proposals, _block, full_chunk, natural_jacobian, _at_point
    answered(0.0)
    before = [program.programs() for program in every]
    answered(0.1)
    assert [program.programs() for program in every] == before and min(before) > 0


@pytest.mark.parametrize(("make", "message"), [
    (lambda: LogNormal(fixed=True), r"there is none: write LogNormal\(1.5, fixed=True\)"),
    (lambda: LogNormal(1.0, variance=0.0), "variance must be a positive number, got 0.0; random=False leaves the effect out"),
    (lambda: LogNormal(1.0, variance=float("nan")), "variance must be a positive number, got nan"),
    (lambda: LogNormal(1.0, random=False, variance=0.1), "the variance of an effect that random=False leaves out"),
    (lambda: LogNormal(1.0, occasion_variance=0.1), "an effect that is there with occasion=True alone"),
    (lambda: LogNormal(1.0, coefficients={"x": 1.0}), "this LogNormal has no covariates="),
    (lambda: LogNormal(1.0, covariates="x", coefficients={"x": float("inf")}), "coefficient of 'x' is held at inf"),
    (lambda: ConstantError(fixed=-1.0), "a of ConstantError must be a positive number to be held, got -1.0"),
    (lambda: Combined(fixed=0.1), r"has the parameters a, b: hold one by its name, as fixed=\{'a': 0.1\}"),
    (lambda: Combined(fixed={"c": 0.1}), "Combined has no parameter 'c' to hold; it has a, b"),
])  # fmt: skip
def test_values_that_cannot_be_held_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_models_that_cannot_be_held_so_are_refused(table):
    with pytest.raises(ValueError, match=r"holds the coefficient of 'z', but its covariates 'x' have those of 'x'"):
        _fit(table, m=Normal(1.0, covariates="x", coefficients={"z": 1.0}))
    with pytest.raises(ValueError, match=r"holds the coefficient of 'log\(x \+ 9\)' twice"):
        _fit(table, m=Normal(1.0, covariates="log(x+9)", coefficients={"log(x + 9)": 1.0, "log(x+9)": 2.0}))
    with pytest.raises(ValueError, match=r"individual\['m'\] holds its variance, but omega correlates its effect"):
        _fit(table, m=Normal(1.0, variance=0.3), omega="full")
    with pytest.raises(ValueError, match="every parameter is held"):
        _fit(
            table,
            m=Normal(1.0, fixed=True, variance=0.3),
            s=Normal(0.0, fixed=True, random=False),
            error=ConstantError(fixed=1.0),
        )
