"""Short models of one's own against exact maxima of generalised linear mixed models, from poor starts."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.scipy.special import gammaln
from jax.scipy.stats import norm

import margaux as mx


class MixedGLM(mx.AbstractModel):
    """y_ij ~ p(. | x_ij b + w_ij L z_i), z_i ~ N(0, I), L lower triangular with the exponentials of `log_sd` on its diagonal."""

    poisson: bool
    q: int

    def factor(self, params):
        out = jnp.diag(jnp.exp(params["log_sd"]))
        return out.at[jnp.tril_indices(self.q, -1)].set(params["below"]) if self.q > 1 else out

    def log_joint(self, params, z, unit):
        eta = unit["x"] @ params["b"] + unit["w"] @ (self.factor(params) @ z)
        y, m = unit["y"], unit["m"]
        if self.poisson:
            log_p = y * eta - jnp.exp(eta) - gammaln(y + 1)
        else:
            choose = gammaln(m + 1) - gammaln(y + 1) - gammaln(m - y + 1)
            log_p = choose + y * eta - m * jnp.logaddexp(0.0, eta)
        return jnp.sum(unit["mask"] * log_p) + jnp.sum(norm.logpdf(z))

    def init_latents(self, key, params, unit):
        return jnp.zeros(self.q)


def cbpp(folder):
    d = pd.read_csv(folder / "cbpp.csv")
    x = np.column_stack([np.ones(len(d)), *(d["Period"] == k for k in (2, 3, 4))])
    return False, d["Incidence"], d["Size"], x, x[:, :1], d["Herd"]


def toenail(folder):
    d = pd.read_csv(folder / "saemix_toenail.csv")
    x = np.column_stack([np.ones(len(d)), d["time"], d["time"] * d["treatment"]])
    return False, d["y"], np.ones(len(d)), x, x[:, :1], d["id"]


def epil(folder, slope=False, only=False):
    d = pd.read_csv(folder / "epil.csv")
    trt, visit = (d["Trt"] == "progabide").astype(float), (2 * d["Period"] - 5) / 10
    base, age = np.log(d["Base"] / 4), np.log(d["Age"])
    x = np.column_stack([np.ones(len(d)), base, trt, age, visit if slope else d["V4"], base * trt])
    x = x[:, :1] if only else x
    return True, d["Y"], np.ones(len(d)), x, np.column_stack([np.ones(len(d)), visit])[:, : 1 + slope], d["Subject"]


def rapi(folder):
    d = pd.read_csv(folder / "saemix_rapi.csv")
    women, time = (d["gender"] == "Women").astype(float), d["time"].astype(float)
    x = np.column_stack([np.ones(len(d)), women, time, women * time])
    return True, d["rapi"], np.ones(len(d)), x, np.column_stack([np.ones(len(d)), time]), d["id"]


CASES = {
    "cbpp": cbpp,
    "epil_poisson_RI": epil,
    "epil_intercept_only": lambda folder: epil(folder, only=True),
    "epil_poisson_slope": lambda folder: epil(folder, slope=True),
    "toenail_1re": toenail,
    "rapi_poisson_slope": rapi,
}
QUICK = ("cbpp", "epil_intercept_only")


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES])
def test_exact_maximum(case, seed, data_folder, reference):
    poisson, y, m, x, w, groups = CASES[case](data_folder)
    exact = reference("glmm")["exact_mle"][case]
    units, _ = mx.pad_ragged({"y": y, "m": m, "x": x, "w": w}, groups)
    q, p = w.shape[1], x.shape[1]
    rng = np.random.default_rng(seed)
    size = -np.log(np.sqrt(np.mean(w**2, axis=0)))  # an effect of about one on the linear predictor, up to four times off
    start = {"b": rng.normal(0, 0.2, p), "log_sd": size + rng.normal(0, 0.7, q)} | (
        {"below": np.zeros(q * (q - 1) // 2)} if q > 1 else {}
    )
    model = MixedGLM(poisson, q)
    fit = mx.fit(model, units, mx.soul(), mx.MCMC(mx.MALA(0.3), n_steps=3), params=start, n_iter=400, key=seed,
                 progress=False)  # fmt: skip
    fixed, se = np.asarray(exact["fixed"]), np.asarray(exact["se_fixed"])
    summary = fit.summary()
    print(case, seed, fit.certificate, float(fit.loglik()) - exact["loglik_more_nodes"])
    assert abs(float(fit.loglik()) - exact["loglik_more_nodes"]) < 0.02
    assert np.max(np.abs(fit.params["b"] - fixed) / se) < 0.1
    np.testing.assert_allclose(summary["se"].filter(like="b[").to_numpy()[:p], se, rtol=0.03)
    factor = np.asarray(model.factor(fit.params))
    np.testing.assert_allclose(factor @ factor.T, exact["omega"], rtol=0.03, atol=0.003)
    assert fit.certificate.word == "certified", str(fit.certificate)
