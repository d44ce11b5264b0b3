"""Time an iteration of a NumPyro model through the bridge, over that of the same model written by hand.

A ragged random-intercept logistic regression of 1,000 units; SOUL by MALA, and importance sampling. By hand it is written
twice: with `margaux.bernoulli_logit`, whose derivatives are short, and as textbooks have it, with `jax.nn.softplus`.
Programs are warm, and runs alternate in one process; ratios are those of the medians.

    python benchmarks/bridge.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import margaux as mx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from numpyro_examples import Logistic, logistic_model, simulate_logistic  # pyright: ignore[reportMissingImports]

ESTEPS = {"MALA": lambda: mx.MCMC(mx.MALA(), n_steps=5), "importance": lambda: mx.ImportanceSampling(32)}


class Textbook(Logistic):
    """The same without margaux's own density."""

    def log_joint(self, params, z, unit):
        eta = params["beta"][0] + params["beta"][1] * unit["x"] + z
        data = jnp.sum(jnp.where(unit["mask"], unit["y"] * eta - jax.nn.softplus(eta), 0.0))
        return data + jax.scipy.stats.norm.logpdf(z, 0.0, params["tau"])


def times(name: str, n: int = 1000, n_iter: int = 200, repeats: int = 7) -> dict[str, float]:
    """Milliseconds an iteration of the bridged model and of those written by hand."""
    data = simulate_logistic(n, seed=1)
    bridged = mx.from_numpyro(logistic_model, data["y"], data["x"], data["mask"])
    models = {"bridged": (bridged.model, bridged.data), "by hand": (Logistic(), data), "textbook": (Textbook(), data)}
    spent: dict[str, list[float]] = {which: [] for which in models}
    for _ in range(repeats):
        for which, (model, units) in models.items():
            fit = mx.fit(model, units, mx.soul(), ESTEPS[name](), params=bridged.params, space=bridged.space, n_iter=32 + n_iter,
                         polish=False, progress=False)  # fmt: skip
            # The first chunk of 32 iterations compiles, or finds its program.
            spent[which].append(1000 * fit.timings["run"] / n_iter)
    return {which: float(np.median(spent[which])) for which in models}


def main() -> None:
    for name in ESTEPS:
        found = times(name)
        hands = [f"{which} {ms:.3f} ms (ratio {found['bridged'] / ms:.2f})" for which, ms in found.items() if which != "bridged"]
        print(f"{name:12s} bridged {found['bridged']:.3f} ms, {', '.join(hands)}", flush=True)


if __name__ == "__main__":
    main()
