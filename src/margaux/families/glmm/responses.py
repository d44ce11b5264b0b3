"""The response distributions there are, and each by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .base import AbstractResponse, constrained, unconstrained
from .continuous import Beta, Gamma, Gaussian, Student
from .counts import AbstractCount, Binomial, NegativeBinomial1, NegativeBinomial2, Poisson
from .links import LINKS, AbstractLink, AbstractUnitLink
from .ordinal import Ordinal
from .syntax import near
from .zeros import Hurdle, ZeroInflated

__all__ = [
    "RESPONSES",
    "AbstractCount",
    "AbstractLink",
    "AbstractResponse",
    "AbstractUnitLink",
    "Beta",
    "Binomial",
    "Gamma",
    "Gaussian",
    "Hurdle",
    "NegativeBinomial1",
    "NegativeBinomial2",
    "Ordinal",
    "Poisson",
    "Student",
    "ZeroInflated",
    "by_name",
    "constrained",
    "link_of",
    "unconstrained",
]

#: response distributions by name; zero inflation and hurdles go around one
RESPONSES: dict[str, Callable[..., AbstractResponse]] = {
    "gaussian": Gaussian,
    "binomial": Binomial,
    "poisson": Poisson,
    "nbinom1": NegativeBinomial1,
    "nbinom2": NegativeBinomial2,
    "gamma": Gamma,
    "beta": Beta,
    "ordinal": Ordinal,
    "student": Student,
}
#: other packages' names
ALIASES = {
    "normal": "gaussian",
    "bernoulli": "binomial",
    "negative_binomial": "nbinom2",
    "negbinomial": "nbinom2",
    "beta_family": "beta",
    "cumulative": "ordinal",
    "t": "student",
    "t_family": "student",
}


def by_name(name: str, link: str | None = None) -> Any:
    """A response distribution (an `AbstractResponse`), with its first link unless another is named.

    Raises:
        TypeError: the name is not text.
        ValueError: there is no such distribution, or it does not have that link.

    >>> by_name("binomial", "probit").link.name
    'probit'
    """
    if not isinstance(name, str):
        raise TypeError(f"family must be a name or a response, got {type(name).__name__}; the names are {', '.join(RESPONSES)}")
    lower = name.lower()
    found = RESPONSES.get(ALIASES.get(lower, lower))
    if found is None:
        raise ValueError(f'there is no family "{name}"; the families are {", ".join(RESPONSES)}{near(name, RESPONSES)}')
    response = found()
    if link is None:
        return response
    if link not in response.links:
        raise ValueError(f'the family {response.name} has no link "{link}"; its links are {", ".join(response.links)}')
    return found(link=LINKS[link])


def link_of(response: Any) -> AbstractLink:
    """The link of a response; where zeros have a predictor of their own, that of the rest.

    >>> link_of(ZeroInflated(by_name("poisson"))).name
    'log'
    """
    return link_of(response.response) if isinstance(response, ZeroInflated | Hurdle) else response.link
