"""What stands at both ends of a tower, and what conditions the layers of a diffusion transformer, on one rank."""

from __future__ import annotations

from dataclasses import replace

from shardwise.ops.linear import Linear, linear, norm
from shardwise.ops.op import Op
from shardwise.ops.shard import Shard

# Scaling and shifting what a norm made, in eager torch, over the bytes of a stream: a product and a sum of operands
# whose rows repeat; backward a product, and a sum over the tokens for each of the two, in two steps that cost by
# themselves (weights of traced kernels, `frameworks/torch/trace_ops.py`).
MODULATED, MODULATED_KERNELS, TWO_SUMS = (12.0, 12.2), (3.0, 6.0), 68e6
PLACES = "places"
"""What the host does once for a tower, beside its layers."""


def trained(shard: Shard, ops: list[Op]) -> list[Op]:
    """Operators as they are, or those of a frozen tower forward alone."""
    return [op.forward_alone() for op in ops] if shard.frozen else ops


def stem(shard: Shard) -> list[Op]:
    """Convolutions over pictures or recordings, learned positions and tokens added."""
    model, made = shard.model, shard.model.stem
    if made is None:
        return []
    read = shard.element * shard.tokens * made.read
    layer = Linear("stem", "embedding", made.read, model.hidden, "none", read, shard.residual, bias=made.bias)
    first = linear(shard, layer)
    first = first._replace(extra_b=first.extra_b - shard.element * shard.tokens * made.read)  # inputs have no gradient
    ops = [first]
    if made.kernel:  # the first convolution's steps are single frames, the second's make tokens of them
        frames = shard.tokens * made.patch
        wide = shard._replace(tokens=frames)
        inner = shard.element * frames * model.hidden
        one = Linear("stem", "embedding", made.kernel * made.channels, model.hidden, "none", 0.0, bias=made.bias)
        two = Linear("stem", "embedding", made.kernel * model.hidden, model.hidden, "none", 2 * inner, bias=made.bias)
        ops = [linear(wide, one), linear(shard, two)]
    held = made.leading * model.hidden + (model.max_positions * model.hidden if model.tabled else 0)
    added = held + _condition_params(shard)
    size = shard.residual
    ops.append(Op("positions", "embedding", "memory", (), 3 * size, 2 * size, 2.0, 2.0, 0.0, size, size, added))
    if model.embedding_norm:
        ops.append(norm(shard, "embedding norm", "embedding"))
    return ops


def _condition_params(shard: Shard) -> float:
    """Time steps pass two linear layers; classes are looked up."""
    model = shard.model
    if not model.condition:
        return 0.0
    return model.condition * model.hidden + model.hidden + model.hidden * (model.hidden + 1 + model.classes)


def modulation(shard: Shard, parts: int) -> list[Op]:
    """Scales, shifts and gates of a layer, out of a sample's condition, and what is done with them beside the gates."""
    model, rows = shard.model, shard._replace(tokens=float(shard.samples), seq=1.0)
    if not model.condition:
        return []
    layer = Linear("modulation", "modulation", model.hidden, parts * model.hidden, "none", bias=True)
    size, twos = shard.residual, parts // 3 or 1
    moved = Op(
        "modulate", "modulation", "memory", (), twos * MODULATED[0] * size,
        twos * (MODULATED[1] * size + TWO_SUMS),
        twos * MODULATED_KERNELS[0], twos * MODULATED_KERNELS[1], twos * size, 2 * size, 3 * size,
    )  # fmt: skip
    return [linear(rows, layer)._replace(kernels_f=2.0, kernels_b=4.0), moved]


def closing(own: Shard, behind: Shard) -> list[Op]:
    """The last norm of a tower, and its projector into the model `behind` it."""
    model, projector = own.model, own.model.projector
    last = [norm(own, "final norm", "attention-norm")] if model.final_norm else []
    ops = trained(own, last)
    if projector is None:
        return ops
    squared = projector.merge * projector.merge
    merged = own._replace(tokens=own.tokens / squared)
    width, out = projector.widths(model.hidden, behind.model.hidden)[0], behind.model.hidden
    if projector.norm != "none":
        place = own if projector.norm == "tokens" else merged
        place = place._replace(model=replace(model, norm="rmsnorm")) if projector.rms else place
        ops.append(norm(place, "projector norm", "projector", None if projector.norm == "tokens" else width))
    linears = projector.linears(model.hidden, out)
    for index, (inputs, outputs) in enumerate(linears):
        kept = merged.element * merged.tokens * inputs
        layer = Linear("projector", "projector", inputs, outputs, "none", kept, 0.0, projector.bias)
        ops.append(linear(merged, layer))
        if index < len(linears) - 1:
            size = merged.element * merged.tokens * outputs
            act = Op("projector activation", "projector", "memory", (), 2 * size, 3 * size, 1.0, 1.0, size, size, size)
            ops.append(act)
    if own.runtime.overheads.tower:
        ops.append(Op(PLACES, "projector", "memory", kernels_f=0.0, kernels_b=0.0))
    if projector.taps:
        each = [norm(merged, "projector norm", "projector", width)] + [
            op for op in ops if op.name not in {"final norm", PLACES}
        ]
        each = [op for op in each if op.name != "projector norm" or op is each[0]]
        ops += projector.taps * each
    return ops
