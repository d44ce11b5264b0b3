"""Population pharmacokinetics from event tables, against maxima by adaptive quadrature that shares no code."""

import pandas as pd
import pytest

import margaux as mx
from margaux.families.nlme import LogNormal, bolus1cpt, oral1cpt


def _pheno(folder):
    return bolus1cpt, {"CL": 0.0055, "V": 1.4}, "proportional", pd.read_csv(folder / "clinic" / "pheno_sd.csv"), {}


def _bolus(folder):
    frame = pd.read_csv(folder / "clinic" / "Bolus_1CPT.csv.gz")
    return bolus1cpt, {"CL": 4.0, "V": 70.0}, "proportional", frame.assign(SS=frame["SS"].replace(99, 0)), {}


def _oral(folder):
    frame = pd.read_csv(folder / "clinic" / "Oral_1CPT.csv.gz").query("SD == 1")
    return oral1cpt, {"ka": 1.0, "CL": 4.0, "V": 70.0}, "proportional", frame.assign(SS=frame["SS"].replace(99, 0)), {}


def _occasions(folder):
    return bolus1cpt, {"CL": 2.0, "V": 20.0}, "proportional", pd.read_csv(folder / "clinic" / "sim_iov2.csv"), {}


def _theophylline(folder):
    roles = {"id": "Id", "time": "Time", "dose": "Dose", "y": "Concentration", "lloq": 2.0}
    return oral1cpt, {"ka": 1.0, "CL": 2.0, "V": 30.0}, "constant", pd.read_csv(folder / "saemix_theo.csv"), roles


def _warfarin(folder, lloq=None):
    frame = pd.read_csv(folder / "clinic" / "warfarin.csv").query("dvid == 'cp' and (evid == 1 or dv > 0)")
    return oral1cpt, {"ka": 1.0, "CL": 0.1, "V": 8.0}, "combined", frame.drop(columns="dvid"), {"lloq": lloq}


#: data, how far the log-likelihood may be from the reference's, by its own precision, and which errors are compared: the additive
#: one of warfarin with limits is bounded on one side only
CASES = {
    "pheno_base": (_pheno, 0.03, ()),
    "bolus1": (_bolus, 0.03, ()),
    "oral1sd": (_oral, 0.03, ()),
    "iov2": (_occasions, 0.03, ()),
    "theo_m3": (_theophylline, 0.03, ()),
    "warfarin_pk": (_warfarin, 0.1, ()),
    "warfarin_m3": (lambda folder: _warfarin(folder, 2.0), 0.1, ("a",)),
}
SLOW = [pytest.mark.slow]


@pytest.mark.parametrize(("seed", "times"), [
    (1, 1.0), *(pytest.param(seed, times, marks=SLOW) for seed, times in [(2, 3.0), (3, 1 / 3), (4, 3.0), (5, 1.0)])
])  # fmt: skip
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name == "pheno_base" else SLOW) for name in CASES])
def test_the_maximum_of_quadrature(name, seed, times, data_folder, reference):
    """From starting values that are three times off, too."""
    load, near, unbounded = CASES[name]
    structural, starts, error, frame, roles = load(data_folder)
    varying = {"iov2": "CL"}.get(name)
    individual = {parameter: LogNormal(times * value, occasion=parameter == varying) for parameter, value in starts.items()}
    model = mx.NLME(structural=structural, individual=individual, error=error, random_state=seed, verbose=False)
    model.fit(frame, **roles)
    exact = reference("clinic")[name]
    assert abs(float(model.loglik_) - exact["loglik"]) < near
    for parameter, value in exact["estimate"].items():
        se = exact["se_observed_info"][parameter]
        assert abs(model.params_[parameter] - value) < 0.1 * se, parameter
        if parameter not in unbounded:
            assert model.stderr_[parameter] == pytest.approx(se, rel=0.03), parameter
