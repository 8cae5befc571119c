"""Small models as chains of blocks, each with its forward and backward jaxpr, as a layered train step has them."""

import jax
import jax.numpy as jnp
from jax import core

from alpa_dejavu.sharding.layers import LayerJaxprs


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

    return core.Jaxpr(
        jaxpr.constvars, [new(v) for v in jaxpr.invars], [new(v) for v in jaxpr.outvars],
        [eqn.replace(invars=[new(v) for v in eqn.invars]) for eqn in jaxpr.eqns],
    )


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


def gpt(num_blocks=4, batch=8, length=64, hidden=256, heads=8, vocabulary=1024, block=None):
    block = block or pre_norm(heads)
    blocks = [(block, transformer_parameters(hidden)) for _ in range(num_blocks)]
    blocks[0] = _after(embed, shapes(table=(vocabulary, hidden), places=(length, hidden)), *blocks[0])
    blocks[-1] = _before(*blocks[-1], head, shapes(out=(hidden, vocabulary)))
    return chain_of(blocks, jax.ShapeDtypeStruct((batch, length), jnp.int32))


def bert(**sizes):
    return gpt(block=post_norm(sizes.pop("heads", 8)), **sizes)


def _after(first, first_parameters, second, second_parameters):
    return lambda p, x: second(p[1], first(p[0], x)), (first_parameters, second_parameters)


def _before(first, first_parameters, second, second_parameters):
    return _after(first, first_parameters, second, second_parameters)
