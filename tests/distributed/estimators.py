"""Estimators over the processes that run this script: `python estimators.py OUT [NAME ...]`. Figures go to OUT.0.npz and on."""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pandas as pd

import margaux as mx
from margaux.datasets import load_theophylline
from margaux.families.nlme import LogNormal, oral1cpt


def regression(n, p, family="logistic"):
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, p)) @ (np.eye(p) + 0.3)
    eta = 0.3 + x @ np.linspace(-0.8, 0.8, p)
    y = rng.poisson(np.exp(0.5 * eta)) if family == "poisson" else (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
    if family == "multinomial":
        y = np.where(rng.random(n) < 0.3, 2, y)
    x[rng.random(x.shape) < 0.2] = np.nan
    return x, y


def missing(shard, n=301, p=3, family="logistic", **settings):
    x, y = regression(n, p, family)
    model = mx.MissingGLM(family=family, verbose=False, **settings).fit(shard(x), shard(y))
    word = np.array(model.certificate_.word)
    return {"estimate": model.summary()["estimate"], "se": model.summary(errors="robust")["se"], "word": word,
            "loglik": float(model.loglik_), "outcome": model.loglik_outcome_, "mean": model.conditional_mean()}  # fmt: skip


def chained(shard, method, **settings):
    """By the engine, where its iterates end."""
    x, y = regression(83, 2)
    model = mx.MissingLogistic(method=method, n_iter=60, n_burn=30, polish=False, verbose=False, **settings)
    return {"estimate": np.ravel(model.fit(shard(x), shard(y)).coef_)}


def curves(shard, **settings):
    individual = {"ka": LogNormal(1.0), "V": LogNormal(20.0), "CL": LogNormal(2.0, random="random" not in settings)}
    settings.pop("random", None)
    model = mx.NLME(structural=oral1cpt, individual=individual, n_iter=200, n_burn=60, verbose=False, **settings)
    model.fit(shard(load_theophylline()), id="Id", time="Time", y="Concentration", dose="Dose")
    return {"estimate": list(model.params_.values()), "se": model.summary()["se"], "loglik": float(model.loglik_),
            "subjects": model.individual_, "npde": model.residuals()["npde"]}  # fmt: skip


def network(shard, method):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(130, 2))
    y = np.where(x[:, 0] * x[:, 1] > 0, "same", "other")
    model = mx.BayesianClassifier(method=method, epochs=6, batch_size=10, temperature=1.0, dtype="float64", verbose=False)
    model.fit(shard(pd.DataFrame(x, columns=["a", "b"])), shard(pd.Series(y)))
    return {"probabilities": model.predict_proba(pd.DataFrame(x[:5], columns=["a", "b"])), "elbo": float(model.elbo_)}


JOBS = {
    "logistic": missing,
    "poisson": lambda shard: missing(shard, family="poisson"),
    "multinomial": lambda shard: missing(shard, family="multinomial"),
    "large": lambda shard: missing(shard, n=20_000, p=5),
    "discrete": lambda shard: discrete(shard),
    "saem": lambda shard: chained(shard, "saem"),
    "misso": lambda shard: chained(shard, "misso", batch_size=10),
    "mcem": lambda shard: chained(shard, "mcem"),
    "curves": curves,
    "curves in batches": lambda shard: curves(shard, batch_size=5, stop=False, polish=False),
    "a fixed effect": lambda shard: curves(shard, random=False, fixed_effects="exponentialised"),
    "network by misso": lambda shard: network(shard, "misso"),
    "network by adam": lambda shard: network(shard, "adam"),
}


def discrete(shard):
    x, y = regression(240, 2)
    x = np.column_stack([x, np.random.default_rng(2).integers(0, 3, len(x)).astype(float)])
    x[::7, 2] = np.nan
    model = mx.MissingLogistic(discrete=[2], verbose=False).fit(shard(x), shard(y))
    return {"estimate": model.summary()["estimate"], "loglik": float(model.loglik_)}


def main():
    warnings.simplefilter("ignore")
    mx.distributed.initialize()
    import jax

    out, names = Path(sys.argv[1]), sys.argv[2:]
    # The first process has few rows of its own, the last one many.
    count, index = jax.process_count(), jax.process_index()

    def uneven(table):
        n, cuts = len(table), [0, *(7 + np.arange(count - 1)), len(table)]
        assert n > cuts[-2]
        part = table.iloc if hasattr(table, "iloc") else table
        return mx.shard(part[cuts[index] : cuts[index + 1]], local=True) if count > 1 else table

    found = {f"{name}/{key}": np.asarray(value) for name in names for key, value in JOBS[name](uneven).items()}
    np.savez(out.with_suffix(f".{index}.npz"), **found)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
