"""`BayesianClassifier` and `BayesianRegressor`: answers, files, resumption, bad input."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import special, stats
from sklearn.base import clone

import margaux as mx
from margaux.engine.callbacks import Checkpoint
from margaux.families.variational import scores
from margaux.families.variational.architectures import LeNet5, Perceptron
from margaux.families.variational.priors import Density, Laplace, Normal, ScaleMixture


@pytest.fixture(scope="module")
def table():
    """Two interleaved classes, with labels."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2)) * [1.0, 30.0] + [0.0, 500.0]
    return x, np.where(x[:, 0] * (x[:, 1] - 500) > 0, "same", "other")


@pytest.fixture(scope="module")
def classifier(table):
    return mx.BayesianClassifier(temperature=1.0, epochs=150, step=0.01, verbose=False).fit(*table)


def test_answers_of_a_classifier(table, classifier):
    x, y = table
    probabilities = classifier.predict_proba(x)
    assert probabilities.shape == (400, 2) and np.allclose(probabilities.sum(axis=1), 1)
    assert list(classifier.classes_) == ["other", "same"] and classifier.score(x, y) > 0.9
    numbers = (y == "same").astype(int)
    wanted = np.mean(np.log(probabilities[np.arange(400), numbers]))
    seen = classifier.evaluate(x, y)
    assert seen["log_score"] == pytest.approx(wanted) and seen["accuracy"] == classifier.score(x, y)
    assert seen["elbo"] * 400 == pytest.approx(classifier.elbo_, rel=1e-6) and seen["elbo"] < seen["log_score"]
    assert classifier.predict_std(x).shape == (400, 2) and classifier.converged_ and classifier.n_features_in_ == 2
    assert len(classifier.history_) == 150
    assert list(classifier.summary()["weights"]) == [200, 100, 200, 2]
    low, high = np.moveaxis(classifier.conf_int(0.9)["layers.1.bias"], -1, 0)
    np.testing.assert_allclose(high - low, 2 * stats.norm.ppf(0.95) * classifier.stderr_["layers.1.bias"], rtol=1e-5)


def test_probabilities_are_means_over_the_draws(table, classifier):
    """Against a large number of draws made by hand."""
    x, _ = table
    some = (x[:20] - x.mean(axis=0)) / x.std(axis=0)
    draws = {name: value[0] for name, value in classifier.posterior_draws(3000).items()}
    hidden = np.tanh(np.einsum("nhp,bp->nbh", draws["layers.0.weight"], some) + draws["layers.0.bias"][:, None])
    logits = np.einsum("noh,nbh->nbo", draws["layers.1.weight"], hidden) + draws["layers.1.bias"][:, None]
    by_hand = special.softmax(logits, axis=2)
    error = np.sqrt(2) * by_hand.std(axis=0) / np.sqrt(3000)
    assert np.all(np.abs(classifier.predict_proba(x[:20], 3000) - by_hand.mean(axis=0)) < 5 * error + 1e-6)


def test_the_elbo_is_that_of_many_draws(table, classifier):
    """Of the expected log-likelihood by draws made by hand, less the closed divergence."""
    x, y = table
    scaled, numbers = (x - x.mean(axis=0)) / x.std(axis=0), (y == "same").astype(int)
    draws = {name: value[0] for name, value in classifier.posterior_draws(500).items()}
    hidden = np.tanh(np.einsum("nhp,bp->nbh", draws["layers.0.weight"], scaled) + draws["layers.0.bias"][:, None])
    logits = np.einsum("noh,nbh->nbo", draws["layers.1.weight"], hidden) + draws["layers.1.bias"][:, None]
    sums = special.log_softmax(logits, axis=2)[:, np.arange(400), numbers].sum(axis=1)
    means, deviations = classifier.params_, classifier.stderr_
    kl = sum(np.sum(-np.log(s) + (s**2 + means[name] ** 2) / 2 - 0.5) for name, s in deviations.items())
    assert classifier.elbo_ == pytest.approx(sums.mean() - kl, abs=5 * sums.std() * np.sqrt(1 / 500 + 1 / 100))


def test_scores_of_predictions():
    y = np.array([0, 1, 1, 0])
    p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    assert scores.log_score(y, p) == pytest.approx(np.mean(np.log([0.9, 0.8, 0.4, 0.7])))
    assert scores.brier_score(y, p) == pytest.approx(np.mean([0.02, 0.08, 0.72, 0.18]))
    # Bins of a tenth: each observation has its own, and is right but for the third.
    assert scores.expected_calibration_error(y, p, bins=10) == pytest.approx(np.mean([0.1, 0.2, 0.6, 0.3]))


def test_answers_of_a_regressor():
    rng = np.random.default_rng(1)
    x = rng.uniform(-2, 2, size=(400, 1))
    y = 1000 + 50 * np.sin(2 * x[:, 0]) + 10 * rng.normal(size=400)
    model = mx.BayesianRegressor(
        temperature=1.0, epochs=300, step=0.01, verbose=False, early_stopping=True, n_iter_no_change=50
    ).fit(x, y)
    assert model.score(x, y) > 0.85 and 7 < model.params_["noise"] < 16
    grid = np.linspace(-2, 2, 50)[:, None]
    assert np.abs(model.predict(grid) - 1000 - 50 * np.sin(2 * grid[:, 0])).mean() < 8
    far = model.predict_std(np.array([[0.0], [8.0]]))
    assert far[1] > far[0] > 10  # it knows what it does not know
    inside = np.abs(y - model.predict(x)) < 2 * model.predict_std(x)
    assert 0.9 < inside.mean() <= 1
    seen = model.evaluate(x, y)
    assert -5 < seen["log_score"] < -3.3 and seen["elbo"] < seen["log_score"] and "validation" in model.history_


def test_counts():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 2))
    rate = np.exp(1 + 0.6 * x[:, 0])
    model = mx.BayesianRegressor(temperature=1.0, likelihood="poisson", epochs=200, step=0.01, verbose=False).fit(
        x, rng.poisson(rate)
    )
    assert np.corrcoef(model.predict(x), rate)[0, 1] > 0.93 and np.all(model.predict_std(x) ** 2 > model.predict(x) * 0.99)


def test_pruning(table, classifier):
    x, y = table
    half = classifier.pruned(0.5)
    kept = np.concatenate([np.ravel(v) for v in half.stderr_.values()]) > 0
    assert kept.mean() == pytest.approx(0.5, abs=0.01)
    order = np.argsort(classifier.signal_to_noise())
    assert not kept[order[:100]].any() and kept[order[-100:]].all()
    assert half.score(x, y) > 0.85 and np.isnan(half.evaluate(x, y)["elbo"]) and classifier.signal_to_noise().min() > 0


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "prior", [1.0, *(pytest.param(one, marks=SLOW) for one in (Laplace(0.5), ScaleMixture())), Normal(1.0, learned=True)]
)
def test_files(table, tmp_path, prior):
    x, y = table
    model = mx.BayesianClassifier(temperature=1.0, epochs=3, prior=prior, verbose=False).fit(x, y)
    model.save(tmp_path / "model.npz")
    back = mx.BayesianClassifier.load(tmp_path / "model.npz")
    assert np.array_equal(back.predict_proba(x), model.predict_proba(x)) and list(back.predict(x)) == list(model.predict(x))
    assert back.evaluate(x, y)["elbo"] == pytest.approx(model.evaluate(x, y)["elbo"])
    pd.testing.assert_frame_equal(back.history_, model.history_)
    with pytest.raises(ValueError, match="holds a BayesianClassifier"):
        mx.BayesianRegressor.load(tmp_path / "model.npz")


def test_files_of_an_own_network(table, tmp_path):
    x, y = table
    network = Perceptron(2, (5,), 2, key=jax.random.key(3))
    model = mx.BayesianClassifier(temperature=1.0, network=network, epochs=3, verbose=False).fit(x, y)
    model.save(tmp_path / "model.npz")
    with pytest.raises(ValueError, match="was not given by name; pass network="):
        mx.BayesianClassifier.load(tmp_path / "model.npz")
    back = mx.BayesianClassifier.load(tmp_path / "model.npz", network=network)
    assert np.array_equal(back.predict_proba(x), model.predict_proba(x))
    own = mx.BayesianClassifier(
        temperature=1.0, network=network, prior=Density(lambda w: jnp.zeros(())), epochs=1, verbose=False
    ).fit(x, y)
    with pytest.raises(ValueError, match="cannot hold the prior Density"):
        own.save(tmp_path / "other.npz")


@pytest.mark.parametrize("method", ["adam", pytest.param("misso", marks=SLOW)])
def test_a_fit_goes_on_from_the_middle_of_an_epoch(table, tmp_path, monkeypatch, method):
    settings = {"method": method, "epochs": 3, "n_blocks": 50, "verbose": False, "n_draws": mx.Growth(0, 1, 1, epoch=50)}
    whole = mx.BayesianClassifier(temperature=1.0, **settings).fit(*table)
    path, calls = tmp_path / "fit.npz", []
    original = Checkpoint.__call__

    def cut(self, progress):
        original(self, progress)
        calls.append(progress.iteration)
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "__call__", cut)
    part = mx.BayesianClassifier(temperature=1.0, **settings).fit(*table, checkpoint=Checkpoint(path, seconds=0))  # type: ignore
    assert "interrupted" in part.message_ and 0 < calls[0] < 150 and calls[0] % 50
    monkeypatch.setattr(Checkpoint, "__call__", original)
    rest = mx.BayesianClassifier(temperature=1.0, **settings).fit(*table, checkpoint=path)
    for name, value in whole.params_.items():
        assert np.array_equal(value, rest.params_[name])


@pytest.mark.parametrize("change", [{"prior": 0.1}, {"y": True}])
def test_a_checkpoint_of_another_fit_is_refused(table, tmp_path, change):
    x, y = table
    mx.BayesianClassifier(temperature=1.0, epochs=2, verbose=False).fit(x, y, checkpoint=tmp_path / "fit.npz")
    other = y[::-1] if change.pop("y", False) else y
    with pytest.raises(ValueError, match="belongs to another fit: (the data|model)"):
        mx.BayesianClassifier(temperature=1.0, epochs=2, verbose=False, **change).fit(x, other, checkpoint=tmp_path / "fit.npz")
    with pytest.raises(ValueError, match="a checkpoint does not hold what early stopping has seen"):
        mx.BayesianClassifier(temperature=1.0, early_stopping=True).fit(x, y, checkpoint=tmp_path / "fit.npz")


@pytest.mark.parametrize(
    "method", ["adam", "bbb", "saga", *(pytest.param(one, marks=SLOW) for one in ("ivon", "adagrad", "momentum", "sag"))]
)
def test_steps_by_a_schedule(table, method):
    model = mx.BayesianClassifier(
        temperature=1.0, method=method, step=mx.Polynomial(0.05, 0.6, 20.0), epochs=5, verbose=False
    ).fit(*table)
    assert np.isfinite(model.elbo_)


def test_tables_of_awkward_numbers():
    """Columns far from zero in single precision, constant ones, indicators of a byte, columns in another order."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=3000)
    far = (1e5 + np.column_stack([y + 0.1 * rng.normal(size=3000), np.full(3000, 0.0)])).astype(np.float32)
    model = mx.BayesianClassifier(temperature=1.0, epochs=20, step=0.01, verbose=False).fit(far, y)
    moved = far + np.array([0, 1], np.float32)
    assert model.score(far, y) > 0.95 and model.score(moved, y) > 0.9
    bytes_ = np.eye(2, dtype=np.uint8)[y]
    assert mx.BayesianClassifier(temperature=1.0, epochs=20, step=0.01, verbose=False).fit(bytes_, y).score(bytes_, y) == 1
    frame = pd.DataFrame(rng.normal(size=(40, 2)), columns=pd.Index(["a", "b"]))
    model = mx.BayesianClassifier(temperature=1.0, epochs=1, verbose=False).fit(frame, y[:40])
    with pytest.raises(ValueError, match=r"X has columns \['b', 'a'\], and the fit had \['a', 'b'\]"):
        model.predict(frame[["b", "a"]])


def test_early_stopping_keeps_the_best(table):
    x, y = table
    model = mx.BayesianClassifier(
        temperature=1.0, epochs=400, method="bbb", n_blocks=40, early_stopping=True, n_iter_no_change=3, verbose=False
    ).fit(x, y)
    history = model.history_
    assert model.n_iter_ < 400 * 40 and "stopped early" in model.message_
    assert len(history) - 1 - history["validation"].to_numpy().argmax() == 3
    held = np.random.default_rng(0).permutation(400)[:40]
    assert model.evaluate(x[held], y[held])["elbo"] == pytest.approx(history["validation"].max(), rel=1e-6)


class Convolutional(eqx.Module):
    """A user's own, of equinox's layers."""

    convolution: eqx.nn.Conv2d
    linear: eqx.nn.Linear

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.convolution = eqx.nn.Conv2d(1, 4, 3, stride=2, key=a)
        self.linear = eqx.nn.Linear(36, 2, key=b)

    def __call__(self, x):
        return self.linear(jnp.ravel(jax.nn.relu(self.convolution(jnp.moveaxis(x, -1, 0)))))


@pytest.mark.parametrize("draws", ["flipout", "local", *(pytest.param(one, marks=SLOW) for one in ("shared", "observation"))])
def test_a_network_of_ones_own(draws):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 8, 8, 1))
    y = x[:, :4].sum(axis=(1, 2, 3)) > x[:, 4:].sum(axis=(1, 2, 3))
    settings: dict[str, Any] = {"temperature": 1.0, "epochs": 60, "step": 0.02, "batch_size": 50, "verbose": False}
    model = mx.BayesianClassifier(network=Convolutional(jax.random.key(0)), draws=draws, **settings).fit(x, y)
    assert model.score(x, y) > 0.7


def test_pixels_are_divided_by_255():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, size=(60, 6, 6, 1)).astype(np.uint8)
    y = x[:, :3].mean(axis=(1, 2, 3)) > x[:, 3:].mean(axis=(1, 2, 3))
    one, other = (mx.BayesianClassifier(temperature=1.0, epochs=3, verbose=False).fit(images, y) for images in (x, (x / 255)))
    np.testing.assert_allclose(one.predict_proba(x), other.predict_proba(x / 255), rtol=2e-4)
    with pytest.raises(ValueError, match="X holds numbers, and the fit had uint8 pixels"):
        one.predict(x / 255)


def test_settings_and_clones():
    model = mx.BayesianRegressor(temperature=1.0, epochs=7, likelihood="poisson")
    copy: Any = clone(model)
    assert copy.get_params() == model.get_params() and model.get_params()["epochs"] == 7


X, Y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.where(np.arange(60).reshape(20, 3) == 7, np.nan, X)}, r"not finite, the first at \(2, 1\)"),
        ({"X": X[:, 0]}, "pass \\(n, p\\)"), ({"X": np.zeros((0, 3))}, "no observations"),
        ({"X": np.array([["a"] * 3] * 20)}, "X must hold numbers"),
        ({"y": Y[:5]}, "one entry an observation"), ({"y": np.zeros(20)}, "y has one class"),
        ({"y": np.linspace(0, 1, 20)}, "use mx.BayesianRegressor"), ({"y": np.where(Y, np.nan, 1.0)}, r"y\[1\] is missing"),
        ({"n_blocks": 21}, "n_blocks = 21 exceeds the 20 observations"), ({"n_blocks": 0}, "n_blocks"),
        ({"sigma": 0.0}, "sigma, the standard deviation at the start, must be positive"), ({"sigma": -1.0}, "must be positive"),
        ({"network": "lenet"}, 'network must be "tanh"'), ({"network": "lenet5"}, "square images"),
        ({"network": "tanh", "method": "newton"}, "method must be one of"), ({"draws": "all"}, "draws must be one of"),
        ({"spread": "layer"}, "spread must be"), ({"prior": -1.0}, "scale must be positive"),
        ({"network": lambda w, x: x @ w, "weights": np.zeros((3, 3))}, r"outputs of shape \(3,\) an observation"),
        ({"network": lambda w, x: x @ w, "weights": np.zeros((2, 2))}, "fails on an observation of shape"),
        ({"network": lambda w, x: x @ w}, "together with weights="),
        ({"network": lambda w, x: x @ w, "weights": np.full((3, 2), np.nan)}, "not finite"),
        ({"network": lambda w, x: x @ w, "weights": np.zeros((3, 2)), "draws": "flipout"}, "need to know the layers"),
        ({"draws": "local", "prior": ScaleMixture()}, "local reparameterisation makes none"),
        ({"method": "misso", "step": mx.Polynomial(1.0, 0.5)}, "step of MISSO is one number"),
        ({"epochs": 0}, "epochs"), ({"early_stopping": True, "validation_fraction": 2.0}, "validation_fraction must be"),
        ({"network": eqx.nn.Sequential([eqx.nn.Linear(3, 2, key=jax.random.key(0)), eqx.nn.Dropout(0.5)])}, "Dropout"),
    ],
)  # fmt: skip
def test_bad_input(change, message):
    change = {"X": X, "y": Y, "epochs": 1, "verbose": False} | change
    x, y = change.pop("X"), change.pop("y")
    with pytest.raises((ValueError, TypeError), match=message):
        mx.BayesianClassifier(**change).fit(x, y)


@pytest.mark.parametrize("home, recipe", [("flax.linen", "module.apply"), ("flax.nnx", "nnx.merge")])
@pytest.mark.parametrize("weights", [None, {"kernel": np.ones((2, 2))}])
def test_modules_of_flax_are_told_how_to_come(home, recipe, weights):
    network = type("Perceptron", (type("Module", (), {"__module__": home + ".module"}),), {"__call__": lambda self, x: x})()
    with pytest.raises(TypeError, match=rf"{home} .Perceptron.*no function of its weights.*{recipe}"):
        mx.BayesianClassifier(temperature=1.0, network=network, weights=weights, verbose=False).fit(np.ones((4, 2)), [0, 1, 0, 1])


def test_batch_statistics_are_refused():
    class Normed(eqx.Module):
        linear: eqx.nn.Linear
        norm: eqx.nn.BatchNorm

    network = Normed(eqx.nn.Linear(3, 2, key=jax.random.key(0)), eqx.nn.BatchNorm(2, axis_name="batch", mode="batch"))
    with pytest.raises(ValueError, match="batch statistics couple the observations.*GroupNorm"):
        mx.BayesianClassifier(temperature=1.0, network=network, verbose=False).fit(X, Y)


def test_bad_input_of_predictions(classifier):
    with pytest.raises(ValueError, match=r"an observation of X has shape \(3,\), and \(2,\) in the fit"):
        classifier.predict(X)
    with pytest.raises(ValueError, match=r"y\[0\] = 'third' is none of the classes"):
        classifier.evaluate(np.zeros((1, 2)), ["third"])
    with pytest.raises(ValueError, match="share must be in"):
        classifier.pruned(1.0)
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        mx.BayesianClassifier().predict_proba(X)


def test_bad_counts_and_images():
    with pytest.raises(ValueError, match=r"y\[3\] = -1 is no count"):
        mx.BayesianRegressor(temperature=1.0, likelihood="poisson").fit(X, np.where(np.arange(20) == 3, -1, 2 + Y))
    with pytest.raises(ValueError, match="y is constant"):
        mx.BayesianRegressor().fit(X, np.ones(20))
    with pytest.raises(ValueError, match="LeNet-5 is for images of 28 x 28 or 32 x 32 pixels, got 8 x 8"):
        mx.BayesianClassifier(temperature=1.0, network="lenet5").fit(np.zeros((20, 8, 8, 1)), Y)
    with pytest.raises(TypeError, match="fails on an observation of shape"):
        mx.BayesianClassifier(temperature=1.0, network=LeNet5(key=jax.random.key(0))).fit(np.zeros((20, 8, 8, 1)), Y)


def test_a_fit_that_diverges_says_so(table):
    with pytest.warns(RuntimeWarning, match="diverged"):
        settings: dict[str, Any] = {"temperature": 1.0, "method": "bbb", "step": 1e12, "epochs": 5, "verbose": False}
        model = mx.BayesianRegressor(network=lambda w, x: (x @ w) ** 9, weights=np.ones(2), **settings)
        model.fit(table[0], table[0][:, 0])
    assert not model.converged_ and np.all(np.isfinite(model.params_["weights"]))
