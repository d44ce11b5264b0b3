"""Scripts that repeat published experiments: `margaux reproduce NAME`."""

from __future__ import annotations

from typing import NamedTuple


class Experiment(NamedTuple):
    """What a script repeats: paper, section and figures; what it does by default, in minutes, and with --full, in an hour or
    hours."""

    paper: str
    repeats: str
    default: str
    full: str


_SOUL = "De Bortoli, Durmus, Pereyra and Vidal (2021)"
_MISSO = "Karimi, Wai, Moulines and Li (2022)"
_PLN = "Batardiere, Chiquet, Kwon and Stoehr (2024)"

#: every experiment by name; the script is the module of that name
EXPERIMENTS = {
    "soul_wisconsin": Experiment(
        _SOUL,
        "section 4.1: empirical-Bayes logistic regression, figures 1 to 4",
        "200 runs of 400,000 iterations",
        "1000 runs of 1,000,000 iterations",
    ),
    "soul_audio": Experiment(
        _SOUL,
        "section 4.2: audio compression, figure 5",
        "4 samplings of time, 13 values of theta",
        "20 samplings, 41 values, a longer run",
    ),
    "soul_sparse": Experiment(
        _SOUL,
        "section 4.3: sparse logistic regression, figures 6 and 7",
        "5 fresh data sets",
        "20 fresh data sets, more iterations, a finer path",
    ),
    "successors": Experiment(
        "Kuntz, Lim and Johansen (2023), and later ones",
        "SOUL beside particle methods: a hierarchy, Wisconsin, Laplace priors, 4 against 9",
        "10 runs, 2 splits, 150 iterations",
        "40 runs, 10 splits, 500 iterations",
    ),
    "soul_tv": Experiment(
        "Vidal, De Bortoli, Pereyra and Durmus (2020)",
        "section 4.2: total-variation deblurring",
        "9 values of theta",
        "25 values of theta, longer runs",
    ),
    "pnp_ula": Experiment(
        "Laumont, De Bortoli, Almansa, Delon, Durmus and Pereyra (2022)",
        "section 4: deblurring and inpainting by a denoiser, beside total variation",
        "chains of 5000 transitions, a quarter of an hour",
        "chains of 40,000 transitions",
    ),
    "saem_biased": Experiment(
        "Gruffaz, Kim, Durmus and Gardner (2024)",
        "SAEM along unadjusted chains: four experiments",
        "2 to 16 repeats, every other step",
        "32 repeats, all steps; about an hour",
    ),
    "misso_missing": Experiment(
        _MISSO, "section 4.1: missing covariates, figures 1 and 3, table 1", "1500 rows", "the paper's 6384 rows"
    ),
    "misso_bnn": Experiment(
        _MISSO,
        "section 4.2: Bayesian LeNet-5 and ResNet-18, figures 2 and 4",
        "5504 images, 4 epochs, 2 runs",
        "55,000 images, 100 epochs, 5 runs; ResNet-18 in full on a GPU",
    ),
    "plnpca_synthetic": Experiment(
        _PLN, "section 6.1: synthetic counts, figures 1 to 3", "20 replicates", "the paper's sizes; hours"
    ),
    "plnpca_scmark": Experiment(
        _PLN, "section 6.2: single cells, figures 4 and 5", "3 runs of 20 epochs", "the paper's sizes, and all cells and genes"
    ),
}
