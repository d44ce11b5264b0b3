"""Langevin steps along Gaussians, whose variance at any step, friction and noise of scores is known, and what a fit keeps."""

import numpy as np
import pytest

import margaux as mx
from margaux.esteps import Noise
from margaux.families.variational.collecting import Collected
from margaux.families.variational.draws import Shared
from margaux.families.variational.langevin import Cyclical, Langevin, Levelling
from margaux.families.variational.likelihoods import Gaussian
from margaux.families.variational.model import Variational
from margaux.families.variational.networks import Network
from margaux.families.variational.posterior import GaussianPosterior
from margaux.families.variational.priors import Normal

#: curvatures of the log posterior an observation, which are those of the squares of the columns of x
CURVATURES = np.array([0.2, 1.0, 3.0])
N = 60


def gaussian(n_blocks, temperature=1.0):
    """A linear regression whose blocks have one curvature, and scores that differ by a constant alone."""
    size = N // n_blocks
    rng = np.random.default_rng(0)
    data = []
    for _ in range(n_blocks):
        q = np.linalg.qr(rng.normal(size=(size, 3)))[0] * np.sqrt(CURVATURES * size)
        data.append((q, q @ rng.normal(size=3) * 0.3 + 0.1 * rng.normal(size=size)))
    x, y = (np.stack([one[i] for one in data]) for i in (0, 1))
    network, prior = Network(lambda w, x: x @ w), Normal(1e6)
    model = Variational(network, Gaussian(1.0, False), prior, GaussianPosterior("all"), N, n_blocks, Shared(),
                        temperature=temperature)  # fmt: skip
    return model, {"x": x, "y": y, "weight": np.ones((n_blocks, size))}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("friction", "step", "n_blocks", "temperature"), [
    (0.1, 0.1, 1, 1.0), (0.5, 0.6, 1, 0.3), (1.0, 0.3, 1, 1.0), (0.5, 0.1, 4, 1.0), (1.0, 0.2, 4, 2.0),
])  # fmt: skip
def test_variances_are_those_of_the_step_and_of_the_noise_of_scores(friction, step, n_blocks, temperature):
    model, data = gaussian(n_blocks, temperature)
    moves = Langevin(mx.Constant(step), friction)
    fit = mx.fit(model, data, moves, Noise(1), key=1, params=model.start(np.zeros(3), 1e-6), n_iter=40_000,
                 batch_size=None if n_blocks == 1 else 1, sampling="uniform", progress=False)  # fmt: skip
    means = np.stack([np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(data["x"], data["y"], strict=True)])
    centre, noise = means.mean(axis=0), means.var(axis=0) * CURVATURES**2
    chain = fit.trace["params"][2000:, 0, [fit.names.index(f"mean[{j}]") for j in range(3)]]
    exact = temperature / N / CURVATURES * (1 + step * noise * N / (2 * friction * temperature))
    exact = exact / (1 - step * CURVATURES / (2 * (2 - friction)))
    batches = ((chain - centre) ** 2).reshape(40, -1, 3).mean(axis=1)
    error = batches.std(axis=0, ddof=1) / np.sqrt(40)
    assert np.all(np.abs(batches.mean(axis=0) - exact) < 4.5 * error) and np.all(error < 0.2 * exact)
    assert np.all(np.abs(chain.mean(axis=0) - centre) < 0.2 * np.sqrt(exact))
    if n_blocks == 1:  # the momentum is a little hotter by the length of the step alone
        found = np.mean(fit.trace["kinetic"][2000:])
        own = 1 / (1 - step * CURVATURES / (2 * (2 - friction)))
        assert found == pytest.approx(np.mean(own), rel=0.05)


@pytest.mark.usefixtures("double")
def test_without_heat_it_is_gradient_descent_with_momentum():
    model, data = gaussian(1)
    start = model.start(np.ones(3), 1e-6)
    fit = mx.fit(model, data, Langevin(mx.Constant(0.1), 0.1, hot=False), Noise(1), params=start, n_iter=50, progress=False)
    x, y, w, v = data["x"][0], data["y"][0], np.ones(3), np.zeros(3)
    for _ in range(50):
        v = 0.9 * v + 0.1 * x.T @ (y - x @ w) / N
        w = w + v
    np.testing.assert_allclose(fit.params["mean"], w, atol=1e-5)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("n_blocks", [1, 4])
def test_what_is_kept_are_the_iterates(n_blocks, tmp_path):
    model, data = gaussian(n_blocks)
    at = np.array([1, 33, 34, 70])

    def fitted(n_iter, **settings):
        moves = Collected(Langevin(Cyclical(0.1, 35), 0.1), at, without=("log_sigma",))
        return mx.fit(model, data, moves, Noise(1), params=model.start(np.zeros(3), 1e-6), n_iter=n_iter,
                      batch_size=None if n_blocks == 1 else 1, progress=False, **settings)  # fmt: skip

    fit = fitted(70)
    assert list(fit.left) == ["mean"]
    places = [fit.names.index(f"mean[{j}]") for j in range(3)]
    np.testing.assert_array_equal(fit.left["mean"][0], fit.trace["params"][at - 1, 0][:, places])
    # A checkpoint has what was kept before it.
    fitted(40, checkpoint=tmp_path / "fit.npz")
    again = fitted(70, checkpoint=tmp_path / "fit.npz")
    np.testing.assert_array_equal(again.left["mean"], fit.left["mean"])
    assert mx.fit(model, data, mx.soul(0.01), Noise(1), params=model.start(np.zeros(3), 0.1), n_iter=3, progress=False).left == ()


def test_learned_scales_follow_their_scores():
    """By weights that hardly move: the noise is that of the residuals, and steps are shorter where it is small."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    y = x @ [1.0, -1.0] + 0.2 * rng.normal(size=200)
    model = mx.BayesianRegressor(method="sgmcmc", network=lambda w, x: x @ w, weights=np.array([1.0, -1.0]), temperature=1.0,
                                 standardize=False, n_members=1, epochs=1500, verbose=False).fit(x, y)  # fmt: skip
    residual = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    # The highest marginal likelihood counts the two weights.
    assert model.params_["noise"] == pytest.approx(np.sqrt(np.sum(residual**2) / 198), rel=0.02)
    assert np.std(model._kept.scales["log_noise"]) < 0.05 and model.certificate_["heat"].level == "pass"


def test_steps_of_cycles_and_of_swag():
    schedule = Cyclical(2.0, 12.5)
    assert [float(schedule(k)) for k in (1, 26)] == [2.0, 2.0]
    assert float(schedule(13)) < 0.05 and np.all(np.diff([float(schedule(k)) for k in range(1, 13)]) < 0)
    level = Levelling(1.0, 0.1, 10)
    assert float(level(1)) == 1.0 and float(level(11)) == float(level(99)) == pytest.approx(0.1)
