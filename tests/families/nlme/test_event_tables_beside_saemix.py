"""Event tables of patients, fitted as by saemix 3.4: estimates after 800 iterations, standard errors from its information matrix,
likelihoods by 20,000 draws a subject."""

import pandas as pd
import pytest

import margaux as mx
from margaux.families.nlme import LogNormal, infusion2cpt, oral1cpt

MAVOGLURANT = {"V1": (59.574, 1.812), "CL": (28.097, 0.754), "Q": (28.227, 1.075), "V2": (147.229, 5.872)}
MAVOGLURANT_SPREAD = {"omega2_V1": 0.0998, "omega2_CL": 0.0834, "omega2_Q": 0.1465, "omega2_V2": 0.1677, "b": 0.15548}
THEOPHYLLINE = {"ka": (1.3767, 0.2093), "V": (31.329, 1.350), "CL": (2.8359, 0.1840)}
THEOPHYLLINE_SPREAD = {"omega2_ka": 0.24394, "omega2_V": 0.013683, "omega2_CL": 0.046432, "a": 0.65794, "b": 0.13876}


def alike(model, fixed, spread, loglik, gap):
    for name, (estimate, se) in fixed.items():
        assert abs(model.params_[name] - estimate) < 0.1 * se, name  # its own Monte Carlo error included
        assert model.stderr_[name] == pytest.approx(se, rel=0.1), name  # its information is that of a linear model
    for name, estimate in spread.items():
        assert abs(model.params_[name] - estimate) < 0.3 * model.stderr_[name], name
    assert model.loglik_ == pytest.approx(loglik, abs=gap)


@pytest.fixture(scope="module")
def mavoglurant(data_folder):
    """Infusions of ten to twenty minutes, 120 volunteers on up to two occasions."""
    frame = pd.read_csv(data_folder / "clinic" / "mavoglurant.csv")
    return frame.assign(DV=frame["DV"] / 1000)  # mg/l, as doses are in mg


def model(structural, error, **typical):
    individual = {name: LogNormal(value) for name, value in typical.items()}
    return mx.NLME(structural=structural, individual=individual, error=error, random_state=0, verbose=False)


@pytest.mark.slow
def test_mavoglurant_after_its_first_infusions(mavoglurant):
    positive = mavoglurant[(mavoglurant["OCC"] == 1) & ((mavoglurant["DV"] > 0) | (mavoglurant["EVID"] == 1))]
    fitted = model(infusion2cpt, "proportional", V1=40.0, CL=30.0, Q=30.0, V2=150.0).fit(positive)
    alike(fitted, MAVOGLURANT, MAVOGLURANT_SPREAD, 3623.154, 0.3)
    assert "npde" in str(fitted.certificate_)  # two compartments are not all there is


def test_a_clock_that_starts_anew_is_refused(mavoglurant):
    with pytest.raises(ValueError, match=r"TIME = 0 lies before the record above it.*\(subject 829, row 586\)"):
        model(infusion2cpt, "proportional", V1=40.0, CL=30.0, Q=30.0, V2=150.0).fit(mavoglurant)


@pytest.mark.slow
def test_theophylline_after_many_doses(data_folder):
    """Of two modes, mirror images, the one on the side of the starting values."""
    fitted = model(oral1cpt, "combined", ka=1.5, V=30.0, CL=2.5).fit(pd.read_csv(data_folder / "clinic" / "theo_md.csv"))
    alike(fitted, THEOPHYLLINE, THEOPHYLLINE_SPREAD, -416.2345, 0.02)
    assert "Another mode has a log-likelihood" in str(fitted.certificate_)
