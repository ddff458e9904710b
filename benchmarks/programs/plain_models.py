"""Steps of plain JAX for models of many kinds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs import models
from benchmarks.programs.models import BATCH, WIDTH, normal, weights
from benchmarks.programs.program import STEPS, Trial


def _keys() -> Any:
    return jax.random.split(jax.random.key(7), STEPS)


def variational_autoencoder() -> Trial:
    """A key in the state, samples of a posterior, and its divergence."""

    def loss(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        mean, log_variance = jnp.split(models.apply_mlp(params["encoder"], x), 2, -1)
        noise = jax.random.normal(key, mean.shape)
        latent = mean + jnp.exp(0.5 * log_variance) * noise
        out = models.apply_mlp(params["decoder"], latent @ params["up"])
        divergence = -0.5 * jnp.sum(1 + log_variance - mean**2 - jnp.exp(log_variance), -1)
        return jnp.mean(jnp.sum((out - x) ** 2, -1) + 0.1 * divergence)

    def step(params: Any, key: jax.Array, x: jax.Array) -> Any:
        key, mine = jax.random.split(key)
        value, grads = jax.value_and_grad(loss)(params, x, mine)
        return models.descend(params, grads, 1e-2), key, value

    params = {
        "encoder": models.mlp(2),
        "up": weights(9, WIDTH // 2, WIDTH),
        "decoder": models.mlp(2),
    }
    batches = tuple((x,) for x, _ in models.rows())
    return Trial(step, (params, jax.random.key(3)), batches)


def codebook() -> Trial:
    """Rows are rounded to vectors of a book (straight through), which follows their averages."""

    def loss(params: Any, book: jax.Array, x: jax.Array) -> Any:
        hidden = models.apply_mlp(params["encoder"], x)
        distances = jnp.sum((hidden[:, None] - book) ** 2, -1)
        chosen = jnp.argmin(distances, -1)
        rounded = book[chosen]
        through = hidden + lax.stop_gradient(rounded - hidden)
        out = models.apply_mlp(params["decoder"], through)
        commitment = jnp.mean((hidden - lax.stop_gradient(rounded)) ** 2)
        return jnp.mean((out - x) ** 2) + 0.25 * commitment, (hidden, chosen)

    def step(params: Any, book: jax.Array, counts: jax.Array, sums: jax.Array, x: Any) -> Any:
        (value, aux), grads = jax.value_and_grad(loss, has_aux=True)(params, book, x)
        picks = jax.nn.one_hot(aux[1], len(book))
        counts = 0.9 * counts + 0.1 * picks.sum(0)
        sums = 0.9 * sums + 0.1 * picks.T @ aux[0]
        return models.descend(params, grads), sums / counts[:, None], counts, sums, value

    params = {"encoder": models.mlp(2), "decoder": models.mlp(2)}
    book = normal(5, 12, WIDTH)
    return Trial(step, (params, book, jnp.ones(12), book), tuple((x,) for x, _ in models.rows()))


def physics_informed() -> Trial:
    """The residual of an equation, of second derivatives along the inputs, and its boundary."""

    def field(params: Any, point: jax.Array) -> jax.Array:
        return models.apply_mlp(params["layers"], point @ params["in"]) @ params["out"]

    def residual(params: Any, point: jax.Array) -> jax.Array:
        def along(axis: int) -> jax.Array:
            unit = jnp.zeros(2).at[axis].set(1.0)

            def first(p: jax.Array) -> jax.Array:
                return jax.jvp(lambda q: field(params, q), (p,), (unit,))[1]

            return jax.jvp(first, (point,), (unit,))[1]

        return along(0) + along(1) + jnp.sin(point.sum())

    def loss(params: Any, inside: jax.Array, border: jax.Array) -> jax.Array:
        inner = jax.vmap(residual, (None, 0))(params, inside)
        return jnp.mean(inner**2) + jnp.mean(jax.vmap(field, (None, 0))(params, border) ** 2)

    params = {"in": weights(1, 2, WIDTH), "layers": models.mlp(2), "out": normal(2, WIDTH) / 4}
    return Trial(models.sgd_step(loss), (params,), models.rows(2))


def score_matching() -> Trial:
    """Sliced score matching: a product of the Jacobian and a random direction."""

    def loss(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        direction = jax.random.rademacher(key, x.shape, x.dtype)
        score, along = jax.jvp(lambda x: models.apply_mlp(params, x), (x,), (direction,))
        return jnp.mean(jnp.sum(along * direction, -1) + 0.5 * jnp.sum(score**2, -1))

    batches = tuple((x, key) for (x, _), key in zip(models.rows(), _keys(), strict=True))
    return Trial(models.sgd_step(loss), (models.mlp(3),), batches)


def neural_ode() -> Trial:
    """Runge-Kutta steps of a field of weights, in a scan, for spans of each row."""

    def loss(params: Any, x: jax.Array, y: jax.Array, span: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: Any) -> Any:
            def field(x: jax.Array) -> jax.Array:
                return models.apply_mlp(params, x) - x

            h = span[:, None] / 6
            k1 = field(x)
            k2 = field(x + h / 2 * k1)
            k3 = field(x + h / 2 * k2)
            k4 = field(x + h * k3)
            return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

        return jnp.mean((lax.scan(step, x, length=6)[0] - y) ** 2)

    batches = tuple(
        (*batch, jax.random.uniform(key, (BATCH,)))
        for batch, key in zip(models.rows(), _keys(), strict=True)
    )
    return Trial(models.sgd_step(loss), (models.mlp(2),), batches)


def masked_recurrence() -> Trial:
    """A GRU over sequences of several lengths: rows keep their state behind their end, and the
    loss is over all positions that count."""

    def cell(params: Any, h: jax.Array, x: jax.Array) -> jax.Array:
        reset, update = jnp.split(
            jax.nn.sigmoid(jnp.concatenate([x, h], -1) @ params["gates"]), 2, -1
        )
        new = jnp.tanh(jnp.concatenate([x, reset * h], -1) @ params["new"])
        return update * h + (1 - update) * new

    def loss(params: Any, x: jax.Array, y: jax.Array, lengths: jax.Array) -> jax.Array:
        mask = jnp.arange(x.shape[1]) < lengths[:, None]

        def step(h: jax.Array, at: Any) -> Any:
            h = jnp.where(at[1][:, None], cell(params, h, at[0]), h)
            return h, h

        _, states = lax.scan(step, jnp.zeros((len(x), WIDTH)), (x.swapaxes(0, 1), mask.T))
        errors = jnp.mean((states.swapaxes(0, 1) - y) ** 2, -1)
        return jnp.sum(errors * mask) / mask.sum()

    params = {"gates": weights(1, 2 * WIDTH, 2 * WIDTH), "new": weights(2, 2 * WIDTH, WIDTH)}
    batches = tuple(
        (*batch, jax.random.randint(key, (BATCH,), 1, 7))
        for batch, key in zip(models.rows(6, WIDTH), _keys(), strict=True)
    )
    return Trial(models.sgd_step(loss), (params,), batches)


def selective_scan() -> Trial:
    """A state space whose steps depend on the input, as an associative scan, with a convolution
    along positions in front."""

    def mix(layer: Any, x: jax.Array) -> jax.Array:
        padded = jnp.pad(x, ((0, 0), (2, 0), (0, 0)))
        x = sum(padded[:, k : k + 6] * layer["taps"][k] for k in range(3))
        x = jax.nn.silu(x)
        step = jax.nn.softplus(x @ layer["step"])
        decay = jnp.exp(-step[..., None] * jnp.exp(layer["decay"]))
        fed = (step * x)[..., None] * (x @ layer["in"])[:, :, None, :]

        def join(a: Any, b: Any) -> Any:
            return a[0] * b[0], b[0] * a[1] + b[1]

        states = lax.associative_scan(join, (decay, fed), axis=1)[1]
        return jnp.einsum("btds,bts->btd", states, x @ layer["out"])

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for layer in params:
            x = x + jnp.tanh(mix(layer, x))
        return jnp.mean((x - y) ** 2)

    params = [
        {
            "taps": normal(k, 3, WIDTH) / 2,
            "step": weights(10 + k, WIDTH, WIDTH),
            "decay": jnp.zeros((WIDTH, 4)),
            "in": weights(20 + k, WIDTH, 4),
            "out": weights(30 + k, WIDTH, 4),
        }
        for k in range(3)
    ]
    return Trial(models.sgd_step(loss), (params,), models.rows(6, WIDTH))


def detection() -> Trial:
    """Boxes are gathered at places of each row; the loss is over those that are there."""

    def loss(params: Any, image: jax.Array, places: jax.Array, boxes: jax.Array, there: Any) -> Any:
        features = jax.nn.relu(
            lax.conv_general_dilated(
                image, params["conv"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        ).reshape(len(image), -1, 8)
        found = jnp.take_along_axis(features @ params["head"], places[..., None], 1)
        error = jnp.abs(found - boxes)
        smooth = jnp.where(error < 1, 0.5 * error**2, error - 0.5).sum(-1)
        heat = jnp.mean((features @ params["heat"]) ** 2)
        return jnp.sum(smooth * there) / jnp.maximum(there.sum(), 1) + heat

    params = {"conv": normal(1, 3, 3, 3, 8) / 5, "head": weights(2, 8, 4), "heat": normal(3, 8)}
    batches = tuple(
        (
            normal(300 + k, BATCH, 8, 8, 3),
            jax.random.randint(key, (BATCH, 5), 0, 64),
            normal(400 + k, BATCH, 5, 4),
            jax.random.bernoulli(key, 0.5, (BATCH, 5)),
        )
        for k, key in enumerate(_keys())
    )
    return Trial(models.sgd_step(loss), (params,), batches)


def segmentation() -> Trial:
    """A small U-Net: pooling, resizing, a transposed convolution, and skips."""

    def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.nn.gelu(
            lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        )

    def loss(params: Any, image: jax.Array, labels: jax.Array) -> jax.Array:
        first = conv(image, params["a"])
        small = lax.reduce_window(first, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        low = conv(small, params["b"])
        up = lax.conv_transpose(
            low, params["c"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        low = jax.image.resize(low, up.shape, "bilinear")
        logits = jnp.concatenate([first, up, low], -1) @ params["head"]
        return models.cross_entropy(logits, labels)

    params = {
        "a": normal(1, 3, 3, 3, 8) / 5,
        "b": normal(2, 3, 3, 8, 8) / 8,
        "c": normal(3, 2, 2, 8, 8) / 5,
        "head": weights(4, 24, 4),
    }
    batches = tuple(
        (normal(300 + k, BATCH, 8, 8, 3), jax.random.randint(key, (BATCH, 8, 8), 0, 4))
        for k, key in enumerate(_keys())
    )
    return Trial(models.sgd_step(loss), (params,), batches)


def masked_patches() -> Trial:
    """An encoder sees patches that a permutation of each row picks, a decoder fills the others."""
    patches, seen = 8, 3

    def loss(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        order = jnp.argsort(jax.random.uniform(key, x.shape[:2]), axis=1)
        back = jnp.argsort(order, axis=1)
        kept = jnp.take_along_axis(x + params["places"], order[:, :seen, None], 1)
        kept = models.apply_mlp(params["encoder"], kept)
        empty = jnp.broadcast_to(params["empty"], (len(x), patches - seen, WIDTH))
        whole = jnp.take_along_axis(jnp.concatenate([kept, empty], 1), back[..., None], 1)
        mixed = whole + whole.mean(1, keepdims=True) + params["places"]
        errors = jnp.mean((models.apply_mlp(params["decoder"], mixed) - x) ** 2, -1)
        hidden = (back >= seen).astype(x.dtype)
        return jnp.sum(errors * hidden) / hidden.sum()

    params = {
        "places": normal(1, patches, WIDTH),
        "empty": normal(2, WIDTH),
        "encoder": models.mlp(2),
        "decoder": models.mlp(2),
    }
    batches = tuple((normal(100 + k, BATCH, patches, WIDTH), key) for k, key in enumerate(_keys()))
    return Trial(models.sgd_step(loss), (params,), batches)


def augmentation() -> Trial:
    """Rows are cropped at random places, flipped, and mixed with others before they are read."""

    def step(params: Any, key: jax.Array, images: jax.Array, labels: jax.Array) -> Any:
        key, crop, flip, mix, order = jax.random.split(key, 5)
        corners = jax.random.randint(crop, (len(images), 2), 0, 3)
        cut = jax.vmap(lambda image, at: lax.dynamic_slice(image, (*at, 0), (6, 6, 3)))
        x = cut(images, corners)
        turned = jax.random.bernoulli(flip, shape=(len(images), 1, 1, 1))
        x = jnp.where(turned, x[:, :, ::-1], x)
        share = jax.random.beta(mix, 0.4, 0.4)
        other = jax.random.permutation(order, len(images))
        x = share * x + (1 - share) * x[other]
        y = jax.nn.one_hot(labels, 4)
        y = share * y + (1 - share) * y[other]

        def loss(params: Any) -> jax.Array:
            hidden = jnp.tanh(x.reshape(len(x), -1) @ params["in"])
            logits = models.apply_mlp(params["layers"], hidden) @ params["head"]
            return -jnp.mean(jnp.sum(y * jax.nn.log_softmax(logits), -1))

        value, grads = jax.value_and_grad(loss)(params)
        return models.descend(params, grads), key, value

    params = {"in": weights(1, 108, WIDTH), "layers": models.mlp(2), "head": weights(2, WIDTH, 4)}
    return Trial(step, (params, jax.random.key(3)), models.images())


def ensemble() -> Trial:
    """Four models side by side by vmap, with rates of their own, on one batch."""

    def step(params: Any, rates: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def one(params: Any, rate: jax.Array) -> Any:
            value, grads = jax.value_and_grad(models.squared_error)(params, x, y)
            return models.descend(params, grads, rate), value

        params, values = jax.vmap(one)(params, rates)
        return params, rates, values

    params = jax.vmap(lambda k: jax.tree.map(lambda p: p * (1 + 0.1 * k), models.mlp(3)))(
        jnp.arange(4.0)
    )
    return Trial(step, (params, jnp.array([0.1, 0.05, 0.02, 0.01])), models.rows())


def meta_learning() -> Trial:
    """Gradients through two steps of descent on each task (MAML)."""

    def loss(params: Any, x: jax.Array, y: jax.Array, held_x: jax.Array, held_y: jax.Array) -> Any:
        def task(x: jax.Array, y: jax.Array, held_x: jax.Array, held_y: jax.Array) -> jax.Array:
            fast = params
            for _ in range(2):
                fast = models.descend(fast, jax.grad(models.squared_error)(fast, x, y), 0.05)
            return models.squared_error(fast, held_x, held_y)

        return jax.vmap(task)(x, y, held_x, held_y).mean()

    batches = tuple(
        (*support, *held)
        for support, held in zip(models.rows(5, WIDTH), models.rows(3, WIDTH), strict=True)
    )
    return Trial(models.sgd_step(loss), (models.mlp(2),), batches)


def teacher_by_average() -> Trial:
    """Two views of each row, and a teacher that is an average of its student (BYOL)."""

    def step(student: Any, teacher: Any, x: jax.Array, key: jax.Array) -> Any:
        one, two = (x + 0.1 * jax.random.normal(k, x.shape) for k in jax.random.split(key))

        def unit(v: jax.Array) -> jax.Array:
            return v / jnp.linalg.norm(v, axis=-1, keepdims=True)

        def loss(student: Any) -> jax.Array:
            told = lax.stop_gradient(unit(models.apply_mlp(teacher, two)))
            guess = unit(
                models.apply_mlp(student["predictor"], models.apply_mlp(student["net"], one))
            )
            return jnp.mean(2 - 2 * jnp.sum(guess * told, -1))

        value, grads = jax.value_and_grad(loss)(student)
        student = models.descend(student, grads)
        average = jax.tree.map(lambda t, s: 0.9 * t + 0.1 * s, teacher, student["net"])
        return student, average, value

    student = {"net": models.mlp(3), "predictor": models.mlp(1)}
    batches = tuple((x, key) for (x, _), key in zip(models.rows(), _keys(), strict=True))
    return Trial(step, (student, models.mlp(3)), batches)


def ragged_experts() -> Trial:
    """Tokens of all rows are sorted by expert, and multiplied group by group."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        tokens = x.reshape(-1, WIDTH)
        scores = jax.nn.softmax(tokens @ params["router"])
        expert = scores.argmax(-1)
        order = jnp.argsort(expert)
        done = lax.ragged_dot(tokens[order], params["experts"], jnp.bincount(expert, length=4))
        back = jnp.zeros_like(done).at[order].set(done)
        mixed = back * jnp.take_along_axis(scores, expert[:, None], -1)
        return jnp.mean((x + mixed.reshape(x.shape) - y) ** 2)

    params = {"router": weights(1, WIDTH, 4), "experts": weights(2, 4, WIDTH, WIDTH)}
    return Trial(models.sgd_step(loss), (params,), models.rows(6, WIDTH))


def grouped_queries() -> Trial:
    """Attention of the library: causal, with a window, and keys that queries share."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for layer in params:
            heads = x.reshape(*x.shape[:2], 4, 4)
            q, k, v = (
                heads @ layer["q"],
                heads[:, :, :2] @ layer["k"],
                heads[:, :, :2] @ layer["v"],
            )
            mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=(3, 0))
            x = x + mixed.reshape(x.shape) @ layer["out"]
        return jnp.mean((x - y) ** 2)

    params = [
        {
            "q": weights(k, 4, 4),
            "k": weights(10 + k, 4, 4),
            "v": weights(20 + k, 4, 4),
            "out": weights(30 + k, WIDTH, WIDTH),
        }
        for k in range(3)
    ]
    return Trial(models.sgd_step(loss), (params,), models.rows(6, WIDTH))


def gaussian_process() -> Trial:
    """Each row is a set of points: a kernel of features, a Cholesky factor, and solutions."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        features = models.apply_mlp(params, x)
        kernel = features @ features.swapaxes(1, 2) / WIDTH + jnp.eye(5)
        factor = jnp.linalg.cholesky(kernel)
        half = jax.scipy.linalg.solve_triangular(factor, y.mean(-1, keepdims=True), lower=True)
        logs = jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)).sum(-1)
        return jnp.mean(0.5 * jnp.sum(half**2, (1, 2)) + logs)

    return Trial(models.sgd_step(loss), (models.mlp(2),), models.rows(5, WIDTH))


PROGRAMS = {
    "variational autoencoder": variational_autoencoder,
    "codebook with averages (VQ)": codebook,
    "second derivatives in the loss": physics_informed,
    "sliced score matching": score_matching,
    "neural ODE by scan": neural_ode,
    "masked GRU": masked_recurrence,
    "selective state space": selective_scan,
    "detection, gathered boxes": detection,
    "U-Net": segmentation,
    "masked patches": masked_patches,
    "crops, flips and mixed rows": augmentation,
    "ensemble by vmap": ensemble,
    "meta-learning (MAML)": meta_learning,
    "teacher by average (BYOL)": teacher_by_average,
    "experts by ragged_dot": ragged_experts,
    "grouped queries, local window": grouped_queries,
    "Gaussian process of each row": gaussian_process,
}
