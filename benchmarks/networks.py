"""Bayesian networks with nothing chosen, beside networks of point estimates, on observations that chose nothing.

    python benchmarks/networks.py [digits moons fours diabetes concrete mnist lenet5 epoch] [--splits 5]

Contestants: margaux's default; scikit-learn's network with weight decay by cross-validation; five of its networks averaged, with
its own weight decay and with that of cross-validation; and one stopped early. All have a hidden layer of 100 tanh units and
standardised columns. What is a density of numbers has the noise of residuals of cross-validation, but for margaux, which
learns its own. Means over the splits, each with its own observations to be predicted. Log scores of five splits, on two cores:

                                     digits    moons    fours  diabetes  concrete
    margaux, default                 -0.087   -0.255   -0.101    -5.450    -3.217
    weight decay by cross-validation -0.097   -0.268   -0.164    -5.431    -3.215
    five networks                    -0.099   -3.831   -0.200    -5.982    -3.840
    five networks, weight decay      -0.096   -0.267   -0.159    -5.431    -3.214
    stopped early                    -0.242   -0.552   -0.173    -5.463    -3.756

"mnist" and "lenet5" are all of MNIST, beside ten epochs of Adam in a loop of plain JAX: of a point estimate, and of independent
Gaussians by one draw of the weights a batch. Means of five splits, predictions of 30,000 images included; the area under the
curve (AUROC) is that of the entropy of predictions, of digits turned by a right angle and of noise among the tests:

    mnist                        log score  accuracy     ece  AUROC turned   noise  CPU seconds
    margaux, default                -0.066     0.979  0.0045         0.944   0.969           16
    point estimate by Adam          -0.082     0.975  0.0043         0.922   0.859            4
    Bayes by Backprop, one draw     -0.107     0.969  0.0204         0.937   0.997           19

    lenet5
    margaux, default                -0.029     0.991  0.0030         0.961   0.999          120
    point estimate by Adam          -0.041     0.988  0.0050         0.926   0.998           62
    Bayes by Backprop, one draw     -0.036     0.989  0.0100         0.967   1.000          163

"epoch": what an epoch of the tanh network takes by kinds of draws, beside Bayes by Backprop in a loop of plain JAX: 1.0 times as
long by local reparameterisation, 1.2 by draws that a batch shares, 1.5 by Flipout; a point estimate takes 0.4.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from scipy.special import entr, logsumexp
from scipy.stats import norm
from sklearn.datasets import load_diabetes, make_moons
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import margaux as mx
from margaux.datasets.images import load_mnist
from margaux.examples.digits import split
from margaux.families.variational import scores
from margaux.families.variational.architectures import named
from margaux.families.variational.networks import as_network

DECAYS = (1e-4, 1e-2, 1e-1, 0.3, 1.0, 3.0, 10.0, 30.0)
NETS, FOLDS = 5, 3


class Sample(NamedTuple):
    """Observations of a fit and to be predicted, and some that are unlike either; the network, and the number of its start."""

    x: Any
    y: Any
    x_new: Any
    y_new: Any
    apart: dict[str, Any] = {}
    network: str = "tanh"
    seed: int = 0

    @property
    def asked(self) -> Any:
        """All that is to be predicted."""
        return np.concatenate([self.x_new, *self.apart.values()])


def digits(seed: int) -> Sample:
    """scikit-learn's: 1,347 and 450."""
    own = Sample(*split(seed))
    images = np.asarray(own.x_new).reshape(-1, 8, 8)
    noise = np.random.default_rng(seed).uniform(0, images.max(), images.shape)
    apart = {"rotated": np.rot90(images, axes=(1, 2)), "noise": noise}
    return own._replace(apart={name: part.reshape(own.x_new.shape) for name, part in apart.items()})


def mnist(seed: int, network: str = "tanh") -> Sample:
    """All of MNIST, 60,000 and 10,000; a hidden layer of 100 tanh units, as MISSO's paper has it."""
    x, y = load_mnist("train")
    x_new, y_new = load_mnist("test")
    noise = np.random.default_rng(seed).integers(0, 256, x_new.shape, dtype=np.uint8)
    return Sample(x, y, x_new, y_new, {"rotated": np.rot90(x_new, axes=(1, 2)), "noise": noise}, network, seed)


def lenet5(seed: int) -> Sample:
    """All of MNIST by LeNet-5."""
    return mnist(seed, "lenet5")


def moons(seed: int) -> Sample:
    """Two moons with noise 0.3: 200 and 2,000."""
    x, y = make_moons(200, noise=0.3, random_state=seed)
    new, outcome = make_moons(2000, noise=0.3, random_state=100 + seed)
    return Sample(x, y, new, outcome)


def fours(seed: int) -> Sample:
    """4 against 9 of MNIST, of the folder MARGAUX_DATA or downloaded: 800 and 200."""
    images, labels = load_mnist()
    chosen = np.random.default_rng(seed).choice(np.flatnonzero((labels == 4) | (labels == 9)), 1000, replace=False)
    x = images[chosen].reshape(1000, -1).astype(float)
    varying = x[:800].std(axis=0) > 0
    return parted(x[:, varying], (labels[chosen] == 9).astype(int), 200, seed)


def diabetes(seed: int) -> Sample:
    """scikit-learn's: 342 and 100."""
    x, y = load_diabetes(return_X_y=True)
    return parted(x, y, 100, seed)


def concrete(seed: int) -> Sample:
    """Simulated strengths: a law of Abrams in water over cement, growing with the logarithm of the age; 400 and 600."""
    rng = np.random.default_rng(seed)
    low, high = np.array([100, 0, 120, 0, 800, 600, 1.0]), np.array([500, 300, 240, 25, 1100, 950, 365.0])
    x = low + (high - low) * rng.random((1000, 7))
    cement, slag, water, plastic, _, _, age = x.T
    strength = 110 * 0.12 ** (water / (cement + 0.5 * slag)) * np.log1p(age) / np.log(29) * (1 + 0.01 * plastic)
    return parted(x, strength + 5 * rng.normal(size=1000), 600, seed)


def parted(x: Any, y: Any, new: int, seed: int) -> Sample:
    order = np.random.default_rng(seed).permutation(len(y))
    return Sample(x[order[new:]], y[order[new:]], x[order[:new]], y[order[:new]])


# -- classes ----------------------------------------------------------------------------------


def classes(sample: Sample) -> dict[str, Callable[[], np.ndarray]]:
    """Probabilities of the classes of all that is asked, by contestant."""
    x, y, new = sample.x, sample.y, sample.asked

    def ours() -> np.ndarray:
        model = mx.BayesianClassifier(verbose=False).fit(x, y)
        print(f"    {model.message_}", flush=True)
        return model.predict_proba(new)

    # scikit-learn's advice: L-BFGS for few observations, which Adam leaves far from the minimum.
    solver: Any = "lbfgs" if len(x) < 1000 else "adam"

    def net(seed: int = 0, **settings: Any) -> Any:
        settings = {"activation": "tanh", "solver": solver, "max_iter": 3000, "random_state": seed} | settings
        return make_pipeline(StandardScaler(), MLPClassifier(**settings))

    decay = decay_of(net(), "mlpclassifier", x, y, "neg_log_loss")

    def averaged(**settings: Any) -> np.ndarray:
        return np.mean([net(seed, **settings).fit(x, y).predict_proba(new) for seed in range(NETS)], axis=0)

    return {
        "margaux, default": ours,
        "weight decay by cross-validation": lambda: net(alpha=decay()).fit(x, y).predict_proba(new),
        "five networks": averaged,
        "five networks, weight decay": lambda: averaged(alpha=decay()),
        "stopped early": lambda: net(early_stopping=True, solver="adam").fit(x, y).predict_proba(new),
    }


def networks(sample: Sample) -> dict[str, Callable[[], np.ndarray]]:
    """The same, of networks that are fitted to many images: the default beside ten epochs in a loop of plain JAX."""
    x, y, new = sample.x, sample.y, sample.asked

    def ours() -> np.ndarray:
        model = mx.BayesianClassifier(network=sample.network, random_state=sample.seed, verbose=False).fit(x, y)
        print(f"    {model.message_}", flush=True)
        return model.predict_proba(new)

    def plain(bayes: bool) -> Callable[[], np.ndarray]:
        return lambda: plain_epochs(sample.network, x, y, new, sample.seed, bayes)

    return {"margaux, default": ours, "point estimate by Adam": plain(False), "Bayes by Backprop, one draw": plain(True)}


def plain_epochs(
    name: str, x: np.ndarray, y: np.ndarray, new: np.ndarray, seed: int, bayes: bool, epochs: int = 10
) -> np.ndarray:  # fmt: skip
    """Probabilities after some epochs of batches of 128 by Adam, of a point estimate or of independent Gaussians with one draw of
    the weights a batch and a prior N(0, 1)."""
    module = named(name, x.shape[1:], int(y.max()) + 1, seed)
    network, weights = as_network(module)
    weights = jax.tree.map(jnp.asarray, weights)
    params = (weights, jax.tree.map(lambda w: jnp.full_like(w, np.log(0.05)), weights)) if bayes else (weights, ())
    optimiser, size = optax.adam(1e-3), 128

    def drawn(params: Any, key: Any) -> Any:
        if not bayes:
            return params[0]
        leaves, structure = jax.tree.flatten(params[0])
        keys = jax.tree.unflatten(structure, list(jax.random.split(key, len(leaves))))
        return jax.tree.map(lambda m, r, k: m + jnp.exp(r) * jax.random.normal(k, m.shape), *params, keys)

    def loss(params: Any, key: Any, x: Any, y: Any) -> Any:
        fit = optax.softmax_cross_entropy_with_integer_labels(network.outputs(drawn(params, key), x), y).mean()
        parts = jax.tree.map(lambda m, r: jnp.sum((jnp.exp(2 * r) + m**2) / 2 - r - 0.5), *params) if bayes else ()
        return fit + sum(jax.tree.leaves(parts)) / len(images)

    @jax.jit
    def epoch(carry: Any, images: Any, labels: Any, order: Any, keys: Any) -> Any:
        def step(carry: Any, one: Any) -> Any:
            params, state = carry
            ids, key = one
            moves, state = optimiser.update(jax.grad(loss)(params, key, images[ids], labels[ids]), state)
            return (optax.apply_updates(params, moves), state), None

        return jax.lax.scan(step, carry, (order, keys))[0]

    images, labels, rng = jnp.asarray(x), jnp.asarray(y), np.random.default_rng(seed)
    carry: Any = params, optimiser.init(params)
    for number in range(epochs):
        order = rng.permutation(len(x))[: len(x) // size * size].reshape(-1, size)
        carry = epoch(
            carry, images, labels, jnp.asarray(order), jax.random.split(jax.random.key(epochs * seed + number), len(order))
        )
    predicted = jax.jit(lambda params, key, x: jax.nn.softmax(network.outputs(drawn(params, key), x)))
    keys = jax.random.split(jax.random.key(seed), 30 if bayes else 1)
    parts = [np.mean([predicted(carry[0], key, part) for key in keys], axis=0) for part in np.array_split(new, len(new) // 1000)]
    return np.concatenate(parts)


def epoch() -> None:
    """CPU seconds of an epoch of 30,000 images, of margaux by kinds of draws, and in a loop of plain JAX."""
    sample = mnist(0)
    x, y, new = sample.x[:30_000], sample.y[:30_000], sample.x_new[:1000]

    def ours(draws: str) -> Callable[[int], Any]:
        settings: Any = {"network": sample.network, "temperature": 1.0, "draws": draws, "verbose": False}
        return lambda epochs: mx.BayesianClassifier(**settings, epochs=epochs).fit(x, y)

    def plain(bayes: bool) -> Callable[[int], Any]:
        return lambda epochs: plain_epochs(sample.network, x, y, new, 0, bayes, epochs)

    ways = {draws: ours(draws) for draws in ("local", "shared", "flipout")}
    ways |= {"plain, Bayes by Backprop": plain(True), "plain, point estimate": plain(False)}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, fit in ways.items():
            clock = [time.process_time()]
            for epochs in (2, 2, 12):  # the first compiles
                fit(epochs)
                clock.append(time.process_time())
            few, many = np.diff(clock)[1:]
            spent[name].append((many - few) / 10)
    medians = {name: float(np.median(own)) for name, own in spent.items()}
    for name, median in medians.items():
        print(f"{name:>26} {median:7.3f} CPU s, {median / medians['plain, Bayes by Backprop']:.2f} of one draw in plain JAX")


def scored_classes(sample: Sample, found: np.ndarray) -> dict[str, float]:
    y = np.asarray(sample.y_new)
    entropies = entr(found).sum(axis=1)
    parts = np.split(entropies, np.cumsum([len(y), *map(len, sample.apart.values())])[:-1])
    found = found[: len(y)]
    unlike = {}
    for name, part in zip(sample.apart, parts[1:], strict=True):
        outside = np.repeat([0, 1], [len(y), len(part)])
        unlike[f"entropy_{name}"] = float(part.mean())
        unlike[f"auroc_{name}"] = float(roc_auc_score(outside, np.concatenate([parts[0], part])))
    return {
        "log_score": scores.log_score(y, found),
        "brier": scores.brier_score(y, found),
        "ece": scores.expected_calibration_error(y, found),
        "accuracy": float(np.mean(found.argmax(axis=1) == y)),
        "entropy": float(parts[0].mean()),
    } | unlike


# -- numbers ----------------------------------------------------------------------------------


def numbers(sample: Sample) -> dict[str, Callable[[], tuple[np.ndarray, float]]]:
    """Means (draws, n) and the noise around them, by contestant."""
    x, y, new = sample.x, sample.y, sample.x_new
    location, scale = y.mean(), y.std()
    z = (y - location) / scale

    def ours() -> tuple[np.ndarray, float]:
        model = mx.BayesianRegressor(verbose=False).fit(x, y)
        print(f"    {model.message_}", flush=True)
        return model._means_of_draws(new, 100, 0), model._noise()

    def net(seed: int = 0, **settings: Any) -> Any:
        settings = {"activation": "tanh", "solver": "lbfgs", "max_iter": 3000, "random_state": seed} | settings
        return make_pipeline(StandardScaler(), MLPRegressor(**settings))

    decay = decay_of(net(), "mlpregressor", x, z, "neg_mean_squared_error")

    def several(count: int, **settings: Any) -> tuple[np.ndarray, float]:
        noise = float(np.std(z - cross_val_predict(net(**settings), x, z, cv=FOLDS)))
        means = np.stack([net(seed, **settings).fit(x, z).predict(new) for seed in range(count)])
        return location + scale * means, scale * noise

    return {
        "margaux, default": ours,
        "weight decay by cross-validation": lambda: several(1, alpha=decay()),
        "five networks": lambda: several(NETS),
        "five networks, weight decay": lambda: several(NETS, alpha=decay()),
        "stopped early": lambda: several(1, early_stopping=True, solver="adam"),
    }


def scored_numbers(sample: Sample, found: tuple[np.ndarray, float]) -> dict[str, float]:
    means, noise = found
    each = logsumexp(norm.logpdf(sample.y_new, means, noise), axis=0) - np.log(len(means))
    rmse = np.sqrt(np.mean((means.mean(axis=0) - sample.y_new) ** 2))
    spread = np.sqrt(means.var(axis=0) + noise**2)
    inside = np.abs(sample.y_new - means.mean(axis=0)) < 1.959963984540054 * spread
    return {"log_score": float(np.mean(each)), "rmse": float(rmse), "inside_95%": float(np.mean(inside))}


def decay_of(net: Any, step: str, x: np.ndarray, y: np.ndarray, scoring: str) -> Callable[[], float]:
    """Weight decay by cross-validation, found when first asked for."""
    found: list[float] = []

    def decay() -> float:
        if not found:
            search = GridSearchCV(net, {f"{step}__alpha": DECAYS}, scoring=scoring, cv=FOLDS).fit(x, y)
            found.append(search.best_params_[f"{step}__alpha"])
        return found[0]

    return decay


SETS: dict[str, tuple[Callable[[int], Sample], Callable[..., Any], Callable[..., dict[str, float]]]] = {
    "digits": (digits, classes, scored_classes),
    "moons": (moons, classes, scored_classes),
    "fours": (fours, classes, scored_classes),
    "diabetes": (diabetes, numbers, scored_numbers),
    "concrete": (concrete, numbers, scored_numbers),
    "mnist": (mnist, networks, scored_classes),
    "lenet5": (lenet5, networks, scored_classes),
}


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("sets", nargs="*", default=[*SETS])
    asked.add_argument("--splits", type=int, default=5)
    options = asked.parse_args()
    warnings.filterwarnings("ignore", module="sklearn")
    if "epoch" in options.sets:
        epoch()
    for name in [name for name in options.sets if name != "epoch"]:
        draw, contestants, scored = SETS[name]
        print(name, flush=True)
        rows: dict[str, list[dict[str, float]]] = {}
        for seed in range(options.splits):
            sample = draw(seed)
            for contestant, predict in contestants(sample).items():
                start, cpu = time.perf_counter(), time.process_time()
                found = predict()
                took = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
                row = scored(sample, found) | took
                rows.setdefault(contestant, []).append(row)
        means = pd.DataFrame({contestant: pd.DataFrame(own).mean() for contestant, own in rows.items()}).T
        print(means.round(4).to_string(), flush=True)


if __name__ == "__main__":
    main()
