"""Structural models: compartments against textbook formulas in 120 digits and against matrix exponentials, and the curves."""

import decimal
import functools
import itertools
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from margaux.families.nlme.pharmacokinetics import Compartments, exp_difference, two_rates
from margaux.families.nlme.structural import CURVES, Curve, curve, polynomial, superposed

PK = [name for name in CURVES if "cpt" in name]
LAGGED = [name for name in PK if name.endswith("_lag") and "3cpt" not in name]
TYPICAL = {"Tlag": 0.75, "ka": 1.4, "V": 12.0, "CL": 1.7, "k": 0.15, "V1": 9.0, "Q": 2.5, "V2": 30.0}
GAPS = [0.0, *(sign * 10.0**-n for n in (3, 5, 7, 9, 11, 13, 14) for sign in (1, -1))]

pytestmark = pytest.mark.usefixtures("double")


def parameters_of(model, rng=None):
    """Typical values, or ones spread around them by a factor of about two."""
    spread = {name: 1.0 if rng is None else float(np.exp(0.6 * rng.normal())) for name in model.parameters}
    return {name: TYPICAL[name] * spread[name] for name in model.parameters}


# The older emitters compile large graphs of scalars three times faster.
fast_compiled = functools.partial(jax.jit, compiler_options={"xla_cpu_use_fusion_emitters": False})


def compartments_of(model: Curve) -> Compartments:
    assert isinstance(model.function, Compartments)
    return model.function


@functools.cache
def derivatives(model):
    """(theta array, row) -> value, gradient, Hessian, in the precision of theta."""

    def value(theta, row):
        return model(dict(zip(model.parameters, theta, strict=True)), row)

    @fast_compiled
    def compiled(theta, row):
        return value(theta, row), jax.grad(value)(theta, row), jax.hessian(value)(theta, row)

    def call(theta, row):
        theta = jnp.asarray(theta)
        return compiled(theta, {k: jnp.asarray(x, theta.dtype) for k, x in ({"dose": 100.0, "duration": 2.0} | row).items()})

    return call


# -- the textbook formulas, singular where rates meet, in 120 digits --------------------------------


def textbook(kind: Compartments, theta: dict, row: dict) -> Decimal:
    """Gibaldi and Perrier (1982): exponentials over products of differences of rates."""
    p = theta
    t, dose = row["time"] - p.get("Tlag", Decimal(0)), row["dose"]
    if t < 0:
        return Decimal(0)
    if kind.count == 1:
        volume, phases = p["V"], [(Decimal(1), p["k"] if kind.by_rate else p["CL"] / p["V"])]
    else:
        k10, k12, k21 = p["CL"] / p["V1"], p["Q"] / p["V1"], p["Q"] / p["V2"]
        total = k10 + k12 + k21
        root = (total * total - 4 * k10 * k21).sqrt()
        alpha, beta = (total + root) / 2, (total - root) / 2
        volume, phases = p["V1"], [((alpha - k21) / root, alpha), ((k21 - beta) / root, beta)]
    if kind.route == "bolus":
        terms = [w * (-rate * t).exp() for w, rate in phases]
    elif kind.route == "oral":
        ka = p["ka"]
        terms = [w * ka / (ka - rate) * ((-rate * t).exp() - (-ka * t).exp()) for w, rate in phases]
    else:
        T = row["duration"]
        terms = [w / (rate * T) * ((-rate * max(t - T, Decimal(0))).exp() - (-rate * t).exp()) for w, rate in phases]
    return dose / volume * sum(terms)


def exact_derivatives(kind: Compartments, theta: dict, row: dict):
    """Value, gradient and Hessian by central differences of step 1e-20 (error 1e-40); ka moves by 1e-50 off any equality."""
    with decimal.localcontext() as context:
        context.prec = 120
        step = Decimal("1e-20")
        row = {name: Decimal(x) for name, x in row.items()}
        at = {name: Decimal(x) for name, x in theta.items()}
        if "ka" in at:
            at["ka"] *= 1 + Decimal("1e-50")
        names = list(at)

        def f(**moves):
            return textbook(kind, {n: x + moves.get(n, 0) * step for n, x in at.items()}, row)

        value = f()
        gradient = [(f(**{n: 1}) - f(**{n: -1})) / (2 * step) for n in names]
        hessian = np.empty((len(names), len(names)))
        for (i, a), (j, b) in itertools.combinations_with_replacement(enumerate(names), 2):
            if i == j:
                second = (f(**{a: 1}) - 2 * value + f(**{a: -1})) / step**2
            else:
                corners = [r * s * f(**{a: r, b: s}) for r in (1, -1) for s in (1, -1)]
                second = sum(corners) / (4 * step**2)
            hessian[i, j] = hessian[j, i] = float(second)
        return float(value), np.array(gradient, float), hessian


def assert_exact(model, theta, row):
    """Derivatives in log parameters: to 1e-8 each, but for what is below 1e-5 of the largest, to 1e-13 of that."""
    names = model.parameters
    x = np.array([theta[n] for n in names])
    got = derivatives(model)(x, row)
    exact = exact_derivatives(compartments_of(model), {n: theta[n] for n in names}, row)
    scales = (1.0, x, np.outer(x, x))
    largest = max(np.max(np.abs(s * e)) for s, e in zip(scales, exact, strict=True))
    for s, mine, true in zip(scales, got, exact, strict=True):
        np.testing.assert_allclose(s * mine, s * true, rtol=1e-8, atol=1e-13 * largest, err_msg=f"{model!r}: {theta}, {row}")


@pytest.mark.parametrize("name", ["oral1cpt", "oral1cpt_k", "oral2cpt"])
def test_absorption_meets_elimination(name):
    model, theta = curve(name), parameters_of(curve(name))
    if name == "oral2cpt":
        meetings = [float(rate) for rate in two_rates(theta)[0]]
    else:
        meetings = [theta["k"] if "k" in theta else theta["CL"] / theta["V"]]
    for rate, gap, t in itertools.product(meetings, GAPS, (0.0, 1e-6, 4.0, 60.0)):
        assert_exact(model, theta | {"ka": rate * (1 + gap)}, {"time": t, "dose": 100.0})


@pytest.mark.parametrize("name", LAGGED)
def test_values_gradients_and_hessians_are_exact(name):
    rng = np.random.default_rng(3)
    model = curve(name)
    for t in (0.0, 3.0, *rng.uniform(0, 40, size=4)):
        row = {"time": float(t), "dose": 100.0, "duration": float(rng.uniform(0.5, 20))}
        assert_exact(model, parameters_of(model, rng), row)


@pytest.mark.parametrize(("V2", "Q"), [(9e-4, 1.889e-4), (1e-3, 1e-6), (1e5, 1e-3), (1e5, 500.0)])
@pytest.mark.parametrize("name", ["bolus2cpt", "oral2cpt"])
def test_two_rates_may_nearly_meet_or_lie_far_apart(name, V2, Q):
    model = curve(name)
    theta = {n: TYPICAL[n] for n in model.parameters} | {"Q": Q, "V2": V2}
    for t in (0.3, 20.0):
        x = np.array([theta[n] for n in model.parameters])
        got = derivatives(model)(x, {"time": t, "dose": 100.0})
        exact = exact_derivatives(compartments_of(model), theta, {"time": t, "dose": 100.0})
        np.testing.assert_allclose(got[0], exact[0], rtol=1e-13)
        np.testing.assert_allclose(x * got[1], x * exact[1], atol=1e-12 * np.max(np.abs(x * exact[1])))
        np.testing.assert_allclose(np.outer(x, x) * got[2], np.outer(x, x) * exact[2], atol=1e-9 * exact[0])


@settings(max_examples=300, deadline=None)
@given(a=st.floats(-60, 5), gap=st.floats(-1, 1), exponent=st.integers(-16, 2))
def test_divided_difference_of_the_exponential(a, gap, exponent):
    b = a + gap * 10.0**exponent
    with decimal.localcontext() as context:
        context.prec = 400
        x, y = Decimal(a), Decimal(b)
        exact = float(x.exp() if x == y else (x.exp() - y.exp()) / (x - y))
    got = float(exp_difference(a, b))
    assert got == float(exp_difference(b, a))
    np.testing.assert_allclose(got, exact, rtol=4e-15 * max(1, abs(a), abs(b)))


# -- matrix exponentials --------------------------------------------------------------------------


def propagated(kind: Compartments, p: dict, doses: list, at: np.ndarray) -> np.ndarray:
    """Concentrations of the linear system with states depot, central, peripheral and infusion rate, from event to event."""
    central = p["V1"] if kind.count == 2 else p["V"]
    k10 = p["k"] if kind.by_rate else p["CL"] / central
    k12, k21 = (p["Q"] / central, p["Q"] / p["V2"]) if kind.count == 2 else (0.0, 0.0)
    ka = p.get("ka", 0.0)
    A = np.array([[-ka, 0, 0, 0], [ka, -k10 - k12, k21, 1], [0, k12, -k21, 0], [0, 0, 0, 0]])
    state_of = {"oral": 0, "bolus": 1, "infusion": 3}[kind.route]
    events = [(0.0, 0.0)]
    for time, amount, duration in doses:
        start = time + p.get("Tlag", 0.0)
        if kind.route == "infusion":
            events += [(start, amount / duration), (start + duration, -amount / duration)]
        else:
            events.append((start, amount))
    clock, jumps = np.array(sorted(events)).T
    states = [np.zeros(4)]
    for jump, propagator in zip(jumps[1:], expm(A * np.diff(clock)[:, None, None]), strict=True):
        states.append(propagator @ states[-1] + jump * np.eye(4)[state_of])
    last = np.searchsorted(clock, at, side="right") - 1
    return (expm(A * (at - clock[last])[:, None, None]) @ np.array(states)[last][:, :, None])[:, 1, 0] / central


@pytest.mark.parametrize("name", LAGGED)
def test_no_lag_time_is_a_lag_of_zero(name):
    rng = np.random.default_rng(6)
    lagged, plain = curve(name), curve(name.removesuffix("_lag"))
    theta = parameters_of(plain, rng)
    rows = {"time": jnp.asarray([-1.0, 0.0, *rng.uniform(0, 40, size=6)]), "dose": jnp.full(8, 3.0), "duration": jnp.full(8, 5.0)}
    got, want = (jax.vmap(model, in_axes=(None, 0))(theta | {"Tlag": 0.0}, rows) for model in (lagged, plain))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("name", "counts"), [("oral1cpt", (1, 2)), *((name, (3, 9)) for name in LAGGED)])
def test_repeated_doses_are_the_propagated_state(name, counts):
    rng = np.random.default_rng(4)
    model, theta = curve(name), parameters_of(curve(name), rng)
    at, duration = rng.uniform(0, 60, size=8), float(rng.uniform(1, 10))
    for count, given_amounts in zip(counts, (False, True), strict=True):
        times = np.sort(rng.uniform(0, 40, size=count))
        amounts = rng.uniform(20, 200, size=count) if given_amounts else np.full(count, 80.0)
        repeated = superposed(model, times.tolist(), amounts.tolist() if given_amounts else None)
        rows = {"time": jnp.asarray(at), "duration": jnp.full(8, duration)} | (
            {} if given_amounts else {"dose": jnp.full(8, 80.0)}
        )
        got = fast_compiled(jax.vmap(repeated, in_axes=(None, 0)))(theta, rows)
        doses = [(t, d, duration) for t, d in zip(times, amounts, strict=True)]
        np.testing.assert_allclose(got, propagated(compartments_of(model), theta, doses, at), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("count", [2, 6])
def test_derivatives_of_repeated_doses_add_up(count):
    model, times = curve("oral1cpt"), [7.0 * j for j in range(1, count + 1)]
    theta = list(parameters_of(model).values())
    for t in (3.0, 7.0, 30.0):
        got = derivatives(superposed(model, times))(theta, {"time": t})
        each = [derivatives(model)(theta, {"time": t - at}) for at in times]
        for mine, parts in zip(got, zip(*each, strict=True), strict=True):
            np.testing.assert_allclose(mine, sum(parts), rtol=1e-12, atol=1e-15)
            assert t > 7 or not np.any(mine)


# -- edges ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), list(itertools.product([*LAGGED, "oral2cpt"], [np.float32, np.float64])))
def test_edges_are_finite(name, dtype):
    model = curve(name)
    compiled = derivatives(model)
    theta = jnp.asarray([TYPICAL[n] for n in model.parameters], dtype)
    for t in (-1e3, -1e-3, 0.0, 0.7, 0.75, 0.8, 1e5, 1e8):
        got = compiled(theta, {"time": t})
        assert all(x.dtype == dtype and np.all(np.isfinite(x)) for x in got)
        if t < (TYPICAL["Tlag"] if "lag" in name else 0.0) or t >= 1e5:
            assert all(not np.any(x) for x in got)
        else:
            assert got[0] > 0 or t in (0.0, 0.75)


@pytest.mark.parametrize("name", LAGGED)
def test_single_precision(name):
    rng = np.random.default_rng(5)
    model = curve(name)
    compiled = derivatives(model)
    theta = np.array(list(parameters_of(model, rng).values()))
    for t in (0.9, 3.0, 12.0):
        double, single = (compiled(theta.astype(dtype), {"time": t}) for dtype in (np.float64, np.float32))
        for scale, mine, exact in zip((1.0, theta, np.outer(theta, theta)), single, double, strict=True):
            np.testing.assert_allclose(scale * mine, scale * exact, rtol=1e-4, atol=1e-4 * float(double[0]))


def test_infusion_of_no_duration_is_a_bolus():
    theta = parameters_of(curve("bolus2cpt"))
    bolus = derivatives(curve("bolus2cpt"))
    infusion = derivatives(curve("infusion2cpt").with_columns(duration=0))
    for t in (-1.0, 0.0, 3.0):
        both = (f(list(theta.values()), {"time": t}) for f in (infusion, bolus))
        for mine, exact in zip(*both, strict=True):
            np.testing.assert_allclose(mine, exact, rtol=1e-12)


@pytest.mark.parametrize(("name", "count"), [("bolus1cpt", 1), ("bolus2cpt", 2), ("infusion1cpt", 2), ("infusion2cpt", 4),
                                             ("oral1cpt", 2), ("oral1cpt_lag", 2), ("oral2cpt", 3)])  # fmt: skip
@pytest.mark.parametrize("gradient", [False, True])
def test_exponentials_are_few(name, count, gradient):
    model = curve(name)
    f = jax.value_and_grad(model) if gradient else model
    theta = {n: jnp.full(64, TYPICAL[n]) for n in model.parameters}
    rows = {"time": jnp.linspace(0, 9, 64), "dose": jnp.ones(64), "duration": jnp.ones(64)}
    text = jax.jit(jax.vmap(f)).lower(theta, rows).compile().as_text()
    assert text is not None and text.count(" exponential(") == count and "exponential-minus-one" not in text


# -- other curves -----------------------------------------------------------------------------------

WRITTEN_OUT = {
    "emax": (lambda x, Emax, EC50: Emax * x / (EC50 + x), (7.0, 3.0)),
    "emax_baseline": (lambda x, E0, Emax, EC50: E0 + Emax * x / (EC50 + x), (2.0, -1.0, 3.0)),
    "sigmoid_emax": (lambda x, Emax, EC50, gamma: Emax * x**gamma / (EC50**gamma + x**gamma), (7.0, 3.0, 2.5)),
    "sigmoid_emax_baseline": (
        lambda x, E0, Emax, EC50, gamma: E0 + Emax * x**gamma / (EC50**gamma + x**gamma),
        (2.0, 7.0, 3.0, 0.4),
    ),
    "logistic_growth": (lambda x, Asym, xmid, scal: Asym / (1 + np.exp(-(x - xmid) / scal)), (200.0, 4.0, 1.5)),
    "gompertz_growth": (lambda x, Asym, xmid, k: Asym * np.exp(-np.exp(-k * (x - xmid))), (200.0, 4.0, 0.7)),
    "asymptotic_growth": (lambda x, Asym, R0, k: Asym + (R0 - Asym) * np.exp(-k * x), (100.0, -8.0, 0.04)),
    "linear_plateau": (lambda x, Ymax, Xmax, slope: Ymax + slope * (x - Xmax) if x < Xmax else Ymax, (9.0, 6.0, 0.3)),
    "polynomial1": (lambda x, a, b: a + b * x, (1.0, -2.0)),
    "polynomial2": (lambda x, a, b, c: a + b * x + c * x**2, (1.0, -2.0, 0.5)),
    "polynomial3": (lambda x, a, b, c, d: a + b * x + c * x**2 + d * x**3, (1.0, -2.0, 0.5, 0.1)),
}


@pytest.mark.parametrize("name", sorted(set(CURVES) - set(PK)))
def test_curves_as_written(name):
    f, theta = WRITTEN_OUT[name]
    compiled = derivatives(curve(name))
    for x in (0.0, 0.5, 5.0, 12.0):
        value, gradient, hessian = compiled(theta, {"time": x})
        np.testing.assert_allclose(value, f(x, *theta), rtol=1e-13)
        steps = 1e-5 * np.diag(theta)
        slope = [(f(x, *(theta + s)) - f(x, *(theta - s))) / (2 * s.sum()) for s in steps]
        np.testing.assert_allclose(gradient, slope, rtol=1e-6, atol=1e-9)
        bend = [(compiled(theta + s, {"time": x})[1] - compiled(theta - s, {"time": x})[1]) / (2 * s.sum()) for s in steps]
        np.testing.assert_allclose(hessian, bend, rtol=1e-5, atol=1e-7)
    for dtype, x in itertools.product((np.float32, np.float64), (0.0, 1e-30, 1e3, 1e5)):
        got = compiled(jnp.asarray(theta, dtype), {"time": x})
        assert all(part.dtype == dtype and np.all(np.isfinite(part)) for part in got)


def test_growth_is_finite_far_before_its_middle():
    for name in ("logistic_growth", "gompertz_growth"):
        for part in derivatives(curve(name))([200.0, 4.0, 0.7], {"time": -1e4}):
            assert np.all(np.abs(part) < 1e-12)


# -- curves as objects ------------------------------------------------------------------------------


def test_equal_curves_share_one_compilation():
    traced = []

    def f(model, theta, row):
        traced.append(model)
        return model(theta, row)

    compiled = jax.jit(f, static_argnums=0)
    theta, row = {n: TYPICAL[n] for n in ("ka", "V", "CL")}, {"time": 3.0, "dose": 10.0}
    pairs = [
        lambda: curve("oral1cpt"),
        lambda: superposed(curve("oral1cpt"), [0, 12]),
        lambda: superposed(curve("oral1cpt"), [0, 12], [5, 5]),
        lambda: curve("oral1cpt").with_columns(dose=4.0),
    ]
    for make in pairs:
        assert make() == make() and hash(make()) == hash(make())
        assert compiled(make(), theta, row) == compiled(make(), theta, row)
    assert len(traced) == len(pairs) == len(set(traced))


@pytest.mark.parametrize("name", CURVES)
def test_curves_say_what_they_need(name):
    model = curve(name)
    assert model.name == name and set(model.positive) <= set(model.parameters)
    assert repr(model) == f"{name}({', '.join(model.parameters)} | {', '.join(model.columns)})"
    theta, row = dict.fromkeys(model.parameters, 1.0), dict.fromkeys(model.columns, 1.0)
    assert jnp.shape(model(theta, row)) == ()
    for absent in model.parameters:
        with pytest.raises(ValueError, match=f"parameter {absent}"):
            model({n: x for n, x in theta.items() if n != absent}, row)
    for absent in model.columns:
        with pytest.raises(ValueError, match=f"column {absent}"):
            model(theta, {n: x for n, x in row.items() if n != absent})


def test_errors():
    with pytest.raises(ValueError, match="did you mean 'oral1cpt'.*Known: bolus1cpt, "):
        curve("oral_1cpt")
    with pytest.raises(ValueError, match="no structural model is named 'xyz'. Known"):
        curve("xyz")
    with pytest.raises(ValueError, match="only a curve that reads 'time' and 'dose'"):
        superposed(curve("emax"), [0.0])
    with pytest.raises(ValueError, match="at least one"):
        superposed(curve("oral1cpt"), [])
    with pytest.raises(ValueError, match="finite"):
        superposed(curve("oral1cpt"), [0.0, np.nan])
    with pytest.raises(ValueError, match="1 amounts for 2 times"):
        superposed(curve("oral1cpt"), [0.0, 1.0], [3.0])
    with pytest.raises(ValueError, match="does not read the column duration"):
        curve("oral1cpt").with_columns(duration=2.0)
    with pytest.raises(ValueError, match="must not be negative"):
        polynomial(-1)
    with pytest.raises(ValueError, match="are not parameters"):
        Curve(lambda p, row: p["a"], ("a",), positive=("b",))
