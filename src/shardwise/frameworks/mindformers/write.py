"""A plan as a MindFormers YAML of graph mode.

What MindFormers takes without a word, and what is done about it here:

- `offset` is what a chunk holds beyond layers // (pp x v): rows are chunks of a rank, columns are ranks; on a v the
  second row is in rank order, so it runs backwards through the model
- recompute lists go the same way: a list with one chunk a rank, rows with several
- settings of stages and experts are those of the new models: `use_legacy` is true unless it is false
- the tensor degree of experts is a key of the model; among the other degrees it is refused
- `micro_batch_num` is a count, and counts with a pipeline only; without one it is `gradient_accumulation_steps`
- the low-memory order of interleaved chunks is a switch in the environment (`LESS_MEMORY`): the script sets it, or
  unsets it for the other order, and a comment in the YAML says so
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from shardwise.frameworks.launcher import PORT, starting
from shardwise.frameworks.mindformers import write_pynative as mindformers_pynative
from shardwise.frameworks.mindformers.names import (
    JIT_LEVELS,
    LESS_MEMORY,
    MINDFORMERS_CP_KINDS,
    MINDFORMERS_DEGREES,
    MINDFORMERS_PATTERNS,
    MINDFORMERS_SCHEDULES,
    MINDFORMERS_TYPES,
)
from shardwise.frameworks.mindformers.write_data import COLUMNS, DATA, loader
from shardwise.frameworks.mindformers.write_model import model_keys, say_model
from shardwise.frameworks.nearest import choose, known_modules, known_schedule, recomputed, without, without_lora
from shardwise.frameworks.partition import mindformers_lists, mixture
from shardwise.frameworks.target import ExportDraft, File
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import Placement

Settings = dict[str, Any]
Rows = list[int] | list[list[int]]
_WIDER = {"ffn": "mlp", "moe-act": "mlp", "mla-up": "attention"}
_PROGRAMS = (Path(__file__).with_name("train_mindformers.py"), Path(__file__).parents[1] / "shardwise_data.py")
_MSRUN = (
    "msrun --worker_num $((GPUS_PER_NODE * NUM_NODES)) --local_worker_num $GPUS_PER_NODE \\",
    "    --node_rank ${NODE_RANK:-0} --master_addr ${MASTER_ADDR:-127.0.0.1} \\",
    f"    --master_port ${{MASTER_PORT:-{PORT}}} --log_dir output/msrun --join True \\",
)


class _Dumper(yaml.SafeDumper):
    """Lists of numbers on one line, as people write them, and each where it belongs rather than by reference."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ANN401 - any value
        del data
        return True


def _list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.nodes.SequenceNode:
    short = all(isinstance(item, int | list) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=short)


_Dumper.add_representer(list, _list)


def dump(document: Settings) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000)


def write(draft: ExportDraft) -> tuple[File, ...]:
    """`mindformers.yaml` for either mode, and what starts it."""
    settings = mindformers_pynative.document if draft.version == "2.1-pynative" else _graph
    document = settings(draft)  # first, for the header tells what was lost on the way
    tokens = f"python3 shardwise_data.py {DATA} {draft.model.vocab} {draft.strategy.seq} 256"
    started = starting(
        draft, "mindformers", [_PROGRAMS[0].name], before=[tokens], runner=["export STEPS", *_switch(draft), *_MSRUN],
        needs=f"{draft.speaks} with MindSpore for Ascend, and numpy; no job of it was started here",
    )  # fmt: skip
    return (
        File(name="mindformers.yaml", text=draft.header() + _started(draft) + dump(document)),
        *started,
        *(File(name=path.name, text=draft.header() + path.read_text(encoding="utf-8")) for path in _PROGRAMS),
    )


def _switch(draft: ExportDraft) -> list[str]:
    """Which of the two interleaved orders the job runs, whatever the environment was."""
    interleaved = draft.strategy.schedule in {"interleaved", "low-memory"} and draft.version == "2.1-graph"
    return [f"export {LESS_MEMORY}={int(draft.strategy.schedule == 'low-memory')}"] if interleaved else []


def _started(draft: ExportDraft) -> str:
    if draft.strategy.schedule != "low-memory":
        return ""
    return f"# low-memory order: start it with {LESS_MEMORY}=1, as mindformers.sh does; no key of this file says it\n"


def _graph(draft: ExportDraft) -> Settings:
    for bend in (without_lora, _schedule, _states, _axes, _recompute, numbers, say_model):
        bend(draft)
    draft.settle()
    s = draft.strategy
    return {
        "use_parallel": True,
        "run_mode": "train",
        "use_legacy": False,
        "seed": 1234,
        "output_dir": "./output",
        "do_eval": False,
        "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": draft.model.name},
        "runner_config": {
            "epochs": 1,
            "batch_size": s.micro_batch,
            "gradient_accumulation_steps": 1 if s.pp > 1 else s.microbatches,
        },
        "runner_wrapper": {"type": "MFTrainOneStepCell", "scale_sense": 1.0, "use_clip_grad": True},
        "optimizer": {"type": "AdamW"},
        "lr_schedule": {"type": "ConstantWarmUpLR", "learning_rate": 1e-4, "warmup_ratio": 0, "total_steps": -1},
        **_dataset(draft),
        "callbacks": [{"type": "MFLossMonitor", "per_print_times": 1}],
        "context": _context(draft),
        "parallel": _parallel(draft),
        "parallel_config": _degrees(draft),
        "recompute_config": _recompute_keys(draft),
        "model": {"model_config": {**model_keys(draft), **_layer_keys(draft)}},
    }


def _context(draft: ExportDraft) -> Settings:
    found: Settings = {"mode": 0, "device_target": "Ascend"}
    if draft.strategy.schedule == "low-memory":
        found["jit_config"] = {"jit_level": JIT_LEVELS[0]}
    return found


def _dataset(draft: ExportDraft) -> Settings:
    columns = list(COLUMNS)
    found = {
        "data_loader": loader(draft.strategy), "input_columns": columns, "construct_args_key": columns,
        "drop_remainder": True, "num_parallel_workers": 2, "seed": 1234,
    }  # fmt: skip
    return {
        "train_dataset": found,
        "train_dataset_task": {"type": "CausalLanguageModelDataset", "dataset_config": found},
    }


def _schedule(draft: ExportDraft) -> None:
    # its trainer refuses parts of a sequence (seq_split_num) for every model but the old ones
    own = (name for name in MINDFORMERS_SCHEDULES if name != "seq-1f1b")
    known_schedule(draft, ("interleaved", "low-memory", *own))
    s = draft.strategy
    if s.pp > 1 and s.schedule == "zb-v" and s.microbatches < 2 * s.pp:
        draft.refuse(
            "strategy.global_batch",
            f"{s.global_batch} is {s.microbatches} micro batches; zero_bubble_v needs 2 x pp {s.pp} = {2 * s.pp}",
        )


def _states(draft: ExportDraft) -> None:
    s = draft.strategy
    if s.zero > 1:
        draft.refuse(
            "strategy.zero", f"zero {s.zero}: graph mode shards optimizer states only; use zero 1, or @2.1-pynative"
        )
    if s.zero_group and not s.zero:
        draft.lose("strategy.zero_group", "nothing is sharded with zero 0", zero_group=0)
    choose(draft, "offload", ("none",), "none", "swap_config wants every layer named")


def _axes(draft: ExportDraft) -> None:
    if draft.strategy.cp > 1:
        choose(draft, "cp_kind", tuple(MINDFORMERS_CP_KINDS), "ring")


def numbers(draft: ExportDraft) -> None:
    choose(draft, "dtype", tuple(MINDFORMERS_TYPES), "bf16")
    if draft.strategy.dtype != "fp32":
        choose(draft, "master", ("mixed", "pure"), "mixed")
    choose(draft, "optimizer", ("adamw",), "adamw", "set optimizer.type by hand")
    why = "gradients are accumulated in fp32"
    without(draft, compile=(False, "MindSpore compiles graphs itself"), grad_dtype=("fp32", why))


def _recompute(draft: ExportDraft) -> None:
    default, patterns = {"activation", "comm"}, set(MINDFORMERS_PATTERNS)
    known_modules(draft, _WIDER, default | patterns, "MindFormers")
    modules = set(draft.strategy.recompute.modules)
    if "activation" in modules and modules & patterns:  # the default patterns and named ones exclude each other
        known_modules(draft, {"activation": "mlp", **_WIDER}, patterns | {"comm"}, "one select_recompute")
    recompute = draft.strategy.recompute
    if recompute.group > 1:
        text = f"{recompute}: layers are recomputed one by one, so {recompute.group} times as many inputs are kept"
        draft.lose("strategy.recompute", text, recompute=Recompute(full=True, layers=recompute.layers))


def _parallel(draft: ExportDraft) -> Settings:
    s = draft.strategy
    found: Settings = {
        "parallel_mode": 1, "full_batch": False, "enable_parallel_optimizer": s.zero > 0,
        "dataset_strategy": [[s.dp, 1]] * len(COLUMNS),
    }  # fmt: skip
    if s.zero and s.zero_group:
        found["parallel_optimizer_config"] = {"optimizer_weight_shard_size": s.shard_group}
    if s.pp > 1:
        name = "1f1b" if s.schedule in {"interleaved", "low-memory"} else MINDFORMERS_SCHEDULES[s.schedule]
        found["pipeline_config"] = {"pipeline_interleave": s.vpp > 1, "pipeline_scheduler": name}
    return found


def _degrees(draft: ExportDraft) -> Settings:
    s = draft.strategy
    found: Settings = {
        theirs: getattr(s, ours)
        for ours, theirs in MINDFORMERS_DEGREES.items()
        if ours != "etp" and (ours != "ep" or draft.model.moe)
    }
    found["micro_batch_num"] = s.microbatches if s.pp > 1 else 1
    found["use_seq_parallel"] = s.sp and s.tp > 1
    if s.cp > 1:
        found["context_parallel_algo"] = MINDFORMERS_CP_KINDS[s.cp_kind]
    return found


def _layer_keys(draft: ExportDraft) -> Settings:
    s = draft.strategy
    found: Settings = {MINDFORMERS_DEGREES["etp"]: s.etp} if draft.model.moe else {}
    if s.pp > 1:
        found |= {"pp_interleave_num": s.vpp, "offset": offset(draft.layers, s.pp, s.placement)}
    return found


def _recompute_keys(draft: ExportDraft) -> Settings:
    s = draft.strategy
    if s.pp > 1 and mixture(draft.plan):
        return {key: rows(counts, s.pp, s.placement) for key, counts in mindformers_lists(draft.plan).items()}
    counts = recomputed(draft)
    told: bool | Rows = counts == draft.layers or rows(counts, s.pp, s.placement)
    if s.pp == 1 and counts != draft.layers:
        told = list(counts) if any(counts) else False
    modules = s.recompute.modules
    named = {MINDFORMERS_PATTERNS[name]: told for name in modules if name in MINDFORMERS_PATTERNS}
    return {
        "recompute": told if s.recompute.full else False,
        "select_recompute": named or (told if "activation" in modules else False),
        "select_comm_recompute": told if "comm" in modules else False,
    }


def offset(layers: Sequence[int], pp: int, placement: Placement = "loop") -> Rows:
    """Layers of every chunk beyond the even share, in MindFormers' rows."""
    even = sum(layers) // len(layers)
    return rows([count - even for count in layers], pp, placement)


def rows(values: Sequence[int], pp: int, placement: Placement = "loop") -> Rows:
    """Numbers of chunks in model order as a list, or as a row per chunk of a rank, each in the order of the ranks."""
    if len(values) == pp:
        return list(values)
    turns = [list(values[start : start + pp]) for start in range(0, len(values), pp)]
    return [turn[::-1] if placement == "v" and index % 2 else turn for index, turn in enumerate(turns)]
