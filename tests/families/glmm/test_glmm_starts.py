"""The published answers from three starts: the default, everything three times off, and the other way."""

from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

import margaux as mx


class Case(NamedTuple):
    """A reference answer: what is fitted, and its name in `glmm.json`."""

    formula: str
    file: str
    family: str


EXACT = {
    "cbpp": Case("incidence/size ~ period + (1 | herd)", "cbpp.csv", "binomial"),
    "toenail_1re": Case("y ~ time + time:treatment + (1 | id)", "saemix_toenail.csv", "binomial"),
    "epil_poisson_slope": Case("y ~ log(base/4)*trt + log(age) + visit + (1 + visit | subject)", "epil.csv", "poisson"),
    "rapi_poisson_slope": Case("rapi ~ gender*time + (time | id)", "saemix_rapi.csv", "poisson"),
    "sim_logit_100k": Case("y ~ x1 + x2 + (1 | g)", "sim_logit_100k.csv.gz", "binomial"),
}
#: formula, file and family; log-likelihood and how near
APPROXIMATE = {
    "cbpp": (EXACT["cbpp"], -92.02628),
    "verbagg": (
        Case("r2 ~ (anger + gender + btype + situ)**2 + (1 | id) + (1 | item)", "verbagg.csv.gz", "binomial"),
        -4062.0909,
    ),
    "sim_logit_100k": (EXACT["sim_logit_100k"], -53371.6001),
    "epil": (
        Case("y ~ log(base/4)*trt + log(age) + v4 + (1 | subject) + (1 | obs)", "epil.csv", "poisson"),
        -624.764645,
    ),
}


def read(folder, file):
    data = pd.read_csv(folder / file).rename(columns=str.lower)
    if file == "epil.csv":
        data["visit"] = (2 * data["period"] - 5) / 10
        data["obs"] = np.arange(len(data))
    return data.assign(period=data["period"].astype(str)) if file == "cbpp.csv" else data


def away(params, times, sign):
    """Every parameter so many times what it is; signs of fixed effects and correlations turned, standard deviations positive."""
    spreads = {name: times * value for name, value in params.items() if name.startswith("sd_")}
    correlations = {name: sign * np.clip(times * value, -0.9, 0.9) for name, value in params.items() if name.startswith("cor_")}
    return {name: sign * times * value for name, value in params.items()} | spreads | correlations


def from_three_starts(case, data, **settings):
    """A fit by default, and from afar."""
    make = {"family": case.family, "verbose": False} | settings
    first = mx.GLMM(case.formula, **make).fit(data)
    yield first
    for times, sign in ((3.0, 1.0), (1 / 3, -1.0)):
        yield mx.GLMM(case.formula, start=away(first.params_, times, sign), **make).fit(data)


def slow(names, fast):
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", slow(EXACT, ("cbpp",)))
def test_the_exact_maximum_from_three_starts(name, data_folder, reference):
    case, truth = EXACT[name], reference("glmm")["exact_mle"][name]
    data = read(data_folder, case.file)
    order = np.argsort(truth["fixed"])
    fixed, se = np.array(truth["fixed"])[order], np.array(truth["se_fixed"])[order]
    sd, k = np.array(truth["sd"]), len(truth["sd"])
    for model in from_three_starts(case, data):
        assert float(model.loglik_) == pytest.approx(truth["loglik_more_nodes"], abs=1e-3)
        found, errors = model.fixef().to_numpy(), model.summary()["se"].to_numpy()
        own = np.argsort(found)
        np.testing.assert_array_less(np.abs(found[own] - fixed) / se, 0.01)
        np.testing.assert_allclose(errors[: len(found)][own], se, rtol=0.01)
        spreads = [name for name in model.params_ if name.startswith("sd_")]
        theirs = np.array([model.params_[name] for name in spreads])
        np.testing.assert_array_less(np.abs(theirs - sd), 0.01 * np.array([model.stderr_[name] for name in spreads]))
        if k == 1:
            logs = model.stderr_[spreads[0]] / sd[0]
            assert logs == pytest.approx(truth["se_logsd_or_chol"][0], rel=0.01)
        assert model.certificate_.word == "certified", str(model.certificate_)


@pytest.mark.parametrize("name", slow(APPROXIMATE, ()))
def test_laplace_of_glmmtmb_from_three_starts(name, data_folder):
    case, loglik = APPROXIMATE[name]
    for model in from_three_starts(case, read(data_folder, case.file), method="laplace"):
        assert float(model.loglik_) == pytest.approx(loglik, abs=0.02)
