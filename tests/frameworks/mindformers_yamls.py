"""MindFormers YAMLs for the tests: three as people keep them, and drawn ones in every way of writing YAML."""

from __future__ import annotations

LLAMA = """\
# Llama 3.1, MindFormers 1.5: the old kind of model
seed: 0
use_parallel: True
runner_config:
  epochs: 2
  batch_size: 1
  sink_mode: True
parallel:
  parallel_mode: 1 # semi-auto
  full_batch: True
  enable_parallel_optimizer: True
  parallel_optimizer_config:
    parallel_optimizer_threshold: 64
# 8 nodes
parallel_config:
  data_parallel: 2
  model_parallel: 8
  pipeline_stage: 4
  use_seq_parallel: True
  micro_batch_num: 256
  gradient_aggregation_group: 4

recompute_config:
  recompute: False
  select_recompute: [10,8,6,4]
  select_comm_recompute: [10,8,6,4]  # as select
  mp_comm_recompute: True

context:
  mode: 0 #0--Graph Mode
  jit_config:
    jit_level: "O2"
model:
  model_config:
    type: LlamaConfig
    seq_length: 8192
    hidden_size: 8192
    num_layers: 80
    num_heads: 64
    n_kv_heads: 8
    ffn_dim_multiplier: 1.3
    multiple_of: 256
    vocab_size: 128256
    offset: 0
    fine_grain_interleave: 2
  arch:
    type: LlamaForCausalLM
"""
DEEPSEEK = """\
trainer: {type: CausalLanguageModelingTrainer, model_name: 'deepseekV3'}
runner_config: {epochs: 2, batch_size: 1}
train_dataset: &train_dataset
  num_parallel_workers: 8
train_dataset_task:
  dataset_config: *train_dataset
parallel_config:
  data_parallel: &dp 16
  model_parallel: 4
  pipeline_stage: 4
  expert_parallel: 8
  micro_batch_num: &micro_batch_num 32
parallel:
  dataset_strategy: [[*dp, 1], [*dp, 1], [*dp, 1], [*dp, 1]]
  enable_parallel_optimizer: True
  pipeline_config:
    pipeline_interleave: true
    pipeline_scheduler: '1f1b'
recompute_config:
  recompute: [[3, 4, 4, 4], [4, 4, 2, 0]]
  select_recompute:
    'feed_forward\\.mul': [[8, 8, 8, 8], [8, 8, 8, 8]]
    'attention': False
  mp_comm_recompute: true
context:
  jit_config:
    jit_level: "O1"
model:
  model_config:
    type: DeepseekV3Config
    num_layers: &num_layers 61
    hidden_size:  7168
    offset: [[1, 1, 1, 1], [1, 1, 1, -1]]
    pp_interleave_num: 2
    mtp_depth: &mtp_depth 1
callbacks:
  - type: TopkBiasBalanceCallback
    micro_batch_num: *micro_batch_num
"""
QWEN = """\
use_legacy: False
pretrained_model_dir: "/path/to/Qwen3-32B"  # 千问
runner_config:
  batch_size: 1
  gradient_accumulation_steps: 1
context:
  mode: 0  # 0--Graph Mode; 1--Pynative Mode
parallel_config:
  data_parallel: &dp 1  # Number of data parallel
  model_parallel: 4
  pipeline_stage: 4
  micro_batch_num: 4  # a count
parallel:
  dataset_strategy: [
      [*dp, 1],
      [*dp, 1]
    ]  # as input_columns
model:
  model_config:
    qkv_concat: True
    offset:
      - -1   # first
      - -1
      - 1
      - 1    # last
    params_dtype: "float32"
layer_decay: 0.65"""
FILES = {"llama": (LLAMA, 80), "deepseek": (DEEPSEEK, 61), "qwen": (QWEN, 64)}
"""Each with its layers; the stages are four."""


def answer(pp, vpp, layers, *, microbatches=32, schedule=None, full=None, select=None, comm=None):
    """What `balance --json` writes, as far as it matters here."""
    zero, even = [0] * len(layers), sum(layers) // len(layers)
    lists = {
        "offset": [count - even for count in layers], "recompute": full or zero, "select_recompute": select or zero,
        "select_comm_recompute": comm or zero,
    }  # fmt: skip
    return {
        "pp": pp, "vpp": vpp, "microbatches": microbatches, "layers": list(layers),
        "schedule": schedule or ("interleaved" if vpp > 1 else "1f1b"),
        "mindformers": {name: [row[k : k + pp] for k in range(0, pp * vpp, pp)] for name, row in lists.items()},
    }  # fmt: skip


def drawn_answer(chance, layers, pp=4):
    """A random answer of a model: chunks, order, layers and lists."""
    vpp = chance.choice([1, 1, 2, 3])
    order = "1f1b" if vpp == 1 else chance.choice(["interleaved", "low-memory"])
    counts = [1] * (pp * vpp)
    for _ in range(layers - pp * vpp):
        counts[chance.randrange(len(counts))] += 1
    full = [chance.randint(0, n) for n in counts] if chance.random() < 0.7 else None
    least = full or [0] * len(counts)
    wider = [[chance.randint(a, n) for a, n in zip(least, counts, strict=True)] for _ in range(2)]
    if full is None and chance.random() < 0.4:
        wider = [None, None]
    number, (select, comm) = chance.choice([8, 16, 32, 256]), (one or full for one in wider)
    return answer(pp, vpp, counts, microbatches=number, schedule=order, full=full, select=select, comm=comm)


def _list(chance, values, indent, *, flow):
    """A list as people write it: on one line, on several, or with dashes; its first line goes behind the colon."""
    items = [f"[{', '.join(map(str, one))}]" if isinstance(one, list) else str(one) for one in values]
    style = chance.choice(["flow", "long"]) if flow else chance.choice(["flow", "long", "dashes", "below"])
    if style == "flow":
        return [chance.choice([" [", " [ "]) + chance.choice([", ", ",", " , "]).join(items) + "]"]
    if style == "long":
        return [" [", *(f"{indent}      {one}," for one in items[:-1]), f"{indent}    {items[-1]} ]"]
    deeper = indent + ("  " if style == "dashes" else "")
    return ["", *(f"{deeper}- {one}" for one in items)]


def drawn_file(chance, layers, pp=4):
    """Lines of a YAML, each with the key that it belongs to, where that is one of those that are patched."""
    return _Drawn(chance, layers, pp).made()


ABOVE = ["# note: offset: [1, 2] stays", "", "# größer 千", "#"]


class _Drawn:
    def __init__(self, chance, layers, pp):
        self.chance, self.layers, self.pp = chance, layers, pp
        self.step, self.quote = " " * chance.choice([1, 2, 3, 4, 7]), chance.choice(["", "'", '"'])
        self.vpp = chance.choice([1, 1, 2])
        self.even, self.short = divmod(layers, pp * self.vpp)
        self.lines = []

    def made(self):
        parts = [self.recompute, self.degrees, self.model]
        self.chance.shuffle(parts)
        for part in (*parts, self.parallel):
            part()
        self.noise()
        return self.lines

    def other(self, text):
        self.lines.append((text, ""))

    def noise(self, indent=""):
        """Lines that mean nothing here."""
        own = f"{indent}more_{len(self.lines)}: 'a: b # é'"
        for _ in range(self.chance.choice([0, 0, 1, 2])):
            self.other(self.chance.choice([*ABOVE, own] if not indent else ["", f"{indent}# recompute: False", own]))
            own = ""

    def value(self, indent, key, value):
        """A key that is patched, with a number, a truth value or a list."""
        name, tail = f"{indent}{self.quote}{key}{self.quote}:", self.chance.choice(["", "  # why", " # offset: 3"])
        if isinstance(value, list):
            first, *rest = _list(self.chance, value, indent, flow=False)
            self.lines += [(f"{name}{first}{tail}", key), *((line, key) for line in rest)]
        else:
            self.lines.append((f"{name}{self.chance.choice([' ', '   '])}{value}{tail}", key))

    def table(self, values):
        return values if self.vpp == 1 else [values[k : k + self.pp] for k in range(0, len(values), self.pp)]

    def recompute(self):
        self.noise()
        self.other("recompute_config:" + self.chance.choice(["", "  # whole layers first"]))
        for key in ("recompute", "select_recompute", "select_comm_recompute"):
            self.noise(self.step)
            drawn = self.table([self.chance.randint(0, self.even) for _ in range(self.pp * self.vpp)])
            if (now := self.chance.choice([True, False, drawn, drawn, drawn, None])) is not None:
                self.value(self.step, key, now)
        self.other(f"{self.step}mp_comm_recompute: True")

    def degrees(self):
        self.noise()
        if self.chance.random() < 0.2:
            flow = f"parallel_config: {{data_parallel: 2, pipeline_stage: {self.pp}, micro_batch_num: 16}} # flow"
            self.lines.append((flow, "micro_batch_num"))
            return
        self.other("parallel_config:")
        self.other(f"{self.step}data_parallel: &dp 2")
        self.other(f"{self.step}pipeline_stage: {self.pp}")
        self.noise(self.step)
        anchor = self.chance.choice(["", "&number "])
        self.value(self.step, "micro_batch_num", f"{anchor}16")
        if anchor:
            self.other("callback: {micro_batch_num: *number}")

    def parallel(self):
        self.other("parallel:")
        known = any("&dp" in line for line, _ in self.lines)
        self.other(f"{self.step}dataset_strategy: [[*dp, 1]]" if known else f"{self.step}full_batch: True")
        if self.vpp > 1 or self.chance.random() < 0.3:
            self.other(f"{self.step}pipeline_config:")
            self.value(self.step * 2, "pipeline_interleave", str(self.vpp > 1))
            self.other(f"{self.step * 2}pipeline_scheduler: 1f1b")
        self.noise(self.step)

    def model(self):
        self.noise()
        deep = self.step * 2
        for line in ("model:", f"{self.step}model_config:", f"{deep}num_layers: {self.layers}"):
            self.other(line)
        self.noise(deep)
        self.other(f"{deep}seq_length: 4096")
        if self.short or self.chance.random() < 0.7:
            self.value(deep, "offset", self.table([int(k < self.short) for k in range(self.pp * self.vpp)]))
        if self.vpp > 1:
            self.value(deep, "pp_interleave_num", self.vpp)
        self.noise(deep)
        self.other(f"{deep}type: LlamaConfig")
