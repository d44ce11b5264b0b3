"""The families there are: a folder and a line each.

A family's folder has the same anatomy as far as it needs it: `model`, `fitting`, `estimator`, `answers`, `plots`, `page` (its
report: `heading` and `sections`), `command` (`COMMANDS` of `margaux fit`) and `arviz` (`arviz_parts`). Pages and ArviZ find the
folder by the class of what they are given (`margaux.showing.parts`), so that families of others work without a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple


class Family(NamedTuple):
    """A family.

    Attributes:
        name: of its folder. estimators: public classes, name -> module within the folder.
        command, page, arviz, plots: modules within the folder; "" where there is none.
        package: that the folder is in; "" for one of its own.
    """

    name: str
    estimators: dict[str, str]
    command: str = ".command"
    page: str = ".page"
    arviz: str = ".arviz"
    plots: str = ".plots"
    package: str = "margaux.families"

    def module(self, part: str) -> Any:
        """A module of the folder, by its name in it."""
        folder = f"{self.package}.{self.name}" if self.package else self.name
        return import_module(part if part.startswith(".") else f".{part}", folder)

    def classes(self) -> list[type]:
        """The estimators."""
        return [getattr(self.module(module), name) for name, module in self.estimators.items()]

    def commands(self) -> tuple[Callable[..., Any], ...]:
        """Of `margaux fit`."""
        return self.module(self.command).COMMANDS if self.command else ()


FAMILIES = [
    Family("nlme", {"NLME": "estimator"}),
    Family("glmm", {"GLMM": "estimator"}),
    Family("missing", {"MissingLogistic": "estimator", "MissingLinear": "estimator", "MissingGLM": "estimator"}),
    Family("pln", {"PLNPCA": "estimator"}),
    Family("variational", {"BayesianClassifier": "estimator", "BayesianRegressor": "estimator"}),
    Family("empirical_bayes", {"EmpiricalBayesLogistic": "estimator"}),
    Family("sparse_mixed", {"SparseMixedLogistic": "estimator"}),
    Family("inverse", {"SparseInverse": "estimator"}),
]
