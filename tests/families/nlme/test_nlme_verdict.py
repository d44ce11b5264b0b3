"""The verdict of a mixed-effects fit says what the family knows: other modes, and residuals that the model would not make."""

import numpy as np
import pandas as pd
import pytest

import margaux as mx
import nlme_examples as examples
from margaux.answers.certificate import Certificate, Check
from margaux.families.nlme import LogNormal, Normal, polynomial, verdict, words


def _lines(noise, n=60, seed=0):
    """Lines of 60 subjects with one random effect, and errors of unit variance."""
    rng = np.random.default_rng(seed)
    level = 5 + rng.normal(size=(n, 1)) + 0.5 * np.arange(6.0) + noise(rng, (n, 6))
    return pd.DataFrame({"id": np.repeat(np.arange(n), 6), "t": np.tile(np.arange(6.0), n), "y": level.ravel()})


def _fitted(noise):
    individual = {"c0": Normal(5.0), "c1": Normal(0.5, random=False)}
    model = mx.NLME(structural=polynomial(1), individual=individual, n_starts=1, verbose=False)
    return model.fit(_lines(noise), id="id", time="t", y="y")


def test_data_of_the_model_are_certified():
    model = _fitted(lambda rng, shape: rng.normal(size=shape))
    assert model.certificate_.word == "certified", str(model.certificate_)
    assert model.certificate_["npde"].figure > 0.01 and "gradient" in model.certificate_


def test_errors_of_another_distribution_are_seen():
    """The estimates are at their maximum, and the model is wrong: an exponential error in place of a normal one."""
    model = _fitted(lambda rng, shape: rng.exponential(size=shape) - 1)
    check = model.certificate_["npde"]
    assert model.result_.certificate.word == "certified" and model.certificate_.word == "careful"
    assert check.figure < 1e-6 and "they are not normal" in check.sentence


@pytest.fixture(scope="module")
def theophylline():
    model, data, roles = examples.theophylline()
    return model.fit(data, **roles)


@pytest.mark.slow
def test_a_higher_mode_on_the_other_side_is_told(theophylline):
    """Theophylline's flip-flop mode is 3.1 units higher, and pharmacology rules it out."""
    check = theophylline.certificate_["starts"]
    assert theophylline.params_["ka"] == pytest.approx(1.579, abs=0.01)
    assert check.level == "careful" and 2.5 < check.figure < 4 and "side of the starting values" in check.sentence
    assert theophylline.certificate_["flip-flop"].level == "pass"


def test_names_in_sentences_are_those_of_the_family(theophylline):
    said = Certificate((Check("shape", 0.1, 0.0, 0.1, "careful", "The likelihood is flat along omega2[1] and beta[0]."),))
    assert str(verdict.renamed(said, theophylline)) == "careful: The likelihood is flat along omega2_V and ka."


def test_what_was_fitted_is_said_in_words(theophylline):
    assert words.error(theophylline).startswith("an error of the same size everywhere")
    assert words.effects(theophylline) == "ka, V and CL vary log-normally; all independently of each other"
    assert words.covariates(theophylline) == "none" and words.roles(theophylline).startswith('id="Id", time="Time"')
    model, data, roles = examples.theophylline_covariate(n_iter=40, n_burn=20, n_starts=1, polish=False)
    data.attrs["units"] = {"Time": "h", "Concentration": "mg/L"}
    model.fit(data, **roles)
    assert words.error(model).endswith("Concentration in mg/L") and 'time="Time" (h)' in words.roles(model)
    assert "V and CL with correlated effects" in words.effects(model) and words.covariates(model) == "CL on Weight"


@pytest.mark.slow
def test_starting_values_do_not_overrule_strong_evidence():
    """Without starting values the likelihood decides alone."""
    data = examples.theophylline()[1]
    free = mx.NLME(structural=examples.oral1cpt, individual={name: LogNormal() for name in ("ka", "V", "CL")}, verbose=False)
    free.fit(data, **examples.PK)
    assert free.certificate_["flip-flop"].level == "careful" and free.loglik_ > -170
