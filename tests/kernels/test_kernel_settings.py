"""The last values of a kernel's settings that are allowed, the first that are not, and what they are by default."""

import numpy as np
import pytest

import margaux as mx

KERNELS = {
    "independence": (mx.IndependenceMH, "inflation", [0.5, 1.0], [0.0, -1.0, np.nan]),
    "newton": (mx.IndependenceMH, "n_newton", [1, 2], [0]),
    "crank": (mx.CrankNicolson, "rho", [0.1, 1.0], [0.0, 1.01]),
    "leapfrog": (mx.UnadjustedHMC, "n_leapfrog", [1, 2], [0]),
    "friction": (mx.Underdamped, "friction", [0.1, 2.0], [0.0, -0.1]),
    "smoothing": (mx.MYULA, "smoothing", [0.1, 2.0], [0.0, -0.1]),
    "batch": (mx.SGLD, "batch_size", [1, 2], [0]),
    "refresh": (lambda refresh_every: mx.SGLD(1, refresh_every=refresh_every), "refresh_every", [1, 2], [0]),
}


@pytest.mark.parametrize("case", KERNELS)
def test_limits_are_allowed_themselves(case):
    kernel, name, allowed, refused = KERNELS[case]
    for value in allowed:
        kernel(**{name: value})
    for value in refused:
        with pytest.raises(ValueError, match=name):
            kernel(**{name: value})


def test_settings_by_default():
    independence = mx.IndependenceMH()
    assert (float(np.asarray(independence.inflation)), independence.n_newton) == (1.2, 2)
    assert mx.UnadjustedHMC().n_leapfrog == 5 and float(np.asarray(mx.Underdamped().friction)) == 0.3
    assert float(np.asarray(mx.CrankNicolson().rho)) == 1.0
    assert mx.SGLD(4).refresh_every == 1 and mx.SGLD(4).control_variate is True and mx.SGLD(4).batch_size == 4
