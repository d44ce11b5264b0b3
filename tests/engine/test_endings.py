"""What a fit says of its end, what a copy of it keeps, and what a saved one gives back."""

# Fits that are polished have the record of it.
# pyright: reportOptionalMemberAccess=false

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

import margaux as mx
from helpers import Cubed, random_intercept
from margaux.engine import storage
from margaux.engine.settling import has_settled

PROBLEM = random_intercept()


def fitted(algorithm=None, estep=None, **kw):
    settings = {"params": PROBLEM.start, "space": PROBLEM.space, "n_iter": 300, "progress": False, "polish": False} | kw
    return mx.fit(PROBLEM.model, PROBLEM.data, algorithm or mx.mcem(mx.LastIterate()), estep or mx.Quadrature(9), **settings)


class Asks(mx.AbstractCallback):
    def __call__(self, progress):
        return progress.iteration >= 40

    def close(self):
        pass


def test_a_callback_that_asks_to_stop_meets_no_rule():
    asked, met = fitted(callbacks=[Asks()]), fitted(stop=Asks())
    assert asked.result is mx.RESULTS.halted and not asked.converged and not asked.result.failed
    assert "a callback asked it to stop" in asked.message and "rule" not in asked.message
    assert met.result is mx.RESULTS.stopped and met.converged
    both = fitted(callbacks=[Asks()], stop=Asks())
    assert both.result is mx.RESULTS.stopped


@pytest.mark.parametrize(("kw", "converged"), [
    ({"n_iter": 1}, False),
    ({"n_iter": 2, "params": PROBLEM.mle}, False),
    ({"n_iter": 5}, False),
    ({"n_iter": 300}, True),  # EM at rest
    ({"n_iter": 300, "algorithm": mx.soul(1e-9)}, False),  # a line
    ({"n_iter": 300, "algorithm": mx.soul(1e-3, mx.LastIterate())}, False),  # the first part of an exponential
    ({"n_iter": 1000, "algorithm": mx.saem(), "estep": mx.MCMC(mx.MALA(0.5), n_steps=2)}, True),
    ({"n_iter": 1000, "algorithm": mx.saem(), "estep": mx.MCMC(mx.MALA(0.5), n_steps=2), "runs": 3}, True),
    ({"n_iter": 40, "algorithm": mx.soul(), "estep": mx.MCMC(mx.MALA(0.5), n_steps=2)}, False),
])  # fmt: skip
def test_a_fit_without_a_rule_has_converged_if_its_trace_has_settled(kw, converged):
    fit = fitted(**kw)
    assert fit.result is mx.RESULTS.successful and fit.converged == converged
    assert fit.message.startswith("The fit ended as asked.") and ("raise n_iter" in fit.message) != converged


def test_a_polish_is_told_from_the_iterations_before_it():
    """One iteration converges to nothing; that its estimate is the maximum all the same is the polish's merit."""
    fit = fitted(n_iter=1, polish=True)
    assert fit.polished.converged and abs(fit.params["mu"] - PROBLEM.mle["mu"]) < 0.03 * PROBLEM.se["mu"]
    assert not fit.converged and "by the polish alone" in fit.message and "raise n_iter" not in fit.message


def test_a_boundary_does_not_hide_that_a_fit_was_cut_short():
    """Before the rule was met, or by a callback: whether a parameter lies on an edge says nothing of that."""
    edge = {"params": {"mu": 0.5, "tau2": 0.5}, "space": {"tau2": mx.Box(0.49, 0.51)}}
    for more in ({"n_iter": 1}, {"n_iter": 50, "stop": mx.EarlyStopping(window=100)}, {"callbacks": [Asks()]}):
        short = fitted(**edge, **more)
        assert short.result is mx.RESULTS.boundary and not short.converged and "raise n_iter" in short.message
    whole = fitted(**edge)
    assert whole.result is mx.RESULTS.boundary and whole.converged and "raise n_iter" not in whole.message


def test_settled_traces_by_what_they_are():
    """Levels with noise, also autocorrelated, are settled for 99 of 100 seeds; slopes, and levels reached too late, for none."""
    k = np.arange(600)[:, None, None]
    rng = np.random.default_rng(0)
    counts = {"level": 0, "ar": 0, "approach": 0, "slope": 0, "late": 0}
    for _ in range(100):
        noise = rng.normal(size=(600, 1, 3))
        chain = np.zeros_like(noise)
        for t in range(1, 600):
            chain[t] = 0.8 * chain[t - 1] + noise[t]
        for name, trace in [("level", noise), ("ar", chain), ("approach", 20 * np.exp(-k / 30) + noise),
                            ("slope", 0.05 * k + noise), ("late", 20 * np.exp(-k / 400) + noise)]:  # fmt: skip
            counts[name] += has_settled(trace, 300)
    assert counts["level"] == counts["approach"] == 100 and counts["ar"] >= 99 and counts["slope"] == counts["late"] == 0


def test_a_copy_with_something_replaced_answers_anew():
    fit = fitted(n_iter=100)
    before, se = float(fit.loglik("quadrature")), fit.summary()["se"].iloc[0]
    moved = dataclasses.replace(fit, params=fit.params | {"mu": fit.params["mu"] + 1.0})
    assert float(moved.loglik("quadrature")) < before - 5 and float(fit.loglik("quadrature")) == before
    assert moved.summary()["se"].iloc[0] != se


# -- files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_penalised_fit_is_as_stationary_when_it_is_loaded(dtype, tmp_path):
    fit = fitted(mx.soul(1.0, mx.LastIterate()), penalty=mx.L1(1e3, on="mu"), dtype=dtype)
    assert fit.params["mu"] == 0.0  # the weight holds it there, against a score that is not zero
    fit.save(tmp_path / "fit.npz")
    again = mx.load(tmp_path / "fit.npz", PROBLEM.model, PROBLEM.data, estep=mx.Quadrature(9))
    one, two = fit.stationarity(), again.stationarity()
    # A fit keeps its data in its own precision, which another call of load does not.
    np.testing.assert_allclose(two.value, one.value, atol=0 if dtype == "float64" else 1e-6)
    assert one.stationary and two.stationary and abs(two.gradient["mu"]) > 0.1
    assert again.message == fit.message and again.converged == fit.converged
    same = mx.load(tmp_path / "fit.npz", PROBLEM.model, PROBLEM.data, space=PROBLEM.space, penalty=mx.L1(1e3, on="mu"))
    assert same.n_params == fit.n_params
    again.save(tmp_path / "again.npz")
    assert storage.read(tmp_path / "again.npz")[0]["penalty"] == storage.read(tmp_path / "fit.npz")[0]["penalty"]
    other: Any
    for other, told in (({"penalty": mx.L1(1.0, on="mu")}, "L1.weight is 1000.0 there and 1.0 here"),
                        ({"penalty": mx.L1(1e3)}, "L1.on is tuple there and None here"),
                        ({"penalty": mx.NoPenalty()}, "L1 is L1 there and nothing here"),
                        ({"space": {"tau2": mx.Positive(1e-5)}}, r"Product.spaces.tau2.floor is 0.001\d* there")):  # fmt: skip
        with pytest.raises(ValueError, match=f"is not that of the fit in .*: {told}"):
            mx.load(tmp_path / "fit.npz", PROBLEM.model, PROBLEM.data, **other)


@pytest.mark.parametrize("space", [
    None, mx.Real(), {"a": mx.Box(np.array([-1.0, -np.inf]), 3.0), "b": (mx.Simplex(), mx.PositiveDefinite(1e-3))},
    {"a": mx.Ball(2.0, np.ones(2))},
])  # fmt: skip
@pytest.mark.parametrize("penalty", [mx.L1(0.1), mx.L2(0.1, on=("a",)), mx.ElasticNet(0.1, 0.2), mx.Huber(0.1, 1.0, on="a")])
def test_every_space_and_penalty_comes_back_from_a_file(space, penalty, tmp_path):
    from margaux.answers.restoring import described, restored
    from margaux.problem.space import as_space

    params = {"a": np.zeros(2), "b": (np.array([0.2, 0.8]), np.eye(2))}
    for name, part in (("space", as_space(space, params)), ("penalty", penalty)):
        held = json.loads(json.dumps(described(part)))
        back = restored(name, held, None, np.dtype(float), "file")
        assert described(back) == held and type(back) is type(part)
        assert restored(name, held, part, np.dtype(float), "file") is part


def test_a_penalty_of_ones_own_is_asked_for(tmp_path):
    fit = fitted(mx.soul(1.0), penalty=Cubed())
    fit.save(tmp_path / "fit.npz")
    with pytest.raises(ValueError, match="cannot hold the penalty Cubed.*pass penalty="):
        mx.load(tmp_path / "fit.npz", PROBLEM.model, PROBLEM.data)
    again = mx.load(tmp_path / "fit.npz", PROBLEM.model, PROBLEM.data, penalty=Cubed())
    assert again.problem is not None and isinstance(again.problem.penalty, Cubed)
    with pytest.raises(ValueError, match="Cubed.weight is 1.0 there and 2.0 here"):
        mx.load(tmp_path / "fit.npz", PROBLEM.model, PROBLEM.data, penalty=Cubed(2.0))
    bare = mx.load(tmp_path / "fit.npz")
    bare.save(tmp_path / "bare.npz")
    with pytest.raises(ValueError, match="does not hold the space of its fit; pass space="):
        mx.load(tmp_path / "bare.npz", PROBLEM.model, PROBLEM.data)
