"""The report page: title and lead, and the sections."""

from margaux.answers import fit_page, fitted_page


def heading(model):
    return "Poisson regression with random intercepts", f"{model.n_observations_:,} counts in {len(model.groups_):,} groups."


def sections(model, command=None):
    return [
        fitted_page.what(model, ("Groups", f"{len(model.groups_):,}")),
        fitted_page.end(model),
        fitted_page.estimated(model),
        fit_page.convergence_of(model.result_),
        fitted_page.criteria(model),
        fit_page.latents(model.result_),
        fitted_page.reproduce(model, command, lambda: model.result_.data, "margaux.report.checksum(model.result_.data)"),
    ]
