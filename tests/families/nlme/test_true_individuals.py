"""Event tables of which each subject's own parameters are known: simulated with a spread of 30% and an error of 20%, both of
logarithms (observed over true concentrations have a mean of 1.024, their logarithms one of zero and no skewness)."""

import numpy as np
import pandas as pd
import pytest

import margaux as mx
from margaux.families.nlme import LogNormal, bolus1cpt, infusion2cpt, iv1cpt_mm, oral1cpt, oral2cpt

#: the structural model, typical values that the table was simulated with, and columns of subjects' own where named otherwise
CASES = {
    "Bolus_1CPT": (bolus1cpt, {"V": 70.0, "CL": 4.0}, {}),
    "Oral_1CPT": (oral1cpt, {"ka": 1.0, "V": 70.0, "CL": 4.0}, {"ka": "KA"}),
    "Oral_2CPT": (oral2cpt, {"ka": 1.0, "V1": 70.0, "CL": 4.0, "Q": 4.0, "V2": 50.0}, {"ka": "KA"}),
    "Infusion_2CPT": (infusion2cpt, {"V1": 70.0, "CL": 4.0, "Q": 4.0, "V2": 50.0}, {"V1": "V"}),
    "Infusion_1CPTMM": (iv1cpt_mm, {"V": 70.0, "Vm": 1000.0, "Km": 250.0}, {"Vm": "VM", "Km": "KM"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_population_and_individuals_are_those_of_the_simulation(name, data_folder):
    structural, typical, columns = CASES[name]
    frame = pd.read_csv(data_folder / "clinic" / f"{name}.csv.gz")
    if "SS" in frame:
        frame = frame.assign(SS=frame["SS"].replace(99, 0))
    individual = {parameter: LogNormal(value) for parameter, value in typical.items()}
    model = mx.NLME(structural=structural, individual=individual, error="exponential", random_state=0, verbose=False)
    model.fit(frame)
    assert model.converged_, model.certificate_
    truth = typical | {f"omega2_{parameter}": 0.3**2 for parameter in typical} | {"a": 0.2}
    for parameter, value in truth.items():
        assert abs(model.params_[parameter] - value) < 3 * model.stderr_[parameter], parameter
    own, first = model.individual_, frame.groupby("ID").first()
    for parameter in typical:
        true = first[columns.get(parameter, parameter)].to_numpy(float)
        z = (own[f"mean_{parameter}"].to_numpy() - true) / own[f"sd_{parameter}"].to_numpy()
        # Means that are shrunk as they should be miss by their own standard deviations.
        assert np.mean(z**2) == pytest.approx(1, abs=4 * np.sqrt(2 / len(z))), parameter
