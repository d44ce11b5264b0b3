"""What is wrong with a formula, in a sentence."""

from __future__ import annotations

import re

#: a random effect in the notation of lme4: (terms | group), or || for uncorrelated ones
_RANDOM = re.compile(r"\([^()|]*\|{1,2}[^()|]*\)")
#: the colours of a terminal
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def fault(formula: str, error: Exception) -> str:
    """What the error of a formula says in one line, without the colours and marks that formulaic puts into it.

    >>> fault("y ~ x + (1|g)", ValueError("Operator is incorrectly used.")).split(",")[0]
    'the term (1|g) is a random effect'
    """
    random = _RANDOM.search(formula)
    if random:
        term = random.group()
        group = term.strip("()").rpartition("|")[2].strip()
        return (
            f"the term {term} is a random effect, which this formula cannot have; write C({group}) for a fixed effect of each "
            f"level, or a margaux.AbstractModel whose units are the levels of {group} and whose latent is their effect, for "
            "margaux.fit"
        )
    # What follows the empty line is the formula again, with the place marked.
    told, _, marked = _COLOUR.sub("", str(error)).partition("\n\n")
    place = re.search("⧛(.*?)⧚", marked, re.DOTALL)
    return " ".join(told.split()) + (f' (at "{place.group(1)}")' if place and place.group(1) not in told else "")
