"""The mixture over modes against NumPy and SciPy: what is found, drawn, weighed and learned."""

# Stand-ins take the place of fits and rules: pyright sees other types.
# pyright: reportArgumentType=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import margaux as mx
from margaux.esteps import ModeMixture
from margaux.esteps.mixture import ROUNDS, TRIAL, _learned, _whiten
from margaux.numerics.gaussian import normals
from margaux.problem.model import AbstractPopulation

pytestmark = pytest.mark.usefixtures("double")


class Peaks(mx.AbstractModel):
    """A density that is a sum of Gaussians of one scale, with weights of their own."""

    at: tuple
    weights: tuple
    scale: float = 0.1
    start: float = 0.0

    def log_joint(self, params, z, y):
        logs = jax.scipy.stats.norm.logpdf(z, jnp.asarray(self.at), self.scale) + jnp.log(jnp.asarray(self.weights))
        return jax.nn.logsumexp(logs)

    def init_latents(self, key, params, y):
        return jnp.asarray(self.start + 0.0 * y)


def modes(model, n_modes=3, seed=0):
    """Places and masses of the modes that are found, largest mass last, and their number."""
    proposal = ModeMixture(n_modes)
    target = lambda x: model.log_joint({}, x[0], 0.0)  # noqa: E731
    starts = tuple(jnp.ravel(model.init_latents(jax.random.key(k), {}, jnp.zeros(()))) for k in (0, 1))
    normal = jax.random.normal(jax.random.key(seed), (1, 1))
    found, mass, count, _ = jax.jit(lambda normal: proposal._modes(target, starts, normal))(normal)
    return np.asarray(found.at[:, 0]), np.asarray(mass), int(count), found


def test_every_search_finds_the_mode_that_lies_where_it_starts():
    """From the model's start, mirrored in zero, and 5, 20 and 80 standard deviations away on either side."""
    at = np.array([1.0, -1.0, 1.5, 0.5, 3.0, -1.0, 9.0, -7.0])[[0, 1, 2, 3, 4, 6, 7]]
    weights = np.array([0.2, 0.1, 0.15, 0.25, 0.12, 0.08, 0.1])
    places, mass, count, found = modes(Peaks(tuple(at), tuple(weights), 0.1, 1.0), n_modes=8)
    assert count == 7 and places[0] == pytest.approx(0.5, abs=1e-4)  # that of most mass
    order, wanted = np.argsort(places[mass > -np.inf]), np.argsort(at)
    np.testing.assert_allclose(places[mass > -np.inf][order], at[wanted], atol=2e-4)
    # Laplace's approximation of each mass is its weight here.
    np.testing.assert_allclose(mass[mass > -np.inf][order], np.log(weights[wanted]), atol=1e-3)
    np.testing.assert_allclose(found.root[mass > -np.inf, 0, 0], 0.1, rtol=1e-3)
    assert np.all(np.asarray(found.away)[mass > -np.inf] < 1e-3)


def test_modes_are_searched_for_from_the_means_of_components_too():
    target = lambda x: Peaks((0.0, 7.0, 30.0), (0.5, 0.2, 0.3), 0.1).log_joint({}, x[0], 0.0)  # noqa: E731
    start, normal = jnp.zeros(1), jnp.ones((1, 1))
    few = ModeMixture(3, searches=1)
    found = jax.jit(lambda means: few._modes(target, (start, start), normal, means))(jnp.array([[6.9], [30.1]]))
    np.testing.assert_allclose(np.sort(np.asarray(found[0].at[:, 0])), [0.0, 7.0, 30.0], atol=1e-3)
    assert int(found[2]) == 3 and int(jax.jit(lambda: few._modes(target, (start, start), normal))()[2]) == 1


def test_the_first_that_was_found_stays_and_the_least_of_the_others_makes_room():
    places, mass, count, _ = modes(Peaks((1.0, -1.0, 1.5, 3.0), (0.01, 0.3, 0.5, 0.19), 0.1, 1.0), n_modes=3)
    assert count == 3 and places[0] == pytest.approx(1.5, abs=1e-3) and mass[0] == mass.max()
    np.testing.assert_allclose(np.sort(places[1:]), [-1.0, 1.0], atol=1e-3)
    np.testing.assert_allclose(mass.min(), np.log(0.01), atol=1e-2)
    places, mass, count, _ = modes(Peaks((1.0, -1.0), (0.2, 0.8), 0.1, 1.0), n_modes=1)
    assert count == 1 and places[0] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("weight", "count"), [(1e-5, 2), (1e-7, 1)])
def test_modes_of_next_to_no_mass_are_left_out(weight, count):
    found = modes(Peaks((1.0, -1.0), (1.0, weight), 0.1, 1.0))
    assert found[2] == count and np.sum(found[1] > -np.inf) == count
    # Also where it is the first that has none: it is not what a quadrature is centred at.
    other = modes(Peaks((1.0, -1.0), (weight, 1.0), 0.1, 1.0))
    assert other[2] == count and other[0][0] == pytest.approx(-1.0, abs=1e-3) and (other[1][1] > -np.inf) == (count == 2)


def test_two_peaks_within_a_standard_deviation_of_the_wider_are_one():
    class Shoulder(mx.AbstractModel):
        place: float

        def log_joint(self, params, z, y):
            wide = jax.scipy.stats.norm.logpdf(z, 0.0, 1.0)
            return jnp.logaddexp(wide, jax.scipy.stats.norm.logpdf(z, self.place, 0.01) + jnp.log(0.3))

        def init_latents(self, key, params, y):
            # The model's own start, and another one.
            return jnp.where(jnp.all(jax.random.key_data(key) == jax.random.key_data(jax.random.key(0))), 0.0, self.place)

    assert modes(Shoulder(0.9))[2] == 1
    assert modes(Shoulder(1.2))[2] == 2


def test_a_start_where_nothing_is_known_still_gives_a_proposal():
    class Nowhere(mx.AbstractModel):
        def log_joint(self, params, z, y):
            return -jnp.inf * jnp.ones(())

        def init_latents(self, key, params, y):
            return jnp.asarray(0.5)

    places, mass, count, found = modes(Nowhere())
    assert count == 1 and places[0] == 0.5 and np.isfinite(mass[0]) and np.all(mass[1:] == -np.inf)
    np.testing.assert_allclose(found.root[:, 0, 0], 1.0)


# -- draws and their density ------------------------------------------------------------------------

ROW = {
    "mean": np.array([[0.0, 1.0], [3.0, -2.0], [50.0, 50.0]]),
    "cholesky": np.array([[[1.0, 0.0], [0.4, 0.7]], [[0.5, 0.0], [-0.2, 1.5]], [[1.0, 0.0], [0.0, 1.0]]]),
    "log_share": np.array([np.log(0.7), np.log(0.3), -np.inf]),
}


class Plain(mx.AbstractModel):
    def log_joint(self, params, z, y):
        return -jnp.sum(z**2)

    def init_latents(self, key, params, y):
        return jnp.zeros(2)


class Population(Plain, AbstractPopulation):
    def population(self, params, y):
        return jnp.array([1.0, -1.0]), jnp.array([[2.0, 0.0], [0.5, 0.8]])


def drawn_by_numpy(noise, pattern, population):
    """Draws and the log of their density, from SciPy's."""
    m, d = len(noise), 2
    runs = -(-m // 5)
    own = np.array([int((j // 5 + 0.5) / runs > 0.7) for j in range(m)])
    x = np.empty((m, d))
    for j in range(m):
        chi = -2 * np.sum(np.log(noise[j, d:]))
        stretch = 2.0 * np.sqrt(4 / chi) if pattern[j] == 1 else 1.0
        x[j] = ROW["mean"][own[j]] + ROW["cholesky"][own[j]] @ noise[j, :d] * stretch
        if pattern[j] == 2:
            x[j] = population[0] + population[1] @ noise[j, :d]
    density = np.zeros(m)
    for k in range(2):
        cov = ROW["cholesky"][k] @ ROW["cholesky"][k].T
        density += np.mean((own == k) & (pattern == 0)) * stats.multivariate_normal(ROW["mean"][k], cov).pdf(x)
        density += np.mean((own == k) & (pattern == 1)) * stats.multivariate_t(ROW["mean"][k], 4 * cov, df=4).pdf(x)
    if population is not None:
        density += np.mean(pattern == 2) * stats.multivariate_normal(population[0], population[1] @ population[1].T).pdf(x)
    return x, np.log(density)


@pytest.mark.parametrize("m", [7, 30])
@pytest.mark.parametrize("with_population", [False, True])
def test_draws_have_the_density_that_is_told(m, with_population):
    rng = np.random.default_rng(m)
    noise = np.concatenate([rng.normal(size=(m, 2)), rng.uniform(size=(m, 2))], axis=1)
    pattern = np.array([0, 0, 1, 0, 2 if with_population else 0])[np.arange(m) % 5]
    model = Population() if with_population else Plain()
    x, log_q, told = jax.jit(lambda e: ModeMixture().draw(e, model, {}, jax.tree.map(jnp.asarray, ROW), 0.0))(noise)
    population = (np.array([1.0, -1.0]), np.array([[2.0, 0.0], [0.5, 0.8]])) if with_population else None
    wanted, density = drawn_by_numpy(noise, pattern, population)
    np.testing.assert_allclose(x, wanted)
    np.testing.assert_allclose(log_q, density)
    np.testing.assert_array_equal(told, x)


def test_whitened_gaps_are_those_of_the_inverse_root():
    root, gap = ROW["cholesky"][1], np.array([[1.0, 2.0, 0.0], [0.5, -1.0, 3.0]])
    np.testing.assert_allclose(_whiten(jnp.asarray(root), jnp.asarray(gap)), np.linalg.solve(root, gap))


# -- what is learned --------------------------------------------------------------------------------


def learned_by_numpy(row, x, w):
    shares = np.exp(row["log_share"])
    density = np.stack([
        share * stats.multivariate_normal(mean, root @ root.T).pdf(x) if share > 0 else np.zeros(len(x))
        for mean, root, share in zip(row["mean"], row["cholesky"], shares, strict=True)
    ])  # fmt: skip
    owned = w * density / density.sum(axis=0)
    mean, root, mass = row["mean"].copy(), row["cholesky"].copy(), owned.sum(axis=1)
    for k in np.flatnonzero(mass > 1e-8):
        part = owned[k] / mass[k]
        size = 1 / np.sum(part**2)
        trust = 0.9 * size / (size + 2 * (x.shape[1] + 1))
        mean[k] = part @ x
        seen = np.einsum("m,mi,mj->ij", part, x - mean[k], x - mean[k])
        old = row["cholesky"][k] @ row["cholesky"][k].T + np.outer(row["mean"][k] - mean[k], row["mean"][k] - mean[k])
        root[k] = np.linalg.cholesky(trust * seen + (1 - trust) * old)
    share = np.where(shares > 0, 0.9 * mass + 0.1 * shares, 0.0)
    with np.errstate(divide="ignore"):
        return {"mean": mean, "cholesky": root, "log_share": np.log(share / share.sum())}


def test_components_move_to_the_weighted_moments_of_their_draws():
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.normal(0.3, 1.0, (12, 2)), rng.normal([3.2, -1.5], 0.8, (9, 2))])
    w = rng.dirichlet(np.ones(21))
    found = jax.jit(_learned)(jax.tree.map(jnp.asarray, ROW | {"away": np.array(0.5)}), x, w)
    wanted = learned_by_numpy(ROW, x, w)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9)
    assert float(found["away"]) == 0.5


def test_a_component_without_draws_stays_and_one_in_the_tails_takes_the_nearest():
    row = ROW | {"log_share": np.log(np.array([0.5, 0.25, 0.25]))}
    x = np.random.default_rng(0).normal([3.0, -2.0], 0.3, (15, 2))
    found = jax.jit(_learned)(jax.tree.map(jnp.asarray, row), x, np.full(15, 1 / 15))
    np.testing.assert_array_equal(found["mean"][2], ROW["mean"][2])
    np.testing.assert_array_equal(found["cholesky"][2], ROW["cholesky"][2])
    # A tenth of its former share is kept.
    mass = np.exp(found["log_share"])
    assert mass[2] == pytest.approx(0.025, rel=1e-6) and mass.sum() == pytest.approx(1.0)
    far = jax.jit(_learned)(jax.tree.map(jnp.asarray, row), x + 1e4, np.full(15, 1 / 15))
    assert np.all(np.isfinite(far["mean"])) and np.sum(np.abs(np.asarray(far["mean"]) - row["mean"]).max(axis=1) > 100) == 1


def test_a_proposal_begins_with_rounds_of_trial_draws_from_its_modes():
    model, key, y, proposal = Peaks((1.0, -1.0), (0.3, 0.7), 0.4, 1.0), jax.random.key(3), jnp.zeros(()), ModeMixture(2)
    made = jax.jit(lambda: proposal.init(key, model, {}, y))()
    places, mass, count, found = modes(model, 2, 3)
    row = {"mean": np.asarray(found.at), "cholesky": np.asarray(found.root), "log_share": mass - special.logsumexp(mass)}
    trial = normals(jax.random.fold_in(key, 1), 2 * TRIAL, 1, jnp.dtype(float), True, 2)
    draw = jax.jit(lambda row: proposal.draw(trial, model, {}, row, y))
    target = jax.jit(jax.vmap(lambda x: model.log_joint({}, x[0], 0.0)))
    for _ in range(ROUNDS):
        x, log_q, _ = draw(row)
        row = learned_by_numpy(row, np.asarray(x), special.softmax(np.asarray(target(x) - log_q)))
    for name, value in row.items():
        np.testing.assert_allclose(made[name], value, rtol=1e-6)
    assert made["modes"] == count == 2 and made["modes"].dtype == jnp.float64 and made["away"] == found.away[0]
    assert proposal.follow(model, {}, made, y) is made and proposal.learn(made, x, None) is made
    figures = proposal.figures(made, jnp.log(jnp.arange(1.0, 101.0)))
    assert set(figures) == {"pareto", "away", "modes"} and figures["away"] is made["away"] and figures["modes"] == 2
    assert proposal.extra == 2


def test_draws_without_a_density_have_no_weight_in_what_is_learned():
    class Half(mx.AbstractModel):
        """N(1, 1) whose density is not a number below zero."""

        def log_joint(self, params, z, y):
            return jnp.where(z > 0, jax.scipy.stats.norm.logpdf(z, 1.0), jnp.nan)

        def init_latents(self, key, params, y):
            return jnp.asarray(1.0)

    made = jax.jit(lambda: ModeMixture().init(jax.random.key(0), Half(), {}, jnp.zeros(())))()
    truth = stats.truncnorm(-1.0, np.inf, loc=1.0)
    assert made["mean"][0, 0] == pytest.approx(truth.mean(), abs=0.05)


def test_a_blank_row_has_the_shapes_of_one_that_was_made():
    made = jax.eval_shape(lambda: ModeMixture().init(jax.random.key(0), Plain(), {}, jnp.zeros(2)))
    blank = ModeMixture().blank(2)
    assert {name: leaf.shape for name, leaf in blank.items()} == {name: leaf.shape for name, leaf in made.items()}
