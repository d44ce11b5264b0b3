"""Time an iteration of a NumPyro model through the bridge, over that of the same model written by hand.

A ragged random-intercept logistic regression of 1,000 units; SOUL by MALA, and importance sampling. Programs are warm, and
runs of the two alternate in one process; the ratio is that of the medians.

    python benchmarks/bridge.py
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import margaux as mx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from numpyro_examples import Logistic, logistic_model, simulate_logistic  # pyright: ignore[reportMissingImports]

ESTEPS = {"MALA": lambda: mx.MCMC(mx.MALA(), n_steps=5), "importance": lambda: mx.ImportanceSampling(32)}


def ratio(name: str, n: int = 1000, n_iter: int = 200, repeats: int = 7) -> tuple[float, float, float]:
    """Milliseconds an iteration of the bridged and the hand-written model, and their ratio."""
    data = simulate_logistic(n, seed=1)
    bridged = mx.from_numpyro(logistic_model, data["y"], data["x"], data["mask"])
    models = {"bridged": (bridged.model, bridged.data), "by hand": (Logistic(), data)}
    spent: dict[str, list[float]] = {which: [] for which in models}
    for _ in range(repeats):
        for which, (model, units) in models.items():
            fit = mx.fit(model, units, mx.soul(), ESTEPS[name](), params=bridged.params, space=bridged.space, n_iter=32 + n_iter,
                         progress=False)  # fmt: skip
            # The first chunk of 32 iterations compiles, or finds its program.
            spent[which].append(1000 * fit.timings["run"] / n_iter)
    here, there = (float(np.median(spent[which])) for which in models)
    return here, there, here / there


def main() -> None:
    for name in ESTEPS:
        began = time.perf_counter()
        here, there, over = ratio(name)
        print(
            f"{name:12s} bridged {here:7.3f} ms, by hand {there:7.3f} ms, ratio {over:.2f} ({time.perf_counter() - began:.0f} s)"
        )


if __name__ == "__main__":
    main()
