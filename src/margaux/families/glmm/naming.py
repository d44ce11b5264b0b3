"""Names of a mixed model's parameters, as its users know them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .formula import Design
    from .model import Mixed


def parameter_names(model: Mixed, design: Design) -> list[str]:
    """Of the flat parameters, in the order of their tree: beta, cor, dispersion, range, sd, each by name.

    Standard deviations are `sd_herd` of an intercept alone and `sd_g[x]` else, correlations `cor_g[Intercept,x]`, the other
    parameters of a covariance `cor_g` and `range_g`, and those of the response go by their own names.
    """
    columns = {factor.name: term.columns for factor, term in zip(model.factors, design.terms, strict=True)}
    out = {"beta": list(design.names), "cor": [], "dispersion": [], "range": [], "sd": []}
    for factor in sorted(model.factors, key=lambda one: one.name):
        own = columns[factor.name]
        if factor.structure == "us":
            pairs = [(own[j], own[i]) for i in range(factor.k) for j in range(i)]
            out["cor"] += [f"cor_{factor.name}[{a},{b}]" for a, b in pairs]
        elif factor.structure in ("cs", "ar1"):
            out["cor"].append(f"cor_{factor.name}")
        elif factor.structure in ("mat", "exp"):
            out["range"].append(f"range_{factor.name}")
        alone = factor.scales == 1 and (factor.k > 1 or own == ["Intercept"])
        out["sd"] += [f"sd_{factor.name}"] if alone else [f"sd_{factor.name}[{name}]" for name in own]
    for name in sorted((*model.response.dispersion, *model.response.predictors)):
        count = max(len(design.levels) - 1, 1) if name == "thresholds" else 1
        out["dispersion"] += [name] if name != "thresholds" else [_threshold(design.levels, j) for j in range(count)]
    return [name for part in ("beta", "cor", "dispersion", "range", "sd") for name in out[part]]


def _threshold(levels: tuple, j: int) -> str:
    return f"{levels[j]}|{levels[j + 1]}"


def reading_order(names: list[str], p: int) -> list[int]:
    """Places of fixed effects, then of the response's parameters, standard deviations, and correlations and ranges."""
    rest = range(p, len(names))
    sd = [j for j in rest if names[j].startswith("sd_")]
    shape = [j for j in rest if names[j].startswith(("cor_", "range_"))]
    own = [j for j in rest if j not in {*sd, *shape}]
    return [*range(p), *own, *sd, *shape]
