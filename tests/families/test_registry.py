"""A family is a folder and a line: one that is not of this package does everything that ours do."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from margaux import cli
from margaux.families.registry import FAMILIES, Family

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "extending" / "poisson_mixed"


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """The family of the documentation, in a folder of its own."""
    place = tmp_path_factory.mktemp("families")
    shutil.copytree(FOLDER, place / "throwaway", ignore=shutil.ignore_patterns("__pycache__"))
    sys.path.insert(0, str(place))
    yield Family("throwaway", {"PoissonMixed": "estimator"}, package="")
    sys.path.remove(str(place))


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(30), 4)
    x = rng.normal(size=120)
    return pd.DataFrame({"y": rng.poisson(np.exp(0.5 + 0.3 * x + 0.5 * rng.normal(size=30)[groups])), "x": x, "g": groups})


def test_a_folder_has_a_page_draws_and_a_command(family, table, tmp_path):
    (kind,) = family.classes()
    fitted = kind(n_iter=200, verbose=False).fit(table[["x"]], table["y"], table["g"])
    assert "Poisson regression with random intercepts" in fitted.report(tmp_path / "report.html").read_text()
    tree = fitted.to_arviz(n_draws=20)
    assert tree.posterior["intercept"].sizes["group"] == 30
    assert {"intercept", "y"} <= {*tree.posterior.data_vars, *tree.log_likelihood.data_vars}
    cli.add(family)
    table.to_csv(tmp_path / "counts.csv", index=False)
    line = ["fit", "poisson-mixed", str(tmp_path / "counts.csv"), "--y", "y", "--group", "g", "--json", "--quiet"]
    document = json.loads(CliRunner().invoke(cli.app, line).stdout)
    assert document["loglik"] == pytest.approx(float(fitted.loglik_), abs=0.05)
    np.testing.assert_allclose(document["estimates"]["sigma"]["estimate"], fitted.params_["sigma"], rtol=0.02)


def test_a_folder_without_a_page_has_that_of_any_estimator(family, table, tmp_path):
    (kind,) = family.classes()
    own = type("Own", (kind,), {"__module__": __name__})
    base = type("Bare", (kind.__mro__[1],), {"fit": kind.fit, "__init__": kind.__init__, "__module__": __name__})
    for one, told in ((own, "Poisson regression with random intercepts"), (base, "Bare")):
        fitted = one(n_iter=50, verbose=False).fit(table[["x"]], table["y"], table["g"])
        assert told in fitted.report(tmp_path / f"{told[:4]}.html").read_text()


@pytest.mark.parametrize("one", FAMILIES, ids=lambda one: one.name)
def test_every_family_has_its_anatomy(one):
    assert one.classes() and one.commands()
    page, arviz = one.module(one.page), one.module(one.arviz)
    assert callable(page.heading) and callable(page.sections) and callable(arviz.arviz_parts)
