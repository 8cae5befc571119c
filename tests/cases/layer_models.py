"""Small models as chains of blocks, each with its forward and backward jaxpr, as a layered train step has them."""

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu._util.jax_api import core, new_jaxpr
from alpa_dejavu.sharding._build_program import layer_program
from alpa_dejavu.sharding.layer_sharding import COLLECTIVE_PHASES
from alpa_dejavu.sharding.layers import LayerJaxprs, kinds_of, solvers_on, stage_layers

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def sharded(layers, mesh, options, zero=0):
    """The layers of a model on a mesh, in all stages."""
    kinds, programs = kinds_of(layers)
    solvers = solvers_on(programs, mesh, options)
    return stage_layers([solvers[kind] for kind in kinds], [zero])[0]


def sharded_as_one(layers, mesh, options, batch_dims=None):
    """Layers in a row, sharded as one."""
    solvers = solvers_on([layer_program(layers, batch_dims)], mesh, options)
    return stage_layers(solvers, [0])[0].variants[0]


def communicated(layer):
    """Bytes and numbers of a layer's collectives, by phase, kind and axis; shape (2, 4, 4, axes)."""
    found = np.zeros((2, len(COLLECTIVE_PHASES), len(KINDS), len(layer.mesh_shape)))
    for one in layer.collectives:
        place = COLLECTIVE_PHASES.index(one.phase), KINDS.index(one.kind), one.axis
        found[(slice(None), *place)] += one.num_bytes * one.count, one.count
    return found


def _alike(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def chain_of(blocks, x):
    """The layers of a chain of blocks: (function(parameters, x), parameters) each; the last one's result is a loss.

    Their jaxprs share variables, as those that a step is cut into do.
    """
    layers, crossing = [], None
    stack = []
    for function, parameters in blocks:
        def forward(parameters, x, function=function):
            y, pull = jax.vjp(function, parameters, x)
            return y, pull

        jaxpr, (y, pull) = jax.make_jaxpr(forward, return_shape=True)(_alike(parameters), _alike(x))
        leaves, tree = jax.tree.flatten(pull)
        backward = jax.make_jaxpr(lambda leaves, dy, tree=tree: jax.tree.unflatten(tree, leaves)(dy))(leaves, y)
        stack.append((jaxpr.jaxpr, backward.jaxpr, len(jax.tree.leaves(parameters)), len(leaves)))
        x = y
    count = len(stack)
    forwards, backwards = [], []
    for n, (ahead, back, _, num_kept) in enumerate(stack):
        renamed = {} if n == 0 else {ahead.invars[-1]: crossing}
        forwards.append(rename(ahead, renamed))
        crossing = forwards[-1].outvars[0]
        pairs = zip(back.invars[:num_kept], forwards[-1].outvars[1:], strict=True)
        kept = {inner: made for inner, made in pairs if not isinstance(made, core.Literal)}
        backwards.append(rename(back, kept))
    for n in range(count - 1, 0, -1):
        backwards[n - 1] = rename(backwards[n - 1], {backwards[n - 1].invars[-1]: backwards[n].outvars[-1]})
    shared = set()
    for n in range(count - 1):
        shared |= {forwards[n].outvars[0], backwards[n + 1].outvars[-1]}
    for n, (_, _, num_parameters, _) in enumerate(stack):
        parameters = forwards[n].invars[:num_parameters]
        gradients = dict(zip(parameters, backwards[n].outvars[:num_parameters], strict=True))
        passes = (forwards[n], backwards[n])
        own = {v for one in passes for v in (*one.invars, *one.outvars) if not isinstance(v, core.Literal)}
        layers.append(
            LayerJaxprs(
                forwards[n], backwards[n], parameters=frozenset(parameters), gradients=gradients,
                states={p: (p, p) for p in gradients},
                shared=frozenset(v for v in shared if v in own),
            )
        )
    return layers


def rename(jaxpr, names):
    """A jaxpr with other variables."""
    def new(atom):
        return atom if isinstance(atom, core.Literal) else names.get(atom, atom)

    equations = [eqn.replace(invars=[new(v) for v in eqn.invars]) for eqn in jaxpr.eqns]
    return new_jaxpr(map(new, jaxpr.invars), map(new, jaxpr.outvars), equations, constants=jaxpr.constvars)


def shapes(**sizes):
    return {name: jax.ShapeDtypeStruct(size, jnp.float32) for name, size in sizes.items()}


def norm(x, scale, shift):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def attention(p, x, heads, causal):
    batch, length, hidden = x.shape
    q, k, v = (
        (x @ p[name] + p[f"b{name}"]).reshape(batch, length, heads, hidden // heads) for name in ("wq", "wk", "wv")
    )
    scores = jnp.einsum("bqnd,bknd->bnqk", q, k) / jnp.sqrt(hidden // heads)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bnqk,bknd->bqnd", jax.nn.softmax(scores), v).reshape(x.shape)
    return mixed @ p["wo"] + p["bo"]


def transformer_parameters(hidden, wide=None):
    wide = wide or 4 * hidden
    square, vector = (hidden, hidden), (hidden,)
    return shapes(
        wq=square, wk=square, wv=square, wo=square, bwq=vector, bwk=vector, bwv=vector, bo=vector, up=(hidden, wide),
        bup=(wide,), down=(wide, hidden), bdown=vector, g0=vector, h0=vector, g1=vector, h1=vector,
    )


def pre_norm(heads, causal=True):
    def block(p, x):
        x = x + attention(p, norm(x, p["g0"], p["h0"]), heads, causal)
        return x + jax.nn.gelu(norm(x, p["g1"], p["h1"]) @ p["up"] + p["bup"]) @ p["down"] + p["bdown"]

    return block


def post_norm(heads):
    def block(p, x):
        x = norm(x + attention(p, x, heads, False), p["g0"], p["h0"])
        return norm(x + jax.nn.gelu(x @ p["up"] + p["bup"]) @ p["down"] + p["bdown"], p["g1"], p["h1"])

    return block


def embed(p, ids):
    return p["table"][ids] + p["places"]


def head(p, x):
    logits = x @ p["out"]
    return -jax.nn.log_softmax(logits)[..., 0].mean()


def gpt(num_blocks=4, batch=8, length=64, hidden=256, heads=8, vocabulary=1024):
    blocks = [(pre_norm(heads), transformer_parameters(hidden)) for _ in range(num_blocks)]
    blocks[0] = _after(embed, shapes(table=(vocabulary, hidden), places=(length, hidden)), *blocks[0])
    blocks[-1] = _before(*blocks[-1], head, shapes(out=(hidden, vocabulary)))
    return chain_of(blocks, jax.ShapeDtypeStruct((batch, length), jnp.int32))


def _after(first, first_parameters, second, second_parameters):
    return lambda p, x: second(p[1], first(p[0], x)), (first_parameters, second_parameters)


def _before(first, first_parameters, second, second_parameters):
    return _after(first, first_parameters, second, second_parameters)


def experts(heads, count, capacity):
    """A transformer block whose second half are experts, each token sent to one of them, as in GShard."""
    def block(p, x):
        x = x + attention(p, norm(x, p["g0"], p["h0"]), heads, True)
        y = norm(x, p["g1"], p["h1"])
        gates = jax.nn.softmax(jnp.einsum("gsm,me->gse", y, p["gate"]))
        chosen = jax.nn.one_hot(jnp.argmax(gates, axis=-1), count)
        places = jnp.cumsum(chosen, axis=1) * chosen - 1
        sent = chosen[..., None] * jax.nn.one_hot(places.astype(int), capacity)
        weighted = sent * gates[..., None]
        taken = jnp.einsum("gsec,gsm->egcm", sent, y)
        inner = jax.nn.relu(jnp.einsum("egcm,emh->egch", taken, p["up"]))
        done = jnp.einsum("egch,ehm->egcm", inner, p["down"])
        return x + jnp.einsum("gsec,egcm->gsm", weighted, done)

    return block


def moe(num_blocks=4, batch=8, length=64, hidden=256, heads=8, vocabulary=1024, count=8):
    def parameters(n):
        found = transformer_parameters(hidden)
        if n % 2:
            more = shapes(
                gate=(hidden, count), up=(count, hidden, 4 * hidden), down=(count, 4 * hidden, hidden)
            )
            found = {k: v for k, v in found.items() if k not in ("bup", "bdown")} | more
        return found

    kinds = [experts(heads, count, 2 * length // count) if n % 2 else pre_norm(heads) for n in range(num_blocks)]
    blocks = [(kind, parameters(n)) for n, kind in enumerate(kinds)]
    blocks[0] = _after(embed, shapes(table=(vocabulary, hidden), places=(length, hidden)), *blocks[0])
    blocks[-1] = _before(*blocks[-1], head, shapes(out=(hidden, vocabulary)))
    return chain_of(blocks, jax.ShapeDtypeStruct((batch, length), jnp.int32))


def convolve(x, kernel, stride=1):
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def batch_norm(x, scale, shift):
    x = x - x.mean((0, 1, 2))
    return x * jax.lax.rsqrt((x**2).mean((0, 1, 2)) + 1e-5) * scale + shift


def bottleneck(stride):
    def block(p, x):
        y = jax.nn.relu(batch_norm(convolve(x, p["k0"]), p["g0"], p["h0"]))
        y = jax.nn.relu(batch_norm(convolve(y, p["k1"], stride), p["g1"], p["h1"]))
        y = batch_norm(convolve(y, p["k2"]), p["g2"], p["h2"])
        return jax.nn.relu(y + (convolve(x, p["k3"], stride) if "k3" in p else x))

    return block


def wide_resnet(batch=16, size=32, width=64, widen=2):
    def parameters(outer, inner, result):
        found = shapes(
            k0=(1, 1, outer, inner), k1=(3, 3, inner, inner), k2=(1, 1, inner, result), g0=(inner,), h0=(inner,),
            g1=(inner,), h1=(inner,), g2=(result,), h2=(result,),
        )
        return found | (shapes(k3=(1, 1, outer, result)) if outer != result else {})

    def stem(p, x):
        y = jax.nn.relu(batch_norm(convolve(x, p["k"], 2), p["g"], p["h"]))
        return jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    def pooled(p, x):
        return -jax.nn.log_softmax(x.mean((1, 2)) @ p["w"] + p["b"])[:, 0].mean()

    blocks, channels = [], width
    for stage in range(3):
        inner = width * 2**stage
        for n in range(2):
            blocks.append((bottleneck(2 if stage and not n else 1), parameters(channels, inner * widen, inner * 4)))
            channels = inner * 4
    blocks[0] = _after(stem, shapes(k=(7, 7, 3, width), g=(width,), h=(width,)), *blocks[0])
    blocks[-1] = _before(*blocks[-1], pooled, shapes(w=(channels, 1024), b=(1024,)))
    return chain_of(blocks, jax.ShapeDtypeStruct((batch, size, size, 3), jnp.float32))


def scanned(num_layers=3, trips=4, batch=8, length=64, hidden=256, heads=8, vocabulary=1024):
    """Each layer is a scan over blocks, their parameters stacked; a block is computed again in the backward pass."""
    def layer(p, x):
        block = jax.checkpoint(pre_norm(heads))
        return jax.lax.scan(lambda x, p: (block(p, x), None), x, p)[0]

    one = transformer_parameters(hidden)
    stacked = {name: jax.ShapeDtypeStruct((trips, *leaf.shape), leaf.dtype) for name, leaf in one.items()}
    blocks = [(layer, stacked) for _ in range(num_layers)]
    blocks[0] = _after(embed, shapes(table=(vocabulary, hidden), places=(length, hidden)), *blocks[0])
    blocks[-1] = _before(*blocks[-1], head, shapes(out=(hidden, vocabulary)))
    return chain_of(blocks, jax.ShapeDtypeStruct((batch, length), jnp.int32))


MODELS = {"gpt": gpt, "moe": moe, "wide_resnet": wide_resnet, "scanned": scanned}


def reached(edges, size):
    """Which nodes of a flow come before which, however many are between them."""
    before = np.zeros((size, size), dtype=bool)
    before[tuple(edges.T)] = True
    while True:
        more = before | (before.astype(np.float32) @ before.astype(np.float32) > 0)
        if (more == before).all():
            return before
        before = more
