"""What a fit answers: information, tests, likelihoods, latents, diagnostics, and whether it is to be trusted."""

import lazy_loader as _lazy_loader

__getattr__, __dir__, __all__ = _lazy_loader.attach(
    __name__,
    submod_attrs={
        "bias": ["bias_probe"],
        "diagnostics": ["rhat"],
        "information": ["Information", "WaldTest", "summary_table", "wald_test"],
        "likelihood": ["LogLikelihood", "loglik"],
        "posterior": ["UndefinedDensity", "each_unit", "latents", "proposals"],
        "profile": ["slice"],
        "rules": ["Rule", "best_rule"],
    },
)
