"""One mixed model for each of many responses: against quadrature and optimisation by SciPy, closed forms, and single fits."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, special, stats

import margaux as mx
from margaux.families.glmm import many as many_module
from margaux.families.glmm import together

ROWS, GROUPS = 5, 12
G = np.repeat(np.arange(GROUPS), ROWS)
X = np.random.default_rng(42).normal(size=GROUPS * ROWS)
DATA = pd.DataFrame({"x": X, "g": G})


def many(Y, family="poisson", formula="~ x + (1 | g)", data: Any = DATA, **given) -> Any:
    settings = {name: given.pop(name) for name in ("method", "dtype", "n_iter") if name in given}
    return mx.GLMM(formula, family=family, verbose=False, **settings).fit_many(Y, data, **given)


def single(y, family="poisson", formula="y ~ x + (1 | g)", data=DATA, **given) -> Any:
    return mx.GLMM(formula, family=family, verbose=False).fit(data.assign(y=y), **given)


def counted(R, seed=0, size=None, spread=(0.3, 0.9)):
    """Counts (rows, R); with `size`, negative binomial ones."""
    rng = np.random.default_rng(seed)
    sd = rng.uniform(spread[0], spread[1], R)
    eta = rng.normal(1, 0.7, R) + np.outer(X, rng.normal(0, 0.5, R)) + (sd * rng.normal(size=(GROUPS, R)))[G]
    mean = np.exp(eta) * (1.0 if size is None else rng.gamma(size, 1 / size, eta.shape))
    return rng.poisson(mean).astype(float)


U, H = np.linspace(-9, 9, 1201, retstep=True)


def log_likelihood(y, theta, log_rows):
    """By a sum over equidistant points, of intercept, slope, sd and what the family has beside these."""
    eta = theta[0] + theta[1] * X[:, None] + theta[2] * U
    by_group = np.add.reduceat(log_rows(y[:, None], eta, theta[3:]), np.arange(0, len(y), ROWS))
    total: Any = special.logsumexp(by_group + stats.norm.logpdf(U) + np.log(H), axis=1)
    return float(np.sum(total))


def exact(y, start, log_rows):
    """The maximum by SciPy and two Newton steps by differences, its log-likelihood, and standard errors."""
    theta = optimize.minimize(lambda t: -log_likelihood(y, t, log_rows), start, method="BFGS", options={"gtol": 1e-7}).x
    h, k = 1e-4, len(start)
    steps = h * np.eye(k)
    for _ in range(2):
        f = lambda *by: -log_likelihood(y, theta + sum(by), log_rows)  # noqa: B023, E731
        slope = np.array([(f(a) - f(-a)) / (2 * h) for a in steps])
        bent = np.array([[(f(a, b) - f(a, -b) - f(-a, b) + f(-a, -b)) / (4 * h * h) for b in steps] for a in steps])
        theta = theta - np.linalg.solve(bent, slope)
    return theta, log_likelihood(y, theta, log_rows), np.sqrt(np.diagonal(np.linalg.inv(bent)))


def poisson_rows(y, eta, _):
    return stats.poisson.logpmf(y, np.exp(eta))


def nbinom2_rows(y, eta, own):
    size = np.exp(own[0])
    return stats.nbinom.logpmf(y, size, size / (size + np.exp(eta)))


BOTH = [("poisson", poisson_rows, None), pytest.param("nbinom2", nbinom2_rows, 3.0, marks=pytest.mark.slow)]


@pytest.mark.parametrize("family, rows, size", BOTH)
def test_each_is_at_its_exact_maximum(family, rows, size):
    Y = counted(4, size=size)
    fits = many(Y, family)
    assert fits.converged_.all() and (fits.verdicts["length"] < 1e-4).all()
    for r in range(2):
        found, se = (frame[["Intercept", "x", "sd_g"]].to_numpy()[r] for frame in (fits.params_, fits.stderr_))
        if size is not None:
            theta = fits.params_["theta"][r]
            found, se = np.append(found, np.log(theta)), np.append(se, fits.stderr_["theta"][r] / theta)
        truth, loglik, errors = exact(Y[:, r], found * 1.05, rows)
        np.testing.assert_array_less(np.abs(found - truth) / errors, 1e-4)
        known = np.isfinite(se)  # of a variance of zero there is none
        assert known.tolist() == [True, True, fits.verdicts["word"][r] == "certified", True][: len(se)]
        np.testing.assert_allclose(se[known], errors[known], rtol=1e-4)
        assert fits.loglik_[r] == pytest.approx(loglik, abs=1e-6)


@pytest.mark.slow
def test_single_fits_are_the_same():
    Y = counted(3, seed=1)
    fits = many(Y)
    for r in range(3):
        one = single(Y[:, r])
        assert fits.verdicts["word"][r] == one.certificate_.word
        # A single fit ends when its step is a hundredth of a standard error.
        gap = np.abs(fits.params_.loc[r] - pd.Series(one.params_)) / pd.Series(one.stderr_)
        assert gap.max() < 0.01 and gap.notna().sum() >= 2
        np.testing.assert_allclose(fits.stderr_.loc[r], list(one.stderr_.values()), rtol=5e-3)
        assert fits.loglik_[r] == pytest.approx(float(one.loglik_), abs=1e-4)
        np.testing.assert_allclose(fits.cov_params(r), one.cov_params(), rtol=0.01, atol=1e-6)


@pytest.mark.slow
def test_blocks_and_other_responses_change_nothing(monkeypatch):
    Y = counted(7, seed=2)
    whole = many(Y)
    monkeypatch.setattr(together, "BLOCK_NUMBERS", 40_000)
    apart = many(Y[:, ::-1])
    np.testing.assert_allclose(whole.params_, apart.params_[::-1], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(whole.loglik_, apart.loglik_[::-1], rtol=1e-10)


# -- verdicts -----------------------------------------------------------------------------------------


def test_every_kind_of_trouble_is_told_and_stops_no_other():
    rng = np.random.default_rng(1)
    good = counted(1, seed=3)[:, 0]
    level = rng.poisson(np.exp(1 + 0.4 * X)).astype(float)
    hole, negative, half = good.copy(), good.copy(), good.copy()
    hole[3], negative[5], half[7] = np.nan, -1, 0.5
    Y = pd.DataFrame({"good": good, "level": level, "none": 0.0, "hole": hole, "negative": negative, "half": half})
    fits = many(Y)
    assert fits.verdicts["word"].tolist() == ["certified", "careful", "failed", "failed", "failed", "failed"]
    message = fits.verdicts["message"]
    assert "boundary (singular) fit" in message["level"] and message["good"] == ""
    assert fits.params_.loc["level", "sd_g"] < 1e-4 and np.isnan(fits.stderr_.loc["level", "sd_g"])
    assert fits.stderr_.loc["level", "x"] > 0
    reasons = {"none": "0 in every row", "hole": "nan at row 3", "negative": "-1 at row 5", "half": "0.5 at row 7"}
    for name, words in reasons.items():
        assert message[name].startswith("not fitted: the response is " + words)
        assert fits.params_.loc[name].isna().all() and not fits.converged_[name] and np.isnan(fits.loglik_[name])
    assert "6 fits, 1 certified, 1 careful, 4 failed" in repr(fits) and len(fits) == 6
    one = single(level)
    assert one.certificate_.word == "careful" and one.is_singular_


@pytest.mark.slow
def test_separation_fails_and_endless_dispersion_is_flat():
    rng = np.random.default_rng(0)
    binary = np.column_stack([X > 0, rng.random(60) < special.expit(X + rng.normal(size=GROUPS)[G])]).astype(float)
    fits = many(binary, "binomial")
    assert fits.verdicts["word"][0] == "failed" and "separation: fixed effects, mostly x" in fits.verdicts["message"][0]
    assert fits.verdicts["word"][1] != "failed"
    even = np.clip(np.round(np.exp(1.2 + 0.3 * X)), 0, None)  # less varied than any Poisson variable
    fits = many(even[:, None], "nbinom2")
    assert fits.verdicts["word"][0] == "careful" and "flat along theta" in fits.verdicts["message"][0]
    plain = many(even[:, None], "poisson")
    np.testing.assert_allclose(fits.params_[["Intercept", "x"]], plain.params_[["Intercept", "x"]], atol=1e-3)


def test_a_search_that_is_cut_short_says_so():
    fits = many(counted(2, seed=4), n_iter=1)
    assert not fits.converged_.any() and (fits.verdicts["word"] != "certified").all()
    assert fits.verdicts["message"].str.contains("not converged: the maximum is").all()


# -- offsets, weights, trials -------------------------------------------------------------------------


@pytest.mark.slow
def test_offsets_and_weights_are_of_all_responses_or_of_each():
    Y = counted(2, seed=5)
    rng = np.random.default_rng(0)
    offset, weights = rng.normal(0, 0.3, (60, 2)), rng.uniform(0.5, 2.0, (60, 2))
    each = many(Y, offset=offset, weights=weights)
    for r in range(2):
        alone = many(Y[:, [r]], offset=offset[:, r], weights=weights[:, r])
        np.testing.assert_allclose(each.params_.loc[r], alone.params_.loc[0], rtol=1e-6)
        assert each.loglik_[r] == pytest.approx(alone.loglik_[0], rel=1e-10)
    one = single(Y[:, 1], offset=offset[:, 1], weights=weights[:, 1])
    np.testing.assert_allclose(each.params_.loc[1], list(one.params_.values()), rtol=1e-3)
    both = many(Y, formula="~ x + offset(o) + (1 | g)", data=DATA.assign(o=0.1), offset=offset - 0.1, weights=weights)
    np.testing.assert_allclose(both.params_, each.params_, rtol=1e-6)


@pytest.mark.slow
def test_trials_are_a_column_an_array_or_one_a_response():
    rng = np.random.default_rng(6)
    n = rng.integers(2, 9, 60)
    Y = rng.binomial(n[:, None], special.expit(0.3 + np.outer(X, [0.5, -0.5]) + 0.8 * rng.normal(size=(GROUPS, 2))[G]))
    data = DATA.assign(n=n)
    by_name = many(Y, "binomial", data=data, trials="n")
    each = many(Y, "binomial", trials=np.column_stack([n, n]))
    np.testing.assert_allclose(by_name.params_, each.params_, rtol=1e-8)
    one = single(Y[:, 0], "binomial", "y/n ~ x + (1 | g)", data)
    assert by_name.loglik_[0] == pytest.approx(float(one.loglik_), abs=1e-4)
    np.testing.assert_allclose(by_name.params_.loc[0], list(one.params_.values()), rtol=1e-3)
    succeeded = many(np.column_stack([Y[:, 0], n, 0 * n, n + 1]), "binomial", data=data, trials="n")
    assert succeeded.verdicts["word"].tolist()[1:] == ["failed"] * 3
    assert succeeded.verdicts["message"][1].startswith("not fitted: all of the trials succeed")
    assert succeeded.verdicts["message"][2].startswith("not fitted: none of the trials succeed")
    assert "more than there are trials" in succeeded.verdicts["message"][3]


# -- other families and layouts -----------------------------------------------------------------------


@pytest.mark.slow
def test_gaussian_responses_of_any_size_are_those_of_their_marginal_normal():
    rng = np.random.default_rng(7)
    crossed = rng.integers(0, 6, 60)
    base = rng.normal(size=GROUPS)[G] + 0.7 * rng.normal(size=6)[crossed] + 0.5 * X + 0.8 * rng.normal(size=60)
    Y = np.column_stack([base, 1e6 * base, 1e-3 * base + 5])
    fits = many(Y, "gaussian", "~ x + (1 | g) + (1 | c)", DATA.assign(c=crossed))
    assert fits.converged_.all()
    for r in range(3):
        theta = fits.params_.loc[r]
        total = theta["sigma"] ** 2 * np.eye(60) + theta["sd_g"] ** 2 * (G[:, None] == G)
        total += theta["sd_c"] ** 2 * (crossed[:, None] == crossed)
        mean = theta["Intercept"] + theta["x"] * X
        assert fits.loglik_[r] == pytest.approx(stats.multivariate_normal.logpdf(Y[:, r], mean, total), abs=1e-6)
    np.testing.assert_allclose(fits.params_.loc[1], 1e6 * fits.params_.loc[0], rtol=1e-4)
    np.testing.assert_allclose(
        fits.params_.loc[2, ["x", "sigma", "sd_g"]], 1e-3 * fits.params_.loc[0, ["x", "sigma", "sd_g"]], rtol=1e-4
    )


@pytest.mark.slow
def test_slopes_are_integrated_too():
    Y = counted(2, seed=8)
    fits = many(Y, formula="~ x + (x | g)")
    one = single(Y[:, 0], formula="y ~ x + (x | g)")
    assert list(fits.params_.columns) == list(one.params_) and fits.loglik_[0] == pytest.approx(float(one.loglik_), abs=1e-3)


@pytest.mark.slow
def test_thresholds_are_of_the_categories_that_all_responses_have():
    Y = counted(2, seed=8)
    ordered = np.digitize(np.log1p(Y), [0.9, 1.5]) + 1.0
    ordered = np.column_stack([ordered, np.minimum(ordered[:, 0], 2)])
    fits = many(ordered, "ordinal")
    assert list(fits.params_.columns) == ["x", "1|2", "2|3", "sd_g"]
    assert "no row of the response is 3, which is a category of others" in fits.verdicts["message"][2]
    one = single(ordered[:, 0].astype(int), "ordinal")
    assert fits.loglik_[0] == pytest.approx(float(one.loglik_), abs=1e-3)


@pytest.mark.slow
def test_an_approximation_says_how_far_it_is_off():
    rng = np.random.default_rng(9)
    Y = (rng.random((60, 4)) < special.expit(4.0 * rng.normal(size=(GROUPS, 4))[G] + X[:, None])).astype(float)
    fits, exactly = many(Y, "binomial", method="laplace"), many(Y, "binomial")
    gap = (np.abs(fits.params_ - exactly.params_) / exactly.stderr_).max(axis=1)
    told = fits.verdicts["message"].str.contains("of the likelihood itself is about")
    # A certificate asks for a fifth of a standard error.
    assert gap.max() > 0.25 and told[gap > 0.25].all() and not told[gap < 0.15].any()
    one = mx.GLMM("y ~ x + (1 | g)", family="binomial", method="laplace", verbose=False).fit(DATA.assign(y=Y[:, 0]))
    np.testing.assert_allclose(fits.params_.loc[0], list(one.params_.values()), rtol=0.01)


@pytest.mark.slow
def test_single_precision_is_close():
    Y = counted(3, seed=10)
    rough, fine = many(Y, dtype="float32"), many(Y)
    assert rough.converged_.all()
    np.testing.assert_array_less(np.abs(rough.params_ - fine.params_) / fine.stderr_, 0.03)


# -- tables -------------------------------------------------------------------------------------------


def test_tests_are_adjusted_for_the_responses_that_were_fitted():
    Y = pd.DataFrame(counted(6, seed=11), columns=list("abcdef"))
    Y["z"] = 1.0
    fits = many(Y)
    found = fits.test("x")
    p = 2 * stats.norm.sf(np.abs(fits.params_["x"] / fits.stderr_["x"])[:6])
    np.testing.assert_allclose(found["p"][:6], p)
    order = np.argsort(p)[::-1]
    adjusted = np.empty(6)
    adjusted[order] = np.minimum.accumulate(p[order] * 6 / np.arange(6, 0, -1))
    np.testing.assert_allclose(found["p_adjusted"][:6], np.minimum(adjusted, 1.0))
    assert np.isnan(found.loc["z", "p_adjusted"]) and found.loc["z", "word"] == "failed"
    assert (fits.test("x", adjust="by")["p_adjusted"][:6] >= found["p_adjusted"][:6]).all()
    moved = fits.test("x", value=fits.params_["x"]["a"])
    assert moved["z"]["a"] == 0 and moved["estimate"]["a"] == fits.params_["x"]["a"]


def test_summaries_are_long_or_wide():
    Y = pd.DataFrame(counted(2, seed=12), columns=["b", "a"])
    fits = many(Y)
    long, wide = fits.summary(), fits.summary(0.9, form="wide")
    assert long.index.tolist() == [(r, name) for r in ("b", "a") for name in ("Intercept", "x", "sd_g")]
    assert wide.index.tolist() == ["b", "a"] and wide["fit"]["word"].tolist() == fits.verdicts["word"].tolist()
    assert wide["x"]["se"]["a"] == long["se"]["a", "x"] and np.isnan(long["p"]["a", "sd_g"])
    assert wide["x"]["ci_low"]["a"] > long["ci_low"]["a", "x"]
    np.testing.assert_allclose(fits.aic_, 6 - 2 * fits.loglik_)


Y2 = counted(2, seed=13)
LABELS = [f"r{i}" for i in range(60)]


@pytest.mark.parametrize("settings, words", [
    ({"Y": Y2[:50]}, "a row for each of the 60 rows of data and a column a response, got shape (50, 2)"),
    ({"Y": Y2[:, 0]}, "got shape (60,)"),
    ({"Y": pd.DataFrame({"a": ["x"] * 60, "b": 1.0})}, '"a" is none'),
    ({"Y": pd.DataFrame(Y2, columns=["a", "a"])}, 'two responses are called "a"'),
    ({"Y": pd.DataFrame(Y2, index=LABELS), "data": DATA.set_axis(LABELS[::-1])}, "row 0 of Y is 'r0', and that of data is 'r59'"),
    ({"Y": 0 * Y2}, "none of the 2 responses can be fitted"),
    ({"formula": "~ x"}, "no random effects"),
    ({"formula": "y/n ~ x + (1 | g)"}, '"y / n", counts successes of trials'),
    ({"formula": "~ x + (1 | g) + (1 | c)", "data": DATA.assign(c=np.tile(np.arange(5), 12))}, "17 hang together"),
    ({"formula": "~ nothing + (1 | g)"}, "nothing"),
    ({"trials": np.full(60, 9)}, "counts successes of trials, and the family poisson has none"),
    ({"trials": "n", "family": "binomial"}, 'no column "n"'),
    ({"trials": np.zeros(60), "family": "binomial"}, "trials is 0 at row 0"),
    ({"trials": np.ones(5), "family": "binomial"}, "trials has shape (5,)"),
    ({"offset": np.ones((60, 3))}, "offset has shape (60, 3), and Y (60, 2)"),
    ({"offset": np.full((60, 2), np.nan)}, "offset is nan at row 0 of response 0"),
    ({"weights": np.full((60, 2), -1.0)}, "weights is -1 at row 0 of response 0"),
    ({"weights": np.zeros(60)}, "must be positive"),
    ({"data": X}, "data must be a pandas data frame"),
])  # fmt: skip
def test_what_is_wrong_is_said_before_anything_is_fitted(settings, words):
    given = {"Y": Y2} | settings
    with pytest.raises((TypeError, ValueError)) as error:
        many(given.pop("Y"), **given)
    assert words in str(error.value)


def test_wrong_questions_are_refused():
    with pytest.raises(ValueError, match="start= is of one fit"):
        mx.GLMM("~ x + (1 | g)", family="poisson", start={"x": 1.0}).fit_many(Y2, DATA)
    fits = many(Y2)
    with pytest.raises(ValueError, match='no coefficient "sd_g"; the fixed effects are Intercept, x'):
        fits.test("sd_g")
    with pytest.raises(ValueError, match='adjust must be "bh" or "by"'):
        fits.test("x", adjust="bonferroni")
    with pytest.raises(ValueError, match='form must be "long" or "wide"'):
        fits.summary(form="tall")
    with pytest.raises(ValueError, match="there is no response 9"):
        fits.cov_params(9)


def test_progress_is_shown_where_it_takes_a_while(monkeypatch):
    class Recorder:
        def __init__(self, title, total):
            shown.append(title)

        def update(self, completed, figures):
            shown.append(figures)

        def close(self):
            shown.append("closed")

    shown = []
    monkeypatch.setattr(many_module, "Line", Recorder)
    model = mx.GLMM("~ x + (1 | g)", family="poisson")
    monkeypatch.setattr(many_module, "PATIENCE", 1e9)
    model.fit_many(Y2, DATA)
    assert shown == []
    monkeypatch.setattr(many_module, "PATIENCE", -1.0)
    model.fit_many(Y2, DATA)
    assert shown[0] == "2 responses" and shown[1] == "Newton's steps, 2 under way" and shown[-1] == "closed"
    assert any(words.startswith("looking around") for words in shown)


# -- at full size -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("family, rows, size", [("poisson", poisson_rows, None), ("nbinom2", nbinom2_rows, 3.0)])
def test_twenty_thousand_responses(family, rows, size):
    """Each as fitted by itself; where a single fit stopped sooner, as by SciPy."""
    Y = counted(20_000, seed=20, size=size, spread=(0.0, 0.8))
    fits = many(Y, family)
    assert (fits.verdicts["word"] != "failed").all() and fits.converged_.mean() > 0.999
    other = 0
    for r in np.random.default_rng(0).choice(20_000, 50, replace=False).tolist():
        one = single(Y[:, r], family)
        assert fits.verdicts["word"][r] == one.certificate_.word
        gap = (np.abs(fits.params_.loc[r] - pd.Series(one.params_)) / fits.stderr_.loc[r]).max()
        if gap < 1e-4:
            continue
        other += 1
        found, se = (frame.loc[r, ["Intercept", "x", "sd_g"]].to_numpy(float) for frame in (fits.params_, fits.stderr_))
        size_here = np.inf if size is None else fits.params_["theta"][r]
        if size_here > 1e4:  # counts that vary no more than Poisson's, whose dispersion has no maximum
            truth, _, _ = exact(Y[:, r], found, poisson_rows)
        else:
            truth, _, _ = exact(Y[:, r], np.append(found, np.log(size_here)), rows)
        np.testing.assert_array_less(np.abs(found - truth[:3]) / np.nan_to_num(se, nan=np.inf), 1e-4)
    assert other < 15
