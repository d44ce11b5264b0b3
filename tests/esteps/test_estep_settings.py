"""The last values of settings that are allowed, the first that are not, and what they are by default."""

# Stand-ins take the place of fits and rules: pyright sees other types.
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportOptionalMemberAccess=false

import numpy as np
import pytest

import margaux as mx

KERNEL = mx.RandomWalk(1.0)


@pytest.mark.parametrize(("estep", "name", "allowed", "refused"), [
    (mx.Quadrature, "n_nodes", [1, 2, 99, 100], [0, 101]),
    (mx.Quadrature, "n_newton", [1, 2], [0]),
    (mx.Quadrature, "widening", [0.5, 1e-9], [0.0, -1.0]),
    (mx.Exact, "n_draws", [1, 2], [0]),
    (mx.Noise, "n_draws", [1, 2, 3], [0]),
    (mx.ImportanceSampling, "n_draws", [2, 3], [1, 0]),
    (mx.ImportanceSampling, "defensive", [0.0, 0.99], [1.0, -1e-9]),
    (mx.ImportanceSampling, "widening", [1.0, 1.5], [0.99]),
    (mx.ImportanceSampling, "n_newton", [1, 2], [0]),
    (mx.MCMC, "n_chains", [1, 2], [0, 1.0]),
    (mx.MCMC, "burn_in", [0, 1], [-1, 0.5]),
    (mx.MCMC, "warm_up", [0, 1], [-1]),
    (mx.MCMC, "n_steps", [1, 2], [0]),
])  # fmt: skip
def test_limits_are_allowed_themselves(estep, name, allowed, refused):
    given = {"kernel": KERNEL} if estep is mx.MCMC else {}
    for value in allowed:
        assert getattr(estep(**given, **{name: value}), name, value) == value
    for value in refused:
        with pytest.raises(ValueError, match=name):
            estep(**given, **{name: value})


def test_as_many_states_are_kept_as_there_are_steps():
    assert mx.MCMC(KERNEL, n_steps=3, thin=3).thin == 3 and mx.MCMC(KERNEL, n_steps=mx.Growth(1.0, 0.5), thin=5).thin == 5
    with pytest.raises(ValueError, match="thin = 4 keeps no state of n_steps = 3"):
        mx.MCMC(KERNEL, n_steps=3, thin=4)
    with pytest.raises(ValueError, match="thin"):
        mx.MCMC(KERNEL, n_steps=3, thin=0)


def test_pairs_are_even():
    assert mx.Noise(2, antithetic=True).antithetic and mx.Noise(3).n_draws == 3
    with pytest.raises(ValueError, match="even"):
        mx.Noise(3, antithetic=True)


def test_settings_by_default():
    from margaux.esteps.mcmc import STEPS, WARM_UP

    chains, own = mx.MCMC(), mx.MCMC(KERNEL)
    assert (chains.n_steps, chains.warm_up) == (STEPS, WARM_UP) and isinstance(chains.kernel, mx.MALA)
    assert (own.n_steps, own.warm_up, own.n_chains, own.thin, own.burn_in, own.warm_start) == (1, 0, 1, 1, 0, True)
    assert mx.MCMC(n_steps=7).n_steps == 7 and mx.MCMC(warm_up=0).warm_up == 0
    grid, draws = mx.Quadrature(), mx.ImportanceSampling()
    assert (grid.n_nodes, grid.n_newton, float(grid.widening), grid.held) == (15, 3, 1.0, False)
    assert (draws.n_draws, draws.quasi, draws.control_variate, draws.proposal.n_newton) == (64, False, True, 2)
    assert (draws.proposal.defensive, float(np.asarray(draws.proposal.widening))) == (0.1, 2.0)
    assert (mx.Noise().n_draws, mx.Noise().antithetic) == (1, False)


@pytest.mark.parametrize(
    ("n_nodes", "size", "allowed"), [(27, 3, True), (28, 3, False), (20, 3, True), (100, 2, True), (100, 3, False)]
)
def test_so_many_points_a_unit_are_affordable(n_nodes, size, allowed):
    class Plain(mx.AbstractModel):
        def log_joint(self, params, z, y): ...
        def init_latents(self, key, params, y): ...

    trouble = mx.Quadrature(n_nodes).requires(Plain(), np.zeros(size))
    assert (trouble is None) == allowed and (allowed or f"{n_nodes} nodes in {size} dimensions" in trouble)


def test_a_kernel_says_what_the_model_lacks_for_it():
    class Plain(mx.AbstractModel):
        def log_joint(self, params, z, y): ...
        def init_latents(self, key, params, y): ...

    assert mx.MCMC(KERNEL).requires(Plain(), np.zeros(2)) is None
    trouble = mx.MCMC(mx.MYULA(0.1)).requires(Plain(), np.zeros(2))
    assert trouble.startswith("MYULA needs ") and "which Plain lacks; inherit from margaux.Abstract" in trouble
    assert "log_joint" not in trouble and "init_latents" not in trouble
