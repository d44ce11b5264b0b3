"""Doses carried from one to the next are those added up pair by pair."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.linalg import expm

from margaux.families.nlme import bolus1cpt, events, infusion2cpt, oral1cpt_lag, oral2cpt
from margaux.families.nlme.dosing import FIRST, LAST, Regimen, dosed
from margaux.families.nlme.outcomes import DOSES

TWO = {"V1": 10.0, "CL": 1.0, "Q": 2.0, "V2": 20.0}


def _table(seed, infused=0.0, mixed=False, steady=True, n=12):
    """Doses and observations at random times, some at one time, with additional doses, steady states and resets."""
    rng, records = np.random.default_rng(seed), []
    for subject in range(n):
        time = 0.0
        for _ in range(rng.integers(3, 12)):
            time += rng.choice([0.0, rng.exponential(4)])
            dose = {"ID": subject, "TIME": time, "EVID": rng.choice([1, 4], p=[0.9, 0.1]), "AMT": rng.uniform(50, 100), "CMT": 1}
            if rng.random() < infused:
                dose["RATE"] = dose["AMT"] / rng.exponential(0.7)
            if steady and rng.random() < 0.15:
                dose |= {"SS": rng.choice([1, 2]), "II": 6.0}
            if rng.random() < 0.1:
                dose |= {"II": 5.0, "ADDL": 3}
            records.append(dose | ({"CMT": rng.integers(1, 3)} if mixed else {}))
            for _ in range(rng.integers(0, 4)):
                time += rng.choice([0.0, rng.exponential(2)])
                records.append({"ID": subject, "TIME": time, "EVID": 0, "DV": 1.0})
        records.append({"ID": subject, "TIME": time + 1, "EVID": 0, "DV": 1.0})
    return pd.DataFrame(records).fillna({name: 0.0 for name in ("AMT", "RATE", "CMT", "SS", "II", "ADDL")})


def _both_ways(curve, parameters, table):
    """Predictions and their derivatives, carried and by pairs, with what the regimen is."""
    function: Any = dosed(curve).function
    read = events.read(table, events.recognised(table), {"id": "ID", "time": "TIME", "y": "DV"}, function)
    rows = np.flatnonzero(read.observed)
    owner, time = table["ID"].to_numpy()[rows], table["TIME"].to_numpy()[rows]
    given = events.given_to(read, rows, time, np.unique(owner), owner)
    regimen = Regimen.of(given[DOSES])
    doses = jax.tree.map(lambda leaf: jnp.asarray(leaf), given[DOSES])
    own = [jnp.asarray(part) for part in (time, given[FIRST], given[LAST], owner)]

    def found(reach):
        model = dataclasses.replace(function, regimen=dataclasses.replace(regimen, reach=reach))

        def of_row(psi, time, first, last, subject):
            mine = jax.tree.map(lambda leaf: leaf[subject], doses)
            return model(psi, {"time": time, FIRST: first, LAST: last, DOSES: mine})

        def of_rows(size):  # along one direction
            psi = {name: value * size ** (1 + i) for i, (name, value) in enumerate(parameters.items())}
            return jax.vmap(of_row, (None, 0, 0, 0, 0))(psi, *own)

        return jax.jit(lambda size: jax.jvp(of_rows, (size,), (jnp.ones_like(size),)))(jnp.ones(()))

    return found(regimen.reach), found(None), regimen


@pytest.mark.parametrize(
    "curve, parameters, settings, reach",
    [
        (bolus1cpt, {"V": 10.0, "CL": 1.0}, {}, 1),
        (infusion2cpt, TWO, {"infused": 0.8}, 4),
        (oral2cpt, TWO | {"ka": 0.8}, {}, 1),
        (oral2cpt, TWO | {"ka": 0.8}, {"infused": 0.5, "mixed": True, "steady": False}, 4),
        (oral1cpt_lag, {"Tlag": 1.3, "ka": 0.1, "V": 10.0, "CL": 1.0}, {"steady": False}, 1),
    ],
    ids=["bolus", "infusions", "oral", "both", "lag"],
)
def test_the_sum_over_all_doses(curve, parameters, settings, reach, double):
    carried, pairs, regimen = _both_ways(curve, parameters, _table(0, **settings))
    assert regimen.reach == reach
    for one, other in zip(jax.tree.leaves(carried), jax.tree.leaves(pairs), strict=True):
        scale = float(np.max(np.abs(other)))
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-13 * scale)
        assert scale > 0 and len(np.unique(other)) > 20


def _by_exponentials(table, parameters):
    """Concentrations of two compartments and a depot from exponentials of their matrix, dose by dose."""
    ka, V1, CL, Q, V2 = (parameters[name] for name in ("ka", "V1", "CL", "Q", "V2"))
    matrix = np.array([[-ka, 0, 0], [ka, -(CL + Q) / V1, Q / V2], [0, Q / V1, -Q / V2]])
    out = []
    for _, own in table.groupby("ID"):
        records = own.assign(part=(own["EVID"] == 4).cumsum()).to_dict("records")
        begins = {one["part"]: one["TIME"] for one in reversed(records)}
        doses = [
            (one["TIME"] + turn * one["II"], i if turn == 0 else -1, one)
            for i, one in enumerate(records) if one["EVID"] > 0 for turn in range(int(one["ADDL"]) + 1)
            if turn == 0 or one["TIME"] + turn * one["II"] < begins.get(one["part"] + 1, np.inf)
        ]  # fmt: skip
        for i, row in enumerate(records):
            state = np.zeros(3)
            for time, place, dose in doses if row["EVID"] == 0 else []:
                since, enters = row["TIME"] - time, np.eye(3)[int(dose["CMT"]) - 1]
                if dose["part"] != row["part"] or since < 0 or (since == 0 and place > i):
                    continue
                if dose["RATE"] == 0:
                    state += expm(matrix * since) @ enters * dose["AMT"]
                    continue
                lasts = min(since, dose["AMT"] / dose["RATE"])
                driven = np.zeros((4, 4))
                driven[:3] = np.column_stack([matrix, enters * dose["RATE"]])
                state += expm(matrix * (since - lasts)) @ expm(driven * lasts)[:3, 3]
            out += [state[1] / V1] if row["EVID"] == 0 else []
    return np.array(out)


def test_exponentials_of_matrices_dose_by_dose(double):
    parameters, table = TWO | {"ka": 0.8}, _table(4, infused=0.7, mixed=True, steady=False, n=6)
    (found, _), _, regimen = _both_ways(oral2cpt, parameters, table)
    assert regimen.reach == 4
    wanted = _by_exponentials(table, parameters)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12 * wanted.max())


def test_a_decay_of_a_thousand_half_lives_is_nothing(double):
    table = pd.DataFrame(
        {"ID": 0, "TIME": [0.0, 1.0, 2.0, 1e4, 1e4 + 1], "EVID": [1, 1, 1, 1, 0], "AMT": [1e9, 1e9, 1e9, 1.0, 0.0], "DV": 1.0}
    )
    (carried, slopes), (pairs, _), regimen = _both_ways(bolus1cpt, {"V": 1.0, "CL": 1.0}, table)
    assert regimen.reach == 1
    np.testing.assert_allclose(carried, np.exp(-1.0), rtol=1e-12)
    np.testing.assert_allclose(pairs, np.exp(-1.0), rtol=1e-12)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


def test_doses_that_last_as_parameters_say_are_added_up():
    table = _table(0, infused=1.0, steady=False)
    table["RATE"] = np.where(table["EVID"] == 0, 0.0, -2.0)
    function: Any = dosed(infusion2cpt, duration="D").function
    read = events.read(table, events.recognised(table), {"id": "ID", "time": "TIME", "y": "DV"}, function)
    rows = np.flatnonzero(read.observed)
    owner = table["ID"].to_numpy()[rows]
    given = events.given_to(read, rows, table["TIME"].to_numpy()[rows], np.unique(owner), owner)
    assert Regimen.of(given[DOSES]).reach is None


def test_infusions_that_overlap_at_steady_state_are_summed(double):
    table = _table(0, infused=1.0)
    table.loc[table["SS"] > 0, "RATE"] = table["AMT"] / 9.0  # longer than the six hours between them
    carried, pairs, regimen = _both_ways(infusion2cpt, TWO, table)
    assert regimen.reach is None
    for one, other in zip(jax.tree.leaves(carried), jax.tree.leaves(pairs), strict=True):
        np.testing.assert_array_equal(one, other)
