"""Numbers of the cost model that nobody measured or published: what each is, and why it is believed.

All other numbers carry their source beside them. How far an estimate moves when one of these is wrong by 20% is said in
docs/reference/assumed.md. "The probe" is ours on one H200 (`benchmarks/data`); its bytes are what a streaming kernel
would move in the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Passes = tuple[float, float]
"""Of a forward and of a backward pass."""


def _launches() -> dict[str, Passes]:
    return {
        "embedding": (3.0, 6.0),
        "scores stored": (6.0, 9.0),
        "scores with a bias": (15.0, 16.0),
        "rotary tables": (8.0, 6.0),
        "latent rope": (12.0, 16.0),
        "fused latent rope": (3.0, 3.0),
        "router": (10.0, 14.0),
        "permute": (5.0, 4.0),
        "experts": (2.0, 4.0),
        "combine": (4.0, 5.0),
        "fp32 loss": (6.0, 6.0),
        "in-place loss": (14.0, 5.0),
        "fused loss": (3.0, 2.0),
        "compiled loss": (3.0, 3.0),
        "compiled-fp32 loss": (3.0, 3.0),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """The assumed numbers; there is one of it."""

    gemm_share: float = 0.7
    """Share of the peak that matrix products reach where a calibration has neither their format nor bf16. The
    catalog's calibrations, all of which have it, say 0.47 to 0.78."""
    network_share: float = 0.8
    """Share of a level's bandwidth where a calibration names neither the level nor a default. The catalog's
    calibrations say 0.7 to 0.8, fitted to published runs."""
    scores_stored: float = 0.6
    """Speed of the batched products of attention that stores its scores, over plain products, with heads of 128; less
    in the measure that heads are narrower. The probe: 0.47 to 0.67 with heads of 128, 0.27 to 0.34 with heads of 64."""
    full_square: float = 0.45
    """What a short sequence costs attention over the whole square, over what it costs causal attention. There is no
    diagonal whose blocks are half empty; the probe's full squares lose even less."""
    least_filled: float = 0.05
    """Least share of an expert's tile that counts as filled. A guard: it shows with fewer than 4 tokens an expert."""
    tree_traffic: float = 1.15
    """Time of a tree over that of a ring with the same bytes, in a large all-reduce. NCCL's own model (`tuning.cc`)
    says 1 / 0.92, and more for middling sizes; a tree is only chosen where steps cost more than bytes."""
    communicator: float = 0.25e9
    """Bytes outside the allocator for every axis that spans ranks. NCCL's buffers grow with channels,
    peers and protocols: a few hundred MB for a communicator."""
    per_tensor: float = 1.5
    """Launches a tensor that show where an optimizer is not fused. The probe's AdamW, tensor by tensor, takes 11 to
    12 us a tensor longer than in passes over many: two launches, of which some hide."""
    fp8_attention: float = 1.3
    """Speed of attention in 8 bit over that in 16 bit, both passes, its casts counted in."""
    scan: float = 0.3
    """Speed of recurrences computed in chunks (Mamba-2, delta nets, lightning attention) over that of plain products in
    16 bit: their matrices are 64 to 256 wide and states pass between them. The Mamba-2 paper (arXiv 2405.21060, figure
    10) has its kernel meet FlashAttention-2 at sequences of 2,048 on an A100, which is 0.25 to 0.35 of a product's."""
    graphed_attention: float = 0.5
    """Share of a layer's own host code that goes when CUDA graphs cover its attention alone: about half of a layer's
    kernels and modules stand there. What graphs keep in pools of their own is assumed to be nothing."""
    offload_layers: float = 2.0
    """Layers whose activations stay on the device when they are offloaded: one at work and one on its way."""
    head_norm: Passes = (2.0, 1.5)
    """Traffic of a fused norm over one head, over that of a norm over the hidden state, in one kernel. Short rows leave
    a block of threads idle; the probe's native norm over 128 elements loses more, 3.4 and 2.0, and has those."""
    dropout_mask: float = 1.5
    """Bytes an element that dropout adds to the forward residual addition: its mask, and drawing it."""
    fused_loss: Passes = (8.0, 6.0)
    """Traffic of a fused loss, bytes a logit: four and three passes over logits of 16 bit."""
    compiled_loss: Passes = (8.0, 8.0)
    """The same of a compiled loss: four passes each way."""
    launches: dict[str, Passes] = field(default_factory=_launches)
    """Kernels that these operators launch, as far as the host is kept busy by them. From what the operators do, not
    counted in a trace; the probe counts 3 and 4 for the library's loss without what stands around it."""
    restart: float = 600.0
    """Seconds from a failure until training goes on: found, rescheduled, started and loaded in ten minutes."""
    checkpoint_bytes: float = 14.0
    """Bytes per parameter of a checkpoint: weights in 16 bit, fp32 copies and two moments. Where the weights are in
    fp32 themselves it is 12."""
    store: float = 2e9
    """Bytes per second and node that a checkpoint is written with: a parallel file system that is shared."""


ASSUMED = Assumed()
