"""What a first fit compiles and imports: each program and package costs tenths of a second, and they grow back unseen."""

import os
import subprocess
import sys
import textwrap

import pytest

COUNT = """
import os, sys, warnings
warnings.simplefilter("ignore")
import jax, numpy as np, margaux as mx
programs = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **about: programs.append(about.get("fun_name")) if event.endswith("backend_compile_duration") else None
)
rng = np.random.default_rng(0)
"""

#: what no fit needs, and takes longer to import than a fit to run; `sklearn` brings `scipy.stats`
HEAVY = ["sklearn", "matplotlib", "rich", "jinja2", "IPython", "arviz_base", "xarray", "numpyro", "blackjax", "typer"]

#: a fit, what it must not import besides, its answers, and how many programs it may compile with them
FITS = {
    "nlme": (
        12,
        ["scipy.stats", "formulaic", "optax"],
        """
        from margaux.datasets import load_theophylline
        from margaux.nlme import LogNormal, oral1cpt
        individual = {"ka": LogNormal(1.0), "V": LogNormal(20.0), "CL": LogNormal(0.5)}
        model = mx.NLME(structural=oral1cpt, individual=individual, verbose=False)
        model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")
        """,
        """
        model.summary(), model.loglik_
        """,
    ),
    "glmm": (
        14,
        ["optax"],
        """
        import pandas as pd
        g, x = np.repeat(np.arange(50), 6), rng.normal(size=300)
        y = (rng.random(300) < 1 / (1 + np.exp(-0.5 * x - rng.normal(size=50)[g]))).astype(int)
        model = mx.GLMM("y ~ x + (1 | g)", family="binomial", verbose=False).fit(pd.DataFrame({"y": y, "x": x, "g": g}))
        """,
        """
        model.summary(), model.loglik_
        """,
    ),
    "pln": (
        5,
        ["scipy.stats", "scipy.optimize", "formulaic", "optax"],
        """
        counts = rng.poisson(np.exp(1 + rng.normal(size=(100, 2)) @ rng.normal(0, 0.7, (2, 20))))
        model = mx.PLNPCA(rank=2, verbose=False).fit(counts)
        """,
        """
        model.summary(), model.loglik_
        """,
    ),
    "missing": (
        8,
        ["formulaic", "optax"],
        """
        x = rng.normal(size=(300, 3))
        y = (rng.random(300) < 1 / (1 + np.exp(-x @ [0.5, -0.5, 1.0]))).astype(int)
        model = mx.MissingLogistic(verbose=False).fit(np.where(rng.random(x.shape) < 0.15, np.nan, x), y)
        """,
        """
        model.summary(), model.loglik_
        """,
    ),
    "fit": (
        7,
        ["formulaic", "optax"],
        """
        import jax.numpy as jnp
        from jax.scipy.stats import norm

        class Intercept(mx.AbstractModel):
            def log_joint(self, params, z, y):
                eta = params["mu"] + z
                return jnp.sum(y * eta - jnp.logaddexp(0.0, eta)) + norm.logpdf(z, 0.0, jnp.exp(params["spread"]))

            def init_latents(self, key, params, y):
                return jnp.zeros((), y.dtype)

        eta = 0.3 + rng.normal(size=(100, 1))
        y = (rng.random((100, 5)) < 1 / (1 + np.exp(-eta))).astype(float)
        fit = mx.fit(Intercept(), y, mx.soul(), mx.MCMC(), params={"mu": 0.0, "spread": 0.0}, n_iter=500, progress=False)
        """,
        """
        fit.summary(), fit.loglik()
        """,
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_a_first_fit_compiles_few_programs_and_imports_nothing_heavy(name):
    most, besides, fit, answers = FITS[name]
    imported = f"print([name for name in {HEAVY + besides} if name in sys.modules])"
    told = "print(len(programs), programs)"
    script = "\n".join([COUNT, textwrap.dedent(fit), imported, textwrap.dedent(answers), told])
    environment = os.environ | {"MARGAUX_CACHE": "off", "XLA_FLAGS": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    heavy, count = done.stdout.splitlines()
    assert heavy == "[]"
    assert int(count.split()[0]) <= most, count


ANOTHER = """
for family in ("logistic", "poisson"):
    for n in (500, 483):
        x = rng.normal(size=(n, 3))
        eta = x @ [0.5, -0.5, 1.0]
        y = rng.poisson(np.exp(eta / 2)) if family == "poisson" else (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
        before = len(programs)
        model = mx.MissingGLM(family=family, verbose=False).fit(np.where(rng.random(x.shape) < 0.15, np.nan, x), y)
        model.summary(), model.loglik_
    print(len(programs) - before, programs[before:])
"""


def test_another_table_with_holes_of_a_similar_size_finds_the_programs():
    environment = os.environ | {"MARGAUX_CACHE": "off", "XLA_FLAGS": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", COUNT + ANOTHER]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["0", "0"], done.stdout
