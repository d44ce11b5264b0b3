"""Real MNIST, ten epochs: long runs, in the slow suite."""

import numpy as np
import pytest

import margaux as mx
from margaux.datasets import load_mnist

pytestmark = pytest.mark.slow

EPOCHS = 10
SEEDS = [0, 1, 2]


@pytest.fixture(scope="module")
def images(data_folder):
    folder = data_folder / "mnist"
    return load_mnist("train", folder=folder), load_mnist("test", folder=folder)


def fitted(images, **settings):
    """The model, its negative ELBO an observation, and its accuracy on the test images."""
    (x, y), (x_new, y_new) = images
    model = mx.BayesianClassifier(temperature=1.0, epochs=EPOCHS, verbose=False, **settings).fit(x, y)
    loss, accuracy = -model.elbo_ / len(y), model.score(x_new, y_new)
    chosen = {name: value for name, value in settings.items() if name != "epochs"}
    print(f"{chosen}: step {model.step_:.4g}, -ELBO / n {loss:.3f}, accuracy {accuracy:.4f}; {model.message_}", flush=True)
    return model, loss, accuracy


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("spread", "draws", "most", "least"), [("all", "flipout", 1.55, 0.925), ("weight", "local", 0.60, 0.945)]
)
def test_adam_on_the_tanh_network(images, spread, draws, most, least, seed):
    _, loss, accuracy = fitted(images, spread=spread, method="adam", step=1e-3, draws=draws, random_state=seed)
    assert loss <= most and accuracy >= least


@pytest.fixture(scope="module")
def best_bbb(images):
    """The step of Bayes by Backprop of the lowest loss, of its default times 1/2 to 4."""
    model, *_ = fitted(images, spread="all", method="bbb", draws="flipout")
    losses = {}
    for factor in (0.5, 2.0, 4.0):
        step = factor * model.step_
        losses[step] = fitted(images, spread="all", method="bbb", draws="flipout", step=step)[1]
    losses[model.step_] = -model.elbo_ / len(images[0].y)
    return min((loss, step) for step, loss in losses.items() if np.isfinite(loss))


@pytest.mark.parametrize("seed", SEEDS)
def test_misso_beside_the_best_step_of_bayes_by_backprop(images, best_bbb, seed):
    """By its default step, which nobody tunes."""
    loss = fitted(images, spread="all", method="misso", draws="flipout", random_state=seed)[1]
    print(f"{loss:.3f} beside {best_bbb[0]:.3f}, the best: {loss / best_bbb[0]:.3f}")
    assert loss <= 1.15 * best_bbb[0]


def test_adam_on_lenet5(images):
    assert fitted(images, network="lenet5", spread="weight", method="adam")[2] >= 0.97


@pytest.mark.parametrize("spread", ["all", "weight"])
def test_misso_on_lenet5(images, spread):
    assert fitted(images, network="lenet5", spread=spread, method="misso")[2] >= 0.9
