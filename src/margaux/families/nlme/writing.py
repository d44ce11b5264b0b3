"""What a nonlinear mixed-effects model writes: itself as a text file and in equations, its data in numbers, and its answers as
tables of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...showing.parts import check_fitted

if TYPE_CHECKING:
    import pandas as pd


class Writing:
    """Of `NLME`: model files, and tables under the names that NONMEM and Monolix give them."""

    def to_toml(self, path: str | Path | None = None, *, data: str | None = None, title: str = "") -> str:
        """The model as a text file, which `margaux.nlme.from_toml` and `margaux fit nlme` read: the same model to the bit.

        Args:
            path: of the file; only the text is returned where None. data: the file of the table, as the model file names it.
                title: what it says of itself. The columns of a fitted model are written, too.

        Raises:
            ValueError: a part that no text holds: a structural model, a log-likelihood, a distribution or an error by Python
                functions or classes, or a kernel.

        >>> from margaux import NLME
        >>> from margaux.nlme import LogNormal, bolus1cpt
        >>> model = NLME(structural=bolus1cpt, individual={"V": LogNormal(20.0), "CL": LogNormal(random=False)})
        >>> print(model.to_toml())
        [structural]
        name = "bolus1cpt"
        <BLANKLINE>
        [parameters.V]
        distribution = "lognormal"
        initial = 20.0
        <BLANKLINE>
        [parameters.CL]
        distribution = "lognormal"
        random = false
        <BLANKLINE>
        [error]
        model = "constant"
        <BLANKLINE>
        [settings]
        seed = 0
        <BLANKLINE>
        """
        from .model_text import to_toml

        model: Any = self
        text = to_toml(model, data, title)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def equations(self) -> str:
        r"""The fitted model in equations, as text: its structure (differential equations as they are written, where they are
        text), each individual parameter on the scale on which it is normal, $h^{-1}(\psi_i)=h^{-1}(\psi)+c_i^\top\beta+\eta_i$,
        with its covariates, occasions and classes, the laws of random effects, and the residual errors. Parameters have the
        names of `params_`; what a fit dropped is not there.

        >>> from margaux import NLME
        >>> from margaux.datasets import load_theophylline
        >>> from margaux.nlme import LogNormal, oral1cpt
        >>> individual = {"ka": LogNormal(1.5), "V": LogNormal(30.0), "CL": LogNormal(2.7, random=False)}
        >>> short = {"n_iter": 30, "n_burn": 20, "n_starts": 1, "polish": False, "verbose": False}
        >>> model = NLME(structural=oral1cpt, individual=individual, random_state=0, **short)
        >>> model = model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")
        >>> print(model.equations())
        Structural model:
          f = oral1cpt(ka, V, CL | time, dose)
        <BLANKLINE>
        Individual parameters, of subject i:
          log(ka_i) = log(ka) + eta_ka,i
          log(V_i) = log(V) + eta_V,i
          log(CL_i) = log(CL)
        <BLANKLINE>
        Random effects:
          eta_ka,i ~ N(0, omega2_ka)
          eta_V,i ~ N(0, omega2_V)
        <BLANKLINE>
        Observations, j of subject i:
          Concentration_ij = f_ij + a * e_ij
          e_ij ~ N(0, 1), independent unless said otherwise
        """
        from .model_equations import equations

        check_fitted(self)
        model: Any = self
        return equations(model)

    def data_summary(self) -> pd.DataFrame:
        """What was fitted to: numbers of subjects, observations (a subject, of each output, beyond limits) and doses; median and
        range of responses, times, amounts and numeric covariates, with their units where `data.attrs["units"]` has them; counts
        of levels of other covariates. Covariates are columns with one value a subject, and those that the model reads. A frame of
        texts, `value`, by `what` and `of`."""
        from .data_summary import summary

        check_fitted(self)
        model: Any = self
        return summary(model)

    def tables(self, folder: str | Path, n_simulations: int = 1000, key: int = 0) -> list[Path]:
        r"""Write the tables that are usual elsewhere into a folder, made if it is not there; the paths written.

        - `sdtab.csv`, a row an observation: ID TIME DV PRED IPRED IWRES CWRES NPDE. CWRES are residuals of the model linearised
          at the conditional modes $\hat\eta$: with $G = \partial f/\partial\eta$ there, the symmetric
          $(G\Omega G^\top + \Sigma)^{-1/2}(y - f + G\hat\eta)$, errors as at the individual prediction (Hooker, Staatz and
          Karlsson 2007). Records of doses have no row; NA stands where y is a limit.
        - `patab.csv`, a row a subject, or an occasion where parameters vary between them: ID, the individual parameters at the
          conditional modes, and ETA_CL of each random effect (ETA_CL_OCC of those of occasions).
        - `populationParameters.txt`, as Monolix names parameters (CL_pop, beta_CL_x, omega_CL and gamma_CL as standard
          deviations, corr_V_CL, a, b): value, se_sa, rse_sa in %, pvalues_sa of effects of covariates. Standard errors are
          those of `summary`, by the delta method.

        Args:
            n_simulations, key: of the npde, see `NLME.npde`.

        Raises:
            ValueError: the outcome is not continuous. OSError: the folder cannot be written.
        """
        from .tables import write

        check_fitted(self)
        model: Any = self
        return write(model, Path(folder), n_simulations, key)
