"""What is asked of a fitted model on the way to the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...showing.parts import check_fitted

if TYPE_CHECKING:
    from .bootstrap import Bootstrap


class ModelBuilding:
    """Of `NLME`: bootstrap."""

    def bootstrap(self, n: int = 200, *, stratify: str | None = None, level: float = 0.95, key: int = 0) -> Bootstrap:
        r"""The non-parametric bootstrap: as many subjects as there are, drawn with replacement, and the model fitted anew.

        Each replicate is the maximum of $\sum_i c_i\log p(y_i\mid\theta)$ near the estimate, with $c_i$ how often subject i was
        drawn: by Newton's method on adaptive quadrature, all side by side in one program (see `margaux.fit_many`). With more than
        three random effects a subject they are polished one after the other. Effects whose variance was estimated as zero
        are in the replicates' model.

        Args:
            n: replicates. stratify: a column that is constant within a subject: as many are drawn of each of its levels as there
                are. level: of intervals.

        Returns:
            `replicates` (a row each, a column a parameter), `status` of each, `summary()` with mean, bias, standard error,
            percentile and BCa intervals, `message` with how many are used and why others are not.

        Raises:
            ValueError: a number out of its range, or a column that does not exist, has holes or varies within a subject.

        >>> from margaux import NLME
        >>> from margaux.datasets import load_theophylline
        >>> from margaux.nlme import LogNormal, oral1cpt
        >>> model = NLME(structural=oral1cpt, individual={"ka": LogNormal(1), "V": LogNormal(20), "CL": LogNormal(2)},
        ...              n_iter=60, n_burn=40, verbose=False)
        >>> model = model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")
        >>> replicates = model.bootstrap(20)
        >>> list(replicates.replicates.columns) == list(model.params_)
        True
        """
        from .bootstrap import bootstrap

        check_fitted(self)
        return bootstrap(_own(self), n, stratify, level, key)


def _own(model: ModelBuilding) -> Any:
    return model
