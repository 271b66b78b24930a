"""The planned model in plain torch: the decoder of `shardwise_pipeline.json`, whole or a chunk of its layers.

Needs torch only. Weights are drawn by SEED and their place in the whole model, so that every split starts from the same
ones, which are also those of a folder for transformers.
"""

# mypy: ignore-errors
# a program to copy out: it must run, and read, without our checks; torch's own types change with its version

import math

import torch
import torch.distributed as dist
import torch.nn.functional as fn
from shardwise_loop import seed_of, seeds_of, wide
from torch import nn
from torch.utils.checkpoint import checkpoint

ACTIVATIONS = {
    "swiglu": fn.silu,
    "geglu": lambda x: fn.gelu(x, approximate="tanh"),
    "gelu": lambda x: fn.gelu(x, approximate="tanh"),
    "relu": fn.relu,
    "squared-relu": lambda x: fn.relu(x).square(),
}
GATED = ("swiglu", "geglu")


class OffsetNorm(nn.RMSNorm):  # multiplies by one more than its weights (Gemma)
    def forward(self, x):
        return fn.rms_norm(x, self.normalized_shape, 1.0 + self.weight, self.eps)


def norm(m, width):
    kind = OffsetNorm if m["norm_offset"] else nn.LayerNorm if m["norm"] == "layernorm" else nn.RMSNorm
    return kind(width, eps=m["norm_eps"])


# --- positions ---------------------------------------------------------------------------------------------------


def rotary(m, size, seq, device, own=0.0):
    """Cosines and sines of every position, [seq, pairs]; `own`: a base in place of the model's, without its stretch."""
    turned = size if m["mla"] else int(size * m["rotary_share"])
    scaling, base = (None, own) if own else (m["rope_scaling"], m["rotary_base"])
    if scaling and scaling["kind"] == "dynamic" and seq > scaling["original"]:
        longer = scaling["factor"] * seq / scaling["original"] - (scaling["factor"] - 1)
        base *= longer ** (turned / (turned - 2))
    pairs = torch.arange(0, turned, 2, device=device, dtype=torch.float32)
    speeds = base ** (-pairs / turned)
    stretch = {"linear": _linear, "llama3": _llama3, "yarn": _yarn}.get(scaling["kind"] if scaling else "")
    speeds = stretch(speeds, scaling, base, turned) if stretch else speeds
    angles = torch.outer(torch.arange(seq, device=device, dtype=torch.float32), speeds)
    grown = _growth(scaling) if scaling and scaling["kind"] == "yarn" else 1.0
    return angles.cos() * grown, angles.sin() * grown


def _linear(speeds, scaling, _base, _turned):
    return speeds / scaling["factor"]


def _llama3(speeds, scaling, _base, _turned):
    turns = scaling["original"] * speeds / (2 * math.pi)
    kept = ((turns - scaling["low"]) / (scaling["high"] - scaling["low"])).clamp(0, 1)
    return speeds * (kept + (1 - kept) / scaling["factor"])


def _yarn(speeds, scaling, base, turned):
    def border(turns):
        return turned * math.log(scaling["original"] / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = border(scaling["beta_fast"]), border(scaling["beta_slow"])
    if scaling["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, turned - 1)
    ramp = (torch.arange(len(speeds), device=speeds.device) - low) / max(high - low, 0.001)
    return speeds * (1 - ramp.clamp(0, 1) * (1 - 1 / scaling["factor"]))


def _mscale(scaling, weight):
    return 0.1 * weight * math.log(scaling["factor"]) + 1 if scaling["factor"] > 1 else 1.0


def _growth(scaling):
    """What yarn multiplies cosines and sines by."""
    if scaling["mscale_all"]:
        return _mscale(scaling, scaling["mscale"]) / _mscale(scaling, scaling["mscale_all"])
    return _mscale(scaling, 1.0)


def turn(x, cos, sin, *, pairs=False):
    """Rotary positions on the first dimensions of [batch, seq, heads, size]; `pairs`: neighbours turn (MLA)."""
    size, cos, sin = 2 * cos.shape[-1], cos[:, None], sin[:, None]
    part, rest = wide(x[..., :size]), x[..., size:]
    a, b = (part[..., 0::2], part[..., 1::2]) if pairs else part.chunk(2, dim=-1)
    turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


def alibi(heads, seq, device):
    """Bias that grows with the distance, a slope a head (Press et al.)."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (one + 1) / power) for one in range(power)]
    slopes += [2 ** (-4 * (2 * one + 1) / power) for one in range(heads - power)]
    distance = torch.arange(seq, device=device)[None, :] - torch.arange(seq, device=device)[:, None]
    return torch.tensor(slopes, device=device)[:, None, None] * distance


def causal(seq, window, device):
    """Which keys a query may see."""
    back = torch.arange(seq, device=device)[:, None] - torch.arange(seq, device=device)[None, :]
    return (back >= 0) & (back < window) if window else back >= 0


# --- attention ---------------------------------------------------------------------------------------------------


def attend(m, q, k, v, window, sinks=None, scale=None):
    """Causal attention of [batch, seq, heads, size], its scores stored only where no kernel does without."""
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))  # results come in the queries' own order: none is copied
    seq = q.shape[2]
    drop = m["dropout"] if torch.is_grad_enabled() else 0.0
    if sinks is not None or m["score_cap"] or not m["flash"]:
        return _stored(m, q, k, v, window, sinks, scale).transpose(1, 2)
    gqa = q.shape[1] != k.shape[1]
    mask = None
    if m["position"] == "alibi":
        mask = alibi(m["heads"], seq, q.device).masked_fill(~causal(seq, window, q.device), float("-inf")).to(q.dtype)
    elif window and window < seq:
        mask = causal(seq, window, q.device)
    return fn.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, dropout_p=drop, enable_gqa=gqa, scale=scale
    ).transpose(1, 2)


def _stored(m, q, k, v, window, sinks, scale):
    times = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    scores = capped(q @ k.transpose(2, 3) * (scale or q.shape[-1] ** -0.5), m["score_cap"])
    if m["position"] == "alibi":
        scores = scores + alibi(m["heads"], q.shape[2], q.device).to(scores.dtype)
    scores = scores.masked_fill(~causal(q.shape[2], window, q.device), float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)), dim=-1)
    shares = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
    return fn.dropout(shares[..., : k.shape[2]], m["dropout"]) @ v


def capped(x, most):
    """Held within `most` by tanh; 0: as it is."""
    return (x / most).tanh() * most if most else x


class Attention(nn.Module):
    def __init__(self, m, window):
        super().__init__()
        self.m, self.window, size = m, window, m["head_size"]
        query, kv = m["heads"] * size, m["kv_heads"] * size
        self.q = nn.Linear(m["hidden"], query, bias=m["qkv_bias"])
        self.k, self.v = (nn.Linear(m["hidden"], kv, bias=m["qkv_bias"]) for _ in range(2))
        self.out = nn.Linear(query, m["hidden"], bias=m["out_bias"])
        self.sinks = nn.Parameter(torch.empty(m["heads"])) if m["sinks"] else None
        self.kind, self.scale = m["qk_norm"], m["query_scalar"] ** -0.5 if m["query_scalar"] else None
        if self.kind != "none":
            self.q_norm, self.k_norm = (norm(m, size if self.kind == "head" else width) for width in (query, kv))

    def forward(self, x, tables):
        m, shape = self.m, (*x.shape[:2], -1, self.m["head_size"])
        q, k, v = self.q(x), self.k(x), self.v(x).view(shape)
        if self.kind == "full":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = q.view(shape), k.view(shape)
        if self.kind == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        if tables:
            q, k = turn(q, *tables), turn(k, *tables)
        mixed = attend(m, q.to(v.dtype), k.to(v.dtype), v, self.window, self.sinks, self.scale)
        return self.out(mixed.flatten(2))


class Latent(nn.Module):
    """Multi-head latent attention."""

    def __init__(self, m, window):
        super().__init__()
        a = self.a = m["mla"]
        self.m, self.window = m, window
        width = m["heads"] * (a["nope_size"] + a["rope_size"])
        if a["q_rank"]:
            self.q_down = nn.Linear(m["hidden"], a["q_rank"], bias=m["qkv_bias"])
            self.q_norm = norm(m, a["q_rank"])
        self.q = nn.Linear(a["q_rank"] or m["hidden"], width, bias=False)
        self.kv_down = nn.Linear(m["hidden"], a["kv_rank"] + a["rope_size"], bias=m["qkv_bias"])
        self.kv_norm = norm(m, a["kv_rank"])
        self.kv_up = nn.Linear(a["kv_rank"], m["heads"] * (a["nope_size"] + a["value_size"]), bias=False)
        self.out = nn.Linear(m["heads"] * a["value_size"], m["hidden"], bias=m["out_bias"])

    def forward(self, x, tables):
        a, m, shape = self.a, self.m, (*x.shape[:2], self.m["heads"], -1)
        q = self.q(self.q_norm(self.q_down(x)) if a["q_rank"] else x)
        q_nope, q_rope = q.view(shape).split((a["nope_size"], a["rope_size"]), dim=-1)
        latent, k_rope = self.kv_down(x).split((a["kv_rank"], a["rope_size"]), dim=-1)
        up = self.kv_up(self.kv_norm(latent)).view(shape)
        k_nope, v = up.split((a["nope_size"], a["value_size"]), dim=-1)
        k_rope = k_rope.unsqueeze(2)
        if tables:
            q_rope, k_rope = turn(q_rope, *tables, pairs=True), turn(k_rope, *tables, pairs=True)
        query = torch.cat((q_nope, q_rope), dim=-1)
        key = torch.cat((k_nope, k_rope.expand(*k_nope.shape[:-1], -1)), dim=-1)
        scale, scaling = query.shape[-1] ** -0.5, m["rope_scaling"]
        if scaling and scaling["kind"] == "yarn" and scaling["mscale_all"]:
            scale *= _mscale(scaling, scaling["mscale_all"]) ** 2
        mixed = attend(m, query, key, v, self.window, scale=scale)
        return self.out(mixed.flatten(2))


# --- feed-forward ------------------------------------------------------------------------------------------------


class Mlp(nn.Module):
    def __init__(self, m, ffn):
        super().__init__()
        self.act = ACTIVATIONS[m["activation"]]
        self.gate = nn.Linear(m["hidden"], ffn, bias=m["mlp_bias"]) if m["activation"] in GATED else None
        self.up = nn.Linear(m["hidden"], ffn, bias=m["mlp_bias"])
        self.down = nn.Linear(ffn, m["hidden"], bias=m["mlp_bias"])

    def forward(self, x):
        return self.down(self.act(self.up(x)) if self.gate is None else self.act(self.gate(x)) * self.up(x))


class AddedLoss(torch.autograd.Function):
    """Hands a tensor through and lets an auxiliary loss into the backward pass."""

    @staticmethod
    def forward(ctx, x, loss):
        ctx.save_for_backward(loss)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, torch.ones_like(ctx.saved_tensors[0])


class RoutedExperts(nn.Module):
    """Router, experts and shared expert."""

    def __init__(self, m):
        super().__init__()
        moe = self.moe = m["moe"]
        self.gated, self.act = m["activation"] in GATED, ACTIVATIONS[m["activation"]]
        experts, inner = moe["experts"], moe["expert_ffn"] * (2 if self.gated else 1)
        self.router = nn.Linear(m["hidden"], experts, bias=moe["router_bias"])
        self.up = nn.Parameter(torch.empty(experts, inner, m["hidden"]))
        self.down = nn.Parameter(torch.empty(experts, m["hidden"], moe["expert_ffn"]))
        if moe["expert_bias"]:
            self.up_bias = nn.Parameter(torch.empty(experts, inner))
            self.down_bias = nn.Parameter(torch.empty(experts, m["hidden"]))
        self.shared = Mlp(m, moe["shared_ffn"]) if moe["shared_ffn"] else None
        self.shared_gate = nn.Linear(m["hidden"], 1, bias=False) if moe["shared_gate"] else None
        if moe["balance_bias"]:
            self.register_buffer("balance", torch.zeros(experts), persistent=False)
            self.register_buffer("load", torch.zeros(experts), persistent=False)

    def route(self, x):
        """Weights and experts of every token, [tokens, top_k]."""
        moe = self.moe
        logits = fn.linear(
            x.float(), self.router.weight.float(), None if self.router.bias is None else self.router.bias.float()
        )
        scores = logits.sigmoid() if moe["score"] == "sigmoid" else logits.softmax(dim=-1)
        ranked = scores + self.balance if moe["balance_bias"] else scores
        if moe["groups"] > 1:
            grouped = ranked.view(len(x), moe["groups"], -1)
            best = grouped.topk(2, dim=-1).values.sum(-1) if moe["balance_bias"] else grouped.amax(-1)
            taken = torch.zeros_like(best).scatter_(1, best.topk(moe["top_groups"], dim=-1).indices, 1.0)
            ranked = grouped.masked_fill(taken.unsqueeze(-1) == 0, float("-inf")).view(len(x), -1)
        chosen = ranked.topk(moe["top_k"], dim=-1).indices
        weights = scores.gather(1, chosen)
        if moe["normalised"]:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return weights * moe["scale"], chosen, scores

    def forward(self, hidden):
        x, moe = hidden.flatten(0, -2), self.moe
        weights, chosen, scores = self.route(x)
        ids = chosen.flatten()
        counts = torch.bincount(ids, minlength=moe["experts"])
        if moe["balance_bias"] and torch.is_grad_enabled():
            self.load += counts
        order = ids.argsort(stable=True)
        token = order // moe["top_k"]
        out = self.experts(x[token], counts, ids[order])
        out = out * weights.flatten()[order].unsqueeze(-1).to(out.dtype)
        total = torch.zeros_like(x, dtype=out.dtype).index_add_(0, token, out)
        if self.shared is not None:
            shared = self.shared(x)
            total = total + (shared * self.shared_gate(x).sigmoid() if self.shared_gate is not None else shared)
        if moe["balance_loss"] and self.training:
            share = counts / ids.numel() * moe["experts"] * moe["top_k"]
            total = AddedLoss.apply(total, moe["balance_loss"] * (share * scores.mean(0)).sum())
        return total.view(hidden.shape).to(hidden.dtype)

    def experts(self, x, counts, ids):
        """x[rows of expert e] through expert e; rows come sorted by expert."""
        bias = self.moe["expert_bias"]
        inner = product(x, self.up, counts)
        inner = inner + self.up_bias[ids] if bias else inner
        if self.gated:
            gate, up = inner.chunk(2, dim=-1)
            inner = self.act(gate) * up
        else:
            inner = self.act(inner)
        out = product(inner, self.down, counts)
        return out + self.down_bias[ids] if bias else out

    def move_balance(self, replicas=None, rate=0.001):
        """After a step: experts with less than the mean load of all replicas are preferred more, the others less."""
        if self.moe["balance_bias"]:
            if replicas is not None:
                dist.all_reduce(self.load, group=replicas)
            self.balance += rate * (self.load.mean() - self.load).sign()
            self.load.zero_()


def product(x, weight, counts):
    """x[rows of expert e] @ weight[e]^T: one grouped product on GPUs in bf16, else a product an expert."""
    if x.is_cuda and x.dtype == torch.bfloat16:
        return torch._grouped_mm(x, weight.to(x.dtype).transpose(1, 2), offs=counts.cumsum(0).to(torch.int32))  # noqa: SLF001
    rows = x.split(counts.tolist())
    return torch.cat([fn.linear(part, one) for part, one in zip(rows, weight.to(x.dtype), strict=True)])


# --- layers and chunks -------------------------------------------------------------------------------------------


class DecoderLayer(nn.Module):
    def __init__(self, m, index):
        super().__init__()
        self.m, moe = m, m["moe"]
        self.window = window = m["windows"][index % len(m["windows"])] if m["windows"] else 0
        self.norm1 = norm(m, m["hidden"])
        if m["norms_per_layer"] > 1:
            self.norm2 = norm(m, m["hidden"])
        if m["norms_per_layer"] == 4:
            self.norm3, self.norm4 = norm(m, m["hidden"]), norm(m, m["hidden"])
        self.attention = (Latent if m["mla"] else Attention)(m, window)
        expert = moe and index >= moe["first_dense"] and (index - moe["first_dense"]) % moe["every"] == moe["every"] - 1
        self.mlp = RoutedExperts(m) if expert else Mlp(m, m["ffn"])

    def forward(self, x, tables):
        m = self.m
        after = (self.norm3, self.norm4) if m["norms_per_layer"] == 4 else (nn.Identity(), nn.Identity())
        normed = self.norm1(x)
        mixed = self._drop(after[0](self.attention(normed, tables)))
        if m["parallel_residual"]:
            return x + mixed + self._drop(self.mlp(self.norm2(x) if m["norms_per_layer"] > 1 else normed))
        x = x + mixed
        return x + self._drop(after[1](self.mlp((self.norm2 if m["norms_per_layer"] > 1 else self.norm1)(x))))

    def _drop(self, x):
        return fn.dropout(x, self.m["dropout"], self.training) if self.m["dropout"] else x


class DecoderChunk(nn.Module):
    """Layers `first` to `last` - 1, with the embedding before the model's first and the head after its last."""

    def __init__(self, m, first, last, *, head=None, start=None, recompute=0):
        super().__init__()
        self.m, self.recompute = m, recompute
        width = m["embedding_size"] or m["hidden"]
        self.embedding = self.positions = self.project_in = self.embedding_norm = None
        self.norm = self.project_out = self.head = None
        if first == 0 if start is None else start:
            self.embedding = nn.Embedding(m["vocab"], width)
            self.positions = nn.Embedding(m["max_positions"], m["hidden"]) if m["position"] == "learned" else None
            self.project_in = nn.Linear(width, m["hidden"], bias=False) if width != m["hidden"] else None
            self.embedding_norm = norm(m, m["hidden"]) if m["embedding_norm"] else None
        self.layers = nn.ModuleDict({str(index): DecoderLayer(m, index) for index in range(first, last)})
        if last == m["layers"] if head is None else head:
            self.norm = norm(m, m["hidden"])
            self.project_out = nn.Linear(m["hidden"], width, bias=False) if width != m["hidden"] else None
            self.head = nn.Linear(width, m["vocab"], bias=m["head_bias"])

    def forward(self, x):
        m = self.m
        if self.embedding is not None:
            x = self.embedding(x)
            x = x * m["hidden"] ** 0.5 if m["embedding_scaled"] else x
            x = x if self.project_in is None else self.project_in(x)
            x = x if self.positions is None else x + self.positions(torch.arange(x.shape[1], device=x.device))
            x = x if self.embedding_norm is None else self.embedding_norm(x)
        every, near = self.tables(x), self.tables(x, m["window_rotary_base"]) if m["window_rotary_base"] else None
        for count, layer in enumerate(self.layers.values()):
            tables = near if near and layer.window else every
            again = count < self.recompute and torch.is_grad_enabled()
            x = checkpoint(layer, x, tables, use_reentrant=False) if again else layer(x, tables)
        if self.head is None:
            return x
        x = self.norm(x)
        return capped(self.head(x if self.project_out is None else self.project_out(x)), m["logit_cap"])

    def tables(self, x, base=0.0):
        m = self.m
        if m["position"] != "rope":
            return ()
        size = m["mla"]["rope_size"] if m["mla"] else m["head_size"]
        return rotary(m, size, x.shape[1], x.device, base)


@torch.no_grad()
def build(m, first, last, device, dtype, seed, **parts):
    """A chunk with its weights: matrices from a normal distribution of width 0.02, norms one, biases zero."""
    with torch.device("meta"):
        chunk = DecoderChunk(m, first, last, **parts)
    chunk.to_empty(device=device)
    for buffer in chunk.buffers():
        buffer.zero_()
    seeds = seeds_of(chunk, [(int(index), layer) for index, layer in chunk.layers.items()], seed)
    if m["tied"] and chunk.head is not None:  # starts as the embedding, wherever the two stand
        seeds[chunk.head] = seed_of(seed, "embedding", chunk.head.weight.shape)
    ones = () if m["norm_offset"] else (nn.RMSNorm, nn.LayerNorm)
    for module in chunk.modules():
        torch.manual_seed(seeds.get(module, seed))
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() > 1 and not name.endswith("_bias"):
                parameter.normal_(0.0, 0.02)
            else:
                parameter.fill_(1.0 if name == "weight" and isinstance(module, ones) else 0.0)
    if m["tied"] and chunk.embedding is not None and chunk.head is not None:
        chunk.head.weight = chunk.embedding.weight
    for parameter in chunk.parameters():  # counts of a router stay in fp32
        parameter.data = parameter.data.to(dtype)
    return chunk


def loss_of(logits, ids):
    """Mean cross entropy of every token from those before it."""
    wanted = fn.pad(ids[:, 1:], (0, 1), value=-100)  # the last token's logits are passed over: a slice would copy them
    return fn.cross_entropy(wide(logits.flatten(0, 1)), wanted.flatten())
