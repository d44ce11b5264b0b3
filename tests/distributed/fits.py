"""Fits of every kind of algorithm over the processes that run this script: `python fits.py OUT [NAME ...]`.

Their estimates, traces and answers go to a file OUT, which process 0 writes; what the others have must be the same.
"""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import margaux as mx

N = 53


def parts():
    """Algorithms, E-steps and settings by name."""
    chains = mx.MCMC(mx.MALA(0.5), n_steps=2)
    return {
        "soul": (mx.soul(mx.Polynomial(1.0, 0.8)), chains, {}),
        "soul scaled": (mx.soul(), mx.MCMC(n_chains=2), {"runs": 2}),
        "soul batches": (mx.soul(mx.Polynomial(1.0, 0.8)), chains, {"batch_size": 10}),
        "saem": (mx.saem(), chains, {}),
        "online": (mx.online_em(), chains, {"batch_size": 7, "runs": 2}),
        "incremental": (mx.incremental_em(), chains, {"batch_size": 1}),
        "saga": (mx.saga(0.2), chains, {"batch_size": 9}),
        "svrg": (mx.svrg(0.2), chains, {"batch_size": 10}),
        "misso": (mx.misso(lipschitz=5.0), chains, {"batch_size": 8}),
        "misso host": (mx.misso(lipschitz=5.0), chains, {"batch_size": 8, "rows": "host"}),
        "particles": (mx.ipla(0.01), mx.MCMC(mx.ULA(0.05), n_chains=3), {}),
        "quadrature": (mx.soul(), mx.Quadrature(7), {}),
        "importance": (mx.isgd(0.1), mx.ImportanceSampling(16), {}),
        "growing": (mx.isgd(0.1), mx.ImportanceSampling(mx.Growth(64, 0.5)), {"batch_size": 12}),
        "uniform": (mx.soul(0.3), chains, {"batch_size": 6, "sampling": "uniform"}),
    }


def fitted(name, problem, data, **more):
    algorithm, estep, settings = parts()[name]
    return mx.fit(problem.model, data, algorithm, estep, params=problem.start, space=problem.space, n_iter=60, polish=False,
                  progress=False, key=3, **settings, **more)  # fmt: skip


def answered(problem, data):
    """Everything that is visited unit by unit once a fit is over."""
    fit = mx.fit(problem.model, data, mx.saem(), mx.MCMC(n_chains=2), params=problem.start, space=problem.space, n_iter=300,
                 progress=False, key=3)  # fmt: skip
    robust = fit.summary(method="sandwich")["se"].to_numpy()
    latents = fit.latents()["mean"]
    latents = next(iter(latents.values())) if isinstance(latents, dict) else latents
    return {"params": flat(fit.params), "loglik": np.array(float(fit.loglik())), "se": fit.summary()["se"].to_numpy(),
            "robust": robust, "latents": latents, "word": np.array(fit.certificate.word)}  # fmt: skip


def flat(params):
    return np.concatenate([np.ravel(params[name]) for name in sorted(params)])


def main():
    from helpers import random_intercept

    warnings.simplefilter("ignore")
    mx.distributed.initialize()
    import jax

    out, names = Path(sys.argv[1]), sys.argv[2:]
    problem = random_intercept(N, 3)
    data = mx.shard(problem.data)
    found = {}
    for name in names:
        if name == "answers":
            found |= {f"answers/{key}": value for key, value in answered(problem, data).items()}
            continue
        fit = fitted(name, problem, data)
        found[f"{name}/params"], found[f"{name}/last"] = flat(fit.params), flat(fit.last_params)
        found |= {f"{name}/trace {key}": value for key, value in fit.trace.items()}
    np.savez(out.with_suffix(f".{jax.process_index()}.npz"), **found)


if __name__ == "__main__":
    main()
