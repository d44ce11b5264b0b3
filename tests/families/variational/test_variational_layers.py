"""Layers of networks against the library's own, sizes of the networks by name, and the exact law of the draws of one layer."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from margaux.families.variational.architectures import LeNet5, ResNet18, named
from margaux.families.variational.draws import Flipout, LocalReparameterisation, PerObservation, channels
from margaux.families.variational.layers import AbstractStacked, Convolution, Dense, GroupNorm, max_pool, over_channels
from margaux.families.variational.networks import as_network
from margaux.numerics.compiling import compiled
from margaux.numerics.precision import precision

#: inputs, outputs, kernel, stride, padding, bias
CONVOLUTIONS = [
    (1, 6, 5, 1, 2, True),
    (3, 4, 3, 2, 1, False),
    (3, 4, 1, 2, 0, True),
    (2, 4, 2, 2, 0, True),
    (2, 3, 3, 1, 0, False),
]


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def by_library(layer, x):
    """XLA's convolution of images (c, h, w, b)."""
    kernel = layer.weight.reshape(layer.kernel, layer.kernel, layer.in_channels, layer.out_channels)  # column, row, in, out
    out = jax.lax.conv_general_dilated(
        jnp.moveaxis(x, -1, 0),
        jnp.transpose(kernel, (3, 2, 1, 0)),
        (layer.stride,) * 2,
        ((layer.padding,) * 2,) * 2,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
    )
    return jnp.moveaxis(out if layer.bias is None else out + layer.bias[:, None, None], 0, -1)


@pytest.mark.parametrize("into, out, kernel, stride, padding, use_bias", CONVOLUTIONS)
def test_convolution(into, out, kernel, stride, padding, use_bias):
    def figures(call):
        both = lambda layer, x: jax.value_and_grad(lambda both: jnp.sum(jnp.sin(call(*both))))((layer, x))  # noqa: E731
        return compiled(lambda layer, x: (call(layer, x), both(layer, x)))(layer, x)

    with precision(np.dtype(np.float64)):
        layer = Convolution(into, out, kernel, stride, padding, use_bias, key=jax.random.key(0))
        layer = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), layer)
        x = jnp.asarray(normal(1, into, 10, 8, 3), jnp.float64)
        wanted = figures(by_library)
        # the last is what accelerators run
        single = jax.vmap(lambda layer, x: layer(x), (None, -1), -1)
        own = lambda layer, x: layer._by_library(x) + (0 if layer.bias is None else over_channels(layer.bias, x))  # noqa: E731
        for call in (lambda layer, x: layer(x), single, own):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-11), figures(call), wanted)


def test_convolution_has_curvature_products():
    """Forward over reverse, which the step of a method asks for."""
    layer, x = Convolution(2, 3, 3, key=jax.random.key(0)), normal(0, 2, 5, 5, 2)
    loss = lambda x: jnp.sum(layer(x) ** 2) / 2  # noqa: E731
    product = compiled(lambda x: jax.jvp(jax.grad(loss), (x,), (x,))[1])(x)
    linear = lambda x: layer(x) - layer(0 * x)  # noqa: E731
    wanted = compiled(jax.grad(lambda x: jnp.sum(linear(x) ** 2) / 2))(x)
    np.testing.assert_allclose(product, wanted, atol=1e-5)


def test_max_pool():
    x = normal(0, 3, 6, 4, 5)
    wanted = x.reshape(3, 3, 2, 2, 2, 5).max(axis=(2, 4))
    np.testing.assert_array_equal(max_pool(jnp.asarray(x)), wanted)
    np.testing.assert_array_equal(max_pool(jnp.asarray(x[..., 0])), wanted[..., 0])
    share = jax.grad(lambda x: jnp.sum(max_pool(x) * wanted))(jnp.asarray(x))
    chosen = np.repeat(np.repeat(wanted, 2, axis=1), 2, axis=2) == x
    np.testing.assert_array_equal(share, np.where(chosen, x, 0))


def test_group_norm():
    layer, theirs = GroupNorm(4, 8), eqx.nn.GroupNorm(4, 8)
    scale, shift = normal(1, 8), normal(2, 8)
    layer, theirs = (eqx.tree_at(lambda norm: (norm.weight, norm.bias), norm, (scale, shift)) for norm in (layer, theirs))
    x = 3 + 2 * normal(0, 8, 5, 4, 3)
    figures = compiled(lambda call: (call(x), jax.grad(lambda x: jnp.sum(jnp.sin(call(x))))(x)))
    wanted = figures(lambda x: jax.vmap(theirs, -1, -1)(x))
    for call in (layer, lambda x: jax.vmap(layer, -1, -1)(x)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5), figures(call), wanted)
    with pytest.raises(ValueError, match="3 groups do not divide 8 channels"):
        GroupNorm(3, 8)


def test_dense():
    layer, x = Dense(5, 3, key=jax.random.key(0)), jnp.asarray(normal(0, 5, 4))
    np.testing.assert_allclose(layer(x), np.asarray(layer.weight) @ np.asarray(x) + np.asarray(layer.bias)[:, None], atol=1e-6)
    np.testing.assert_allclose(layer(x[:, 0]), layer(x)[:, 0], atol=1e-6)
    assert np.abs(layer.weight).max() <= 5**-0.5 < 1.2 * np.abs(layer.weight).max()


def weights_of(module):
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(module, eqx.is_array)))


def test_lenet5():
    module = LeNet5(key=jax.random.key(0))
    assert weights_of(module) == 61_706
    network, weights = as_network(module)
    wide, wide_weights = as_network(LeNet5(size=32, key=jax.random.key(0)))
    x = normal(0, 3, 28, 28, 1)
    found = compiled(network.outputs)(weights, x)
    one = compiled(jax.vmap(lambda x: module(x)))(x)
    padded = compiled(wide.outputs)(wide_weights, np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0))))
    np.testing.assert_allclose(found, one, atol=1e-5)
    np.testing.assert_allclose(found, padded, atol=1e-5)
    with pytest.raises(ValueError, match="28 x 28 or 32 x 32 pixels, got 30 x 30"):
        LeNet5(size=30, key=jax.random.key(0))


def test_resnet18():
    """11.17 million weights: those of a 3 x 3 stem, eight blocks, three ways round and their norms, and ten classes."""
    module = jax.eval_shape(lambda key: ResNet18(key=key), jax.random.key(0))
    convolutions = 9 * (3 * 64 + 64 * 64 * 4) + sum(9 * (w // 2 * w + 3 * w * w) + w // 2 * w for w in (128, 256, 512))
    norms = 2 * (64 * 5 + 5 * (128 + 256 + 512))
    wanted = convolutions + norms + 512 * 10 + 10
    assert wanted == 11_173_962
    leaves = [leaf for leaf in jax.tree.leaves(module) if isinstance(leaf, jax.ShapeDtypeStruct)]
    assert sum(leaf.size for leaf in leaves) == wanted
    for shape, outputs in (((32, 32, 3), (10,)), ((32, 32, 3, 7), (10, 7))):
        out = jax.eval_shape(lambda module, x: module(x), module, jax.ShapeDtypeStruct(shape, jnp.float32))
        assert out.shape == outputs


def test_small_resnet_by_observation():
    module = ResNet18(outputs=3, widths=(2, 4), groups=2, key=jax.random.key(0))
    network, weights = as_network(module)
    x = normal(0, 2, 8, 8, 3)
    one = compiled(lambda x: module(x))
    np.testing.assert_allclose(compiled(network.outputs)(weights, x), [one(image) for image in x], atol=1e-5)


@pytest.mark.parametrize("name, shape, message", [
    ("lenet", (28, 28, 1), 'must be "tanh", "relu", "lenet5", "resnet18"'),
    ("lenet5", (784,), r"square images of shape \(height, width, channels\).*shape \(784,\)"),
    ("resnet18", (32, 16, 3), "square images"),
    ("lenet5", (30, 30, 1), "28 x 28 or 32 x 32 pixels, got 30 x 30"),
    ("resnet18", (4, 4, 3), "32 x 32 pixels, got 4 x 4"),
])  # fmt: skip
def test_names_refused(name, shape, message):
    with pytest.raises(ValueError, match=message):
        named(name, shape, 10)


@pytest.mark.parametrize("name, shape", [("tanh", (4, 2)), ("relu", (6,)), ("lenet5", (32, 32, 3))])
def test_names(name, shape):
    out = jax.eval_shape(lambda x: named(name, shape, 4)(x), jax.ShapeDtypeStruct(shape, jnp.float32))
    assert out.shape == (4,)


# -- draws: one layer, whose law is known ---------------------------------------------------------


class Stacked(AbstractStacked):
    """One layer on trailing axes."""

    layer: Convolution | Dense
    axes: int = eqx.field(static=True)

    def __call__(self, x):
        return self.layer(x).reshape((-1,) + x.shape[self.axes :])


class Single(eqx.Module):
    """One layer on one observation."""

    layer: eqx.nn.Linear | eqx.nn.Conv2d | Convolution | Dense

    def __call__(self, x):
        return jnp.ravel(self.layer(x))


LAYERS = {
    "Linear": (lambda key: Single(eqx.nn.Linear(6, 4, key=key)), (6,)),
    "Conv2d": (lambda key: Single(eqx.nn.Conv2d(3, 4, 3, key=key)), (3, 5, 5)),
    "Convolution": (lambda key: Single(Convolution(3, 4, 3, key=key)), (3, 5, 5)),
    "Convolution without bias": (lambda key: Single(Convolution(3, 4, 3, use_bias=False, key=key)), (3, 5, 5)),
    "Convolution of one channel": (lambda key: Single(Convolution(1, 4, 3, key=key)), (1, 5, 5)),
    "Dense": (lambda key: Single(Dense(6, 4, key=key)), (6,)),
    "Convolution, stacked": (lambda key: Stacked(Convolution(3, 4, 3, key=key), 3), (3, 5, 5)),
    "Dense, stacked": (lambda key: Stacked(Dense(6, 4, key=key), 1), (6,)),
}


def with_signs(layer, r, s):
    """Where the signs of inputs r and of outputs s meet in the layer's weight and bias."""
    if isinstance(layer, eqx.nn.Conv2d):
        return np.outer(s, r)[:, :, None, None], s[:, None, None]
    if isinstance(layer, Convolution):
        return np.tile(np.outer(r, s), (layer.kernel**2, 1)), s
    return np.outer(s, r), s


@pytest.mark.parametrize("name", LAYERS)
def test_flipout_is_the_network_at_its_weights(name):
    make, shape = LAYERS[name]
    network, mean = as_network(make(jax.random.key(0)))
    sigma = jax.tree.map(lambda leaf: 0.1 + normal(1, *leaf.shape) ** 2, mean)
    b, layer = 3, make(jax.random.key(0)).layer
    x, rng = normal(2, b, *shape), np.random.default_rng(3)
    draw = lambda leaf: rng.choice([-1, 1], leaf.shape).astype(np.int8) if leaf.dtype == jnp.int8 else normal(4, *leaf.shape)  # noqa: E731
    z = jax.tree.map(draw, Flipout().latents(network, mean, b))
    found = Flipout().outputs(network, mean, sigma, z, jnp.asarray(x))
    of_inputs, of_outputs = z["rows"][0]
    of_inputs = np.ones((b, 1)) if of_inputs is None else of_inputs
    for i in range(b):
        weight, bias = with_signs(layer, of_inputs[i], of_outputs[i])
        flipped = jax.tree.map(lambda z, w=weight, b=bias: z * (b if z.shape == b.shape else w), z["weights"])
        wanted = network.single(jax.tree.map(lambda m, s, e: m + s * e, mean, sigma, flipped), jnp.asarray(x[i]))
        np.testing.assert_allclose(found[i], wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["Linear", "Dense", "Dense, stacked"])
@pytest.mark.parametrize("shared", [False, True])
def test_local_draws_have_the_law_of_the_outputs(name, shared):
    """Outputs are mean + sd z: their mean and variance are those of (mu + sigma e) x, one sigma a weight or one for all."""
    make, shape = LAYERS[name]
    network, mean = as_network(make(jax.random.key(0)))
    sigma = jax.tree.map(lambda leaf: np.float32(0.3) if shared else 0.1 + normal(1, *leaf.shape) ** 2, mean)
    x, b = normal(2, 3, *shape), 3
    z = LocalReparameterisation().latents(network, mean, b)
    at = lambda value: np.asarray(  # noqa: E731
        LocalReparameterisation().outputs(
            network, mean, sigma, z | {"rows": [value * np.ones((b, 4), np.float32)]}, jnp.asarray(x)
        )
    )
    full = lambda tree, leaf: np.broadcast_to(tree, leaf.shape)  # noqa: E731
    scale = jax.tree.map(full, sigma, mean)
    np.testing.assert_allclose(at(0.0), x @ mean.layer.weight.T + mean.layer.bias, atol=1e-5)
    variance = x**2 @ (scale.layer.weight**2).T + scale.layer.bias**2
    np.testing.assert_allclose((at(1.0) - at(0.0)) ** 2, variance, rtol=1e-4)
    np.testing.assert_allclose(at(-2.0), at(0.0) - 2 * (at(1.0) - at(0.0)), atol=1e-5)


def test_local_draws_share_the_weights_of_a_convolution():
    network, mean = as_network(LAYERS["Convolution, stacked"][0](jax.random.key(0)))
    sigma = jax.tree.map(lambda leaf: 0.1 + normal(1, *leaf.shape) ** 2, mean)
    x = normal(2, 3, 3, 5, 5)
    z = LocalReparameterisation().latents(network, mean, 3)
    z = z | {"weights": jax.tree.map(lambda leaf: normal(4, *leaf.shape), z["weights"])}
    wanted = network.outputs(jax.tree.map(lambda m, s, e: m + s * e, mean, sigma, z["weights"]), jnp.asarray(x))
    np.testing.assert_allclose(LocalReparameterisation().outputs(network, mean, sigma, z, jnp.asarray(x)), wanted, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_observations_have_draws_of_their_own(name):
    make, shape = LAYERS[name]
    network, mean = as_network(make(jax.random.key(0)))
    sigma = jax.tree.map(lambda leaf: 0.1 + normal(1, *leaf.shape) ** 2, mean)
    x = normal(2, 3, *shape)
    z = jax.tree.map(lambda leaf: normal(3, *leaf.shape), PerObservation().latents(network, mean, 3))
    found = PerObservation().outputs(network, mean, sigma, z, jnp.asarray(x))
    for i in range(3):
        weights = jax.tree.map(lambda m, s, e, i=i: m + s * e[i], mean, sigma, z)
        np.testing.assert_allclose(found[i], network.single(weights, jnp.asarray(x[i])), atol=1e-5)


def test_channels():
    assert channels(Dense(5, 3, key=jax.random.key(0))) == (5, 3)
    assert channels(Convolution(2, 7, 3, key=jax.random.key(0))) == (2, 7)
    assert over_channels(jnp.ones((4, 3)), jnp.ones((4, 5, 5, 3))).shape == (4, 1, 1, 3)
