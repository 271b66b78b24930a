"""Trains the model of config.json as ds_config.json plans it: transformers under DeepSpeed's engine.

    ./deepspeed.sh              STEPS=100 ./deepspeed.sh              python deepspeed_train.py   (one process)

What DeepSpeed's file has no word for stands in its key `_program`, which DeepSpeed does not read. Put your own data in
place of `tokens`, and your own weights in place of `make`.
"""

# mypy: ignore-errors
# a program to copy out: it must run, and read, without our checks; torch's own types change with its version

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from shardwise_loop import CUDA, DTYPES, RATE, SEED, STEPS, Steps, finish, mean, start, tokens
from shardwise_transformers import describe, layers_of, make
from torch import nn

if not CUDA:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed  # it looks for its accelerator as it is imported
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

HERE = Path(__file__).resolve().parent


def build(model, config, device, dtype):
    """The model's weights, partitioned layer by layer under ZeRO 3."""
    split = config["zero_optimization"]["stage"] == 3
    for layer in layers_of(model):
        make(model, layer, device, dtype)
        if split:
            deepspeed.zero.Init(module=layer, config_dict_or_path=config)
    make(model, model, device, dtype)
    model.tie_weights()
    if split:
        deepspeed.zero.Init(module=model, config_dict_or_path=config)
    return model


def optimizer_of(model, config):
    """Torch's own AdamW and SGD: DeepSpeed's are compiled where they run, which needs a compiler there.

    With expert parallel DeepSpeed makes it, as the experts of a rank are known only inside of it.
    """
    kind = config["optimizer"]["type"].lower()
    if config.get("expert_parallel"):
        config["optimizer"]["params"] = {"lr": RATE} | ({"torch_adam": True} if kind == "adamw" else {})
        return None
    del config["optimizer"]
    if config["zero_optimization"].get("offload_optimizer"):
        return deepspeed.ops.adam.DeepSpeedCPUAdam(model.parameters(), lr=RATE)
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=RATE, fused=CUDA)


# --- a pipeline of the model's own layers ------------------------------------------------------------------------


class Embedding(nn.Module):
    """Before the first layer; a tied head uses it again."""

    def __init__(self, model, device, dtype):
        super().__init__()
        self.inner = model.base_model.embed_tokens
        make(model, self.inner, device, dtype)

    @property
    def weight(self):
        return self.inner.weight

    def forward(self, ids):
        return self.inner(ids)


class DecoderBlock(nn.Module):
    """One layer, with the positions that the model hands to every layer."""

    def __init__(self, model, index, device, dtype):
        super().__init__()
        self.inner, self.rotary = layers_of(model)[index], [model.base_model.rotary_emb.to(device)]
        make(model, self.inner, device, dtype)

    def forward(self, x):
        positions = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        out = self.inner(
            x, position_embeddings=self.rotary[0](x, positions), position_ids=positions, attention_mask=None
        )
        return out[0] if isinstance(out, tuple) else out


class FinalNorm(nn.Module):
    def __init__(self, model, device, dtype):
        super().__init__()
        self.inner = model.base_model.norm
        make(model, self.inner, device, dtype)

    def forward(self, x):
        return self.inner(x)


class Head(nn.Module):
    def __init__(self, model, device, dtype):
        super().__init__()
        self.inner = model.lm_head
        make(model, self.inner, device, dtype)

    def forward(self, x):
        return self.inner(x)


def loss_of(logits, ids):
    """Mean cross entropy of every token from those before it, as transformers has it."""
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def tied_head(embedding, x):
    return nn.functional.linear(x, embedding.weight)


def pipeline(model, config, device, dtype):
    """The stages: as many layers on each, none made but those of this rank."""
    given, told = (model, device, dtype), config["pipeline"]
    tied = model.config.tie_word_embeddings
    first = TiedLayerSpec("embedding", Embedding, *given) if tied else LayerSpec(Embedding, *given)
    last = TiedLayerSpec("embedding", Embedding, *given, forward_fn=tied_head) if tied else LayerSpec(Head, *given)
    blocks = [LayerSpec(DecoderBlock, model, index, device, dtype) for index in range(model.config.num_hidden_layers)]
    return PipelineModule(
        [first, *blocks, LayerSpec(FinalNorm, *given), last], num_stages=told["stages"], loss_fn=loss_of,
        partition_method="type:DecoderBlock", activation_checkpoint_interval=told["activation_checkpoint_interval"],
        checkpointable_layers=["DecoderBlock"],
    )  # fmt: skip


# --- the loop ----------------------------------------------------------------------------------------------------


def sequence_parallel(model, plan):
    """Ulysses: every rank has a part of each sample, and attention a part of the heads."""
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    return UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=model, core_attn_implementation="sdpa", sequence_parallel_size=plan["cp"],
        micro_batch_size=plan["micro_batch"], seq_length=plan["seq"], seq_length_is_variable=False,
    )  # fmt: skip


def part_loss(engine, ids, part, parts):
    """The loss of this rank's part of a sample, weighted so that the mean over ranks is the sample's."""
    width = ids.shape[1] // parts
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    labels = nn.functional.pad(ids, (0, 1), value=-100)[:, 1:]
    own = slice(part * width, (part + 1) * width)
    logits = engine(input_ids=ids[:, own], position_ids=positions[:, own]).logits
    total = nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels[:, own].flatten(), ignore_index=-100, reduction="sum"
    )
    return total * parts / (ids.shape[0] * (ids.shape[1] - 1))


def train(config):
    plan = config.pop("_program")
    config.pop("_shardwise", None)
    device, dtype = start(plan["world"]), DTYPES[plan["dtype"]]
    if not CUDA:  # its collectives of a CPU are compiled where they run; gloo's are not
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="nccl" if CUDA else "gloo")
    torch.manual_seed(SEED)
    model = describe(plan)
    parameters, vocab, piped = sum(one.numel() for one in model.parameters()), model.config.vocab_size, plan["pp"] > 1
    model = pipeline(model, config, device, dtype) if piped else build(model, config, device, dtype)
    mpu = sequence_parallel(model, plan) if plan["cp"] > 1 else None
    optimizer = optimizer_of(model, config)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, model_parameters=model.parameters(), config=config, mpu=mpu
    )
    if plan["compile"]:
        engine.compile()
    rank, inner, passes = dist.get_rank(), plan["tp"] * plan["cp"], plan["microbatches"]
    replica = rank % plan["dp"] if piped else rank // inner  # stages are the outer axis of DeepSpeed's grid
    steps = Steps("deepspeed", parameters, plan["dtype"], device)

    def batch(step, micro):
        return tokens(step, micro, replica, plan["micro_batch"], plan["seq"], vocab).to(device)

    for step in range(STEPS):
        total = 0.0
        if piped:
            samples = (batch(step, micro) for micro in range(passes))
            total = engine.train_batch(iter([(ids, ids) for ids in samples]))
        for micro in range(0 if piped else passes):
            ids = batch(step, micro)
            with steps.part("forward"):
                loss = (
                    part_loss(engine, ids, rank % plan["cp"], plan["cp"])
                    if mpu
                    else engine(input_ids=ids, labels=ids).loss
                )
            with steps.part("backward"):
                engine.backward(loss)
            with steps.part("optimizer"):
                engine.step()
            total += loss.detach() / passes
        steps.end(mean(total, device))
    finish()


if __name__ == "__main__":
    train(json.loads((HERE / "ds_config.json").read_text()))
