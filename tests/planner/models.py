"""Small models made by hand for the planner's tests, with figures that can be reckoned in the head."""

from alpa_dejavu.problem import (
    Layer,
    MeshConfig,
    Model,
    Operator,
    Operators,
    SearchSpace,
    Submesh,
    Tensor,
)

NOTHING = Operators.of([])


def product(flop):
    return Operators.of([Operator("dot", "dot_general", (), (), "float32", float(flop))])


def chain(num_layers=4, flop=1e9, parameter_bytes=1000.0, activation_bytes=100.0, training=True, exchanged=(400.0,)):
    """Layers in a row: each has one parameter, takes the result of the one before, and keeps it for its backward."""
    last = 2 * num_layers - 1
    layers, tensors = [], []
    for n in range(num_layers):
        backward = product(2 * flop) if training else NOTHING
        layers.append(Layer(f"layer {n}", product(flop), backward, NOTHING, exchanged_bytes=exchanged))
        here = (n, last - n) if training else (n,)
        tensors.append(Tensor(parameter_bytes, "parameter", -1, here))
        if n:
            tensors.append(Tensor(activation_bytes, "activation", n - 1, here))
        if training:
            tensors.append(Tensor(parameter_bytes, "gradient", -1, (n,)))
            tensors.append(Tensor(2 * parameter_bytes, "optimizer", -1, (n,)))
        if training and n:
            tensors.append(Tensor(activation_bytes, "activation", last - n, (last - n + 1,)))
    tensors.append(Tensor(activation_bytes, "input", -1, (0, last) if training else (0,)))
    return Model(tuple(layers), tuple(tensors), training)


def space(hosts=1, devices=4, imbalance=float("inf")):
    """Every power of two of devices in a host, then whole hosts; every split into data and tensor parallelism."""
    shapes = [(1, 2**n) for n in range(devices.bit_length())] + [(n, devices) for n in range(2, hosts + 1)]
    rows = []
    for shape in shapes:
        size = shape[0] * shape[1]
        splits = [along for along in (1, 2, 4, 8) if size % along == 0]
        rows.append([MeshConfig((size // along, along), size // along, along) for along in splits])
    width = max(map(len, rows))
    configs = tuple(tuple(row + [None] * (width - len(row))) for row in rows)
    return SearchSpace(tuple(Submesh(*shape) for shape in shapes), configs, imbalance)
