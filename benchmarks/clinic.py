"""What a population analysis costs from event tables, in CPU seconds: `python benchmarks/clinic.py [JOB ...]`.

Each job runs twice in one process, cold and warm; it reads files of the folder MARGAUX_DATA. Fits are with standard errors and
the log-likelihood.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

import margaux as mx
from margaux.families.nlme import LogNormal, infusion2cpt, ode, oral1cpt

FOLDER = Path(os.environ.get("MARGAUX_DATA", "../shared/data")) / "clinic"


def _fitted(structural, frame, **starts):
    individual = {name: LogNormal(value) if isinstance(value, float) else value for name, value in starts.items()}
    model = mx.NLME(structural=structural, individual=individual, error="proportional", random_state=0, verbose=False)
    model.fit(frame)
    return model.summary(), model.loglik_, model


def _simulated(name):
    frame = pd.read_csv(FOLDER / f"{name}.csv.gz")
    return frame.assign(SS=frame["SS"].replace(99, 0))


def _absorbed(t, state, psi):
    gone = psi["ka"] * state["depot"]
    return {"depot": -gone, "central": gone - psi["CL"] / psi["V"] * state["central"]}


def oral():
    """Oral_1CPT, 120 subjects, 6,900 observations, by the closed form."""
    return _fitted(oral1cpt, _simulated("Oral_1CPT"), ka=1.0, CL=4.0, V=70.0)


def oral_by_equations(linear=None):
    """Oral_1CPT as differential equations, which are found to be linear and solved by exponentials of their matrix."""
    curve = ode(_absorbed, ["depot", "central"], lambda state, psi: state["central"] / psi["V"], linear=linear, name="oral")
    return _fitted(curve, _simulated("Oral_1CPT"), ka=1.0, CL=4.0, V=70.0)


def oral_by_steps():
    """The same by adaptive steps, as equations that are not linear are solved."""
    return oral_by_equations(linear=False)


def infusion():
    """Infusion_2CPT, by the closed form."""
    return _fitted(infusion2cpt, _simulated("Infusion_2CPT"), V1=70.0, CL=4.0, Q=5.0, V2=50.0)


CELLS = ("proliferating", "maturing1", "maturing2", "maturing3", "circulating")


def _cells(t, state, psi):
    """Myelosuppression by a drug of two compartments, whose parameters are columns of the data."""
    C, ktr = state["central"] / psi["V1I"], 4 / psi["MTT"]
    out, back = 204.0 / psi["V1I"] * state["central"], 204.0 / psi["V2I"] * state["peripheral"]
    born = (1 - psi["slope"] * C) * (psi["Circ0"] / state["circulating"]) ** psi["gamma"] * state["proliferating"]
    flows = [state[name] for name in CELLS]
    slopes = {name: ktr * (before - own) for name, before, own in zip(CELLS, [born, *flows], flows, strict=False)}
    return {"central": back - out - psi["CLI"] * C, "peripheral": out - back} | slopes


def cells():
    """wbcSim: Friberg's equations, white cells of 45 patients after infusions."""
    curve = ode(_cells, ["central", "peripheral", *CELLS], "circulating", name="friberg",
                initial=lambda psi: dict.fromkeys(CELLS, psi["Circ0"]))  # fmt: skip
    frame = pd.read_csv(FOLDER / "wbcSim.csv")
    gamma = LogNormal(0.24, random=False)
    return _fitted(curve, frame, Circ0=7.0, MTT=120.0, slope=29.0, gamma=gamma)


def bootstrap():
    """Theophylline, 200 replicates."""
    table = mx.datasets.load_theophylline()
    individual = {"ka": LogNormal(1.5), "V": LogNormal(30.0), "CL": LogNormal(2.5)}
    model = mx.NLME(structural=oral1cpt, individual=individual, random_state=0, verbose=False)
    model.fit(table, id="Id", time="Time", y="Concentration", dose="Dose")
    began = time.process_time()
    found = model.bootstrap(200)
    return time.process_time() - began, found


def covariates():
    """Stepwise search, 200 subjects, 12 candidates."""
    rng = np.random.default_rng(0)
    n, times = 200, np.array([0.5, 1.0, 2.0, 4.0, 8.0, 12.0, 24.0])
    about = pd.DataFrame({"wt": rng.normal(70, 12, n).clip(40, 120), "age": rng.uniform(20, 80, n), "crcl": rng.normal(90, 20, n)
                          .clip(30, 160), "sex": rng.integers(0, 2, n)})  # fmt: skip
    ka, V = 1.2 * np.exp(0.3 * rng.normal(size=n)), 30 * about["wt"] / 70 * np.exp(0.2 * rng.normal(size=n))
    CL = 2.5 * (about["crcl"] / 90) ** 0.8 * np.exp(0.25 * rng.normal(size=n))
    k, t = (CL / V).to_numpy()[:, None], times[None]
    mean = 300 * ka[:, None] / V.to_numpy()[:, None] / (ka[:, None] - k) * (np.exp(-k * t) - np.exp(-ka[:, None] * t))
    y = mean * (1 + 0.15 * rng.normal(size=mean.shape))
    table = pd.DataFrame({"Id": np.repeat(np.arange(n), 7), "Time": np.tile(times, n), "Dose": 300.0, "y": y.ravel()})
    table = table.join(about, on="Id")
    individual = {"ka": LogNormal(1.0), "V": LogNormal(30.0), "CL": LogNormal(2.0)}
    model = mx.NLME(structural=oral1cpt, individual=individual, error="proportional", random_state=0, verbose=False)
    model.fit(table, id="Id", time="Time", y="y", dose="Dose")
    began = time.process_time()
    found = model.covariates({name: ["wt", "age", "crcl", "sex"] for name in individual})
    return time.process_time() - began, found


JOBS = {"Oral_1CPT": oral, "Oral_1CPT by equations": oral_by_equations, "Oral_1CPT by steps": oral_by_steps,
        "Infusion_2CPT": infusion, "wbcSim": cells, "bootstrap": bootstrap, "covariates": covariates}  # fmt: skip

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if unknown := set(sys.argv[1:]) - set(JOBS):
        raise SystemExit(f"there is no job {min(unknown)!r}; they are {', '.join(JOBS)}")
    for name in sys.argv[1:] or JOBS:
        for turn in ("cold", "warm"):
            began, wall = time.process_time(), time.perf_counter()
            found = JOBS[name]()
            spent = f"{time.process_time() - began:.1f} CPU s, {time.perf_counter() - wall:.1f} s"
            if name in ("bootstrap", "covariates"):
                spent += f", after the fit {found[0]:.1f} CPU s"
            print(f"{name}, {turn}: {spent}", flush=True)
        print(found[0] if len(found) == 3 else found[1], *found[1:2], flush=True)
