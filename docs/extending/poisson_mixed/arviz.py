"""What ArviZ is given: the intercepts by group."""

from margaux.answers.arviz import about_estimator, of_fit


def arviz_parts(model, n_draws, key):
    parts = of_fit(model.result_, n_draws, key)
    parts.posterior = {"intercept": model.params_["sigma"] * parts.posterior["z"]}
    parts.dims["intercept"] = ["group"]
    parts.coords["group"] = model.groups_
    parts.attrs = about_estimator(model)
    return parts
