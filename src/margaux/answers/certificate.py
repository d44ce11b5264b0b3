"""The verdict of a fit: checks, each a figure with its Monte Carlo error, a threshold and a sentence; and one word for all."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

#: how bad a check is: all well, to be read before use, not to be used
Level = Literal["pass", "careful", "failed"]
#: the word of a whole certificate, by its worst check
WORDS: dict[str, str] = {"pass": "certified", "careful": "careful", "failed": "failed"}
LEVELS = tuple(WORDS)


class Check(NamedTuple):
    """One thing looked at.

    Attributes:
        name: such as "gradient". figure: what was measured. error: its Monte Carlo error, NaN where it has none.
        threshold: what it was held to, NaN where there is no number. level: "pass", "careful" or "failed".
        sentence: what this means, for a reader who does not know the check.
    """

    name: str
    figure: float
    error: float
    threshold: float
    level: Level
    sentence: str


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The checks of a fit and its one word: "certified", "careful" or "failed", by the worst of them.

    >>> good = Check("gradient", 0.01, 0.002, 0.1, "pass", "The estimate is at the maximum.")
    >>> bad = Check("zeros", 0.4, 0.01, 0.3, "careful", "There are more zeros than the model allows.")
    >>> Certificate((good,)).word, str(Certificate((good, bad)))
    ('certified', 'careful: There are more zeros than the model allows.')
    """

    checks: tuple[Check, ...]

    @property
    def level(self) -> Level:
        """The worst level."""
        return LEVELS[max((LEVELS.index(check.level) for check in self.checks), default=0)]  # type: ignore[return-value]

    @property
    def word(self) -> str:
        """ "certified", "careful" or "failed"."""
        return WORDS[self.level]

    @property
    def trouble(self) -> tuple[Check, ...]:
        """The checks that did not pass, the worst first."""
        return tuple(sorted((c for c in self.checks if c.level != "pass"), key=lambda c: -LEVELS.index(c.level)))

    def __getitem__(self, name: str) -> Check:
        """A check by its name."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"no check is called {name!r}; they are {[check.name for check in self.checks]}")

    def __contains__(self, name: object) -> bool:
        return any(check.name == name for check in self.checks)

    def and_also(self, *checks: Check | None) -> Certificate:
        """With more checks, such as a family's own; None adds nothing."""
        return Certificate((*self.checks, *(check for check in checks if check is not None)))

    def table(self) -> pd.DataFrame:
        """One row a check."""
        import pandas as pd

        return pd.DataFrame(list(self.checks), columns=pd.Index(Check._fields)).set_index("name")

    def __str__(self) -> str:
        said = " ".join(check.sentence for check in self.trouble) or "every check passed."
        return f"{self.word}: {said}"
