from __future__ import annotations

import json

import pytest

from shardwise.errors import InputError
from shardwise.frameworks.megatron.read import expand_layout
from shardwise.frameworks.read import read_framework
from shardwise.inputs.parameters import count

MEGATRON = r"""#!/bin/bash
# Trains a model.  --tensor-model-parallel-size 99 in a comment is not read
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NNODES:-4}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TP=4
CHECKPOINT_PATH=$1

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr localhost
)
GPT_MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --vocab-size 128256
    --attention-dropout 0.0 --hidden-dropout 0.0
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 128
    --lr 6.0e-5
    --bf16
    --use-distributed-optimizer --overlap-grad-reduce
)
PARALLEL="
    --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size=2
    --num-layers-per-virtual-pipeline-stage 4
    --sequence-parallel
    --recompute-granularity full --recompute-method block --recompute-num-layers 2
"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${GPT_MODEL_ARGS[@]} ${TRAINING_ARGS[@]} $PARALLEL --save "$CHECKPOINT_PATH"
"""


def _file(folder, name, text):
    path = folder / name
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def test_a_megatron_script(tmp_path):
    read = read_framework(_file(tmp_path, "train.sh", MEGATRON))
    strategy = read.strategy
    assert (strategy.tp, strategy.pp, strategy.vpp, strategy.dp, strategy.zero) == (4, 2, 4, 4, 1)
    assert (strategy.micro_batch, strategy.global_batch, strategy.seq) == (1, 128, 8192)
    assert strategy.sp
    assert strategy.schedule == "interleaved"
    assert str(strategy.recompute) == "full:2"
    assert read.gpus == 32
    assert count(read.model).total / 1e9 == pytest.approx(8.03, abs=0.005)
    assert any("--lr 6.0e-5" in line for line in read.understanding.ignored)
    assert any("--save" in line for line in read.understanding.ignored)
    assert any("tp 4" in line for line in read.understanding.understood)


def _megatron(tmp_path, text):
    return read_framework(_file(tmp_path, "args.txt", text))


def test_megatrons_defaults_are_told(tmp_path):
    read = _megatron(tmp_path, "--tensor-model-parallel-size 2 --num-experts 8 --fp16")
    assert (read.strategy.sp, read.strategy.zero, read.strategy.etp, read.strategy.dtype) == (False, 0, 2, "fp16")
    assumed = "\n".join(read.understanding.assumed)
    assert all(word in assumed for word in ("sp False", "zero 0", "etp 2", "no model"))
    assert read.model is None


def test_one_word_a_line(tmp_path):
    read = _megatron(tmp_path, "--tensor-model-parallel-size\n8\n--sequence-parallel\n--seq-length\n2048\n")
    assert (read.strategy.tp, read.strategy.sp, read.strategy.seq) == (8, True, 2048)


def test_megatron_moe_and_latent_attention(tmp_path):
    read = _megatron(
        tmp_path,
        "--num-layers 61 --hidden-size 7168 --num-attention-heads 128 --ffn-hidden-size 18432 --vocab-size 129280 "
        "--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 "
        "--v-head-dim 128 --qk-layernorm --num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 "
        "--moe-shared-expert-intermediate-size 2048 --moe-layer-freq ([0]*3+[1]*58) --mtp-num-layers 1 --swiglu "
        "--normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights "
        "--position-embedding-type rope --pipeline-model-parallel-size 16 --expert-model-parallel-size 64 "
        "--pipeline-model-parallel-layout Et*3|(tt|)*29,m|L --bf16 --fp8-format e4m3 --fp8-recipe mxfp8 "
        "--recompute-granularity selective --recompute-modules mla_up_proj moe_act layernorm",
    )
    assert count(read.model).main / 1e9 == pytest.approx(671.03, abs=0.01)
    assert read.model.mtp == 1
    assert read.strategy.layers == (3, *[2] * 29, 0, 0)
    assert (read.strategy.vpp, read.strategy.dtype, read.strategy.ep) == (2, "mxfp8", 64)
    assert str(read.strategy.recompute) == "attention-norm+mlp-norm+moe-act+mla-up"


def test_layouts():
    assert expand_layout("Et*3|(tt|)*2,m|L") == "Ettt|tt|tt|m|L"
    assert expand_layout("E|(t|)*3L") == "E|t|t|t|L"
    with pytest.raises(InputError, match="repeats"):
        expand_layout("t*99999999999")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--tensor-model-parallel-size eight", ["--tensor-model-parallel-size", "'eight'"]),
        ("--pipeline-model-parallel-size 0", ["--pipeline-model-parallel-size", "0 is too small"]),
        ("--recompute-granularity half", ["--recompute-granularity", "'half'"]),
        ("--num-layers 30 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4", ["30", "pp 4"]),
        ("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et|t|L", ["3 pieces", "pp 4"]),
        ("--pipeline-model-parallel-layout Exx|L", ["'x'"]),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy all", ["'all'", "optim_grads"]),
        ("--num-experts 8 --moe-enable-deepep --moe-token-dispatcher-type alltoall", ["--moe-enable-deepep", "flex"]),
    ],
)
def test_bad_megatron_arguments(tmp_path, text, words):
    with pytest.raises(InputError) as caught:
        _megatron(tmp_path, text)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "zero", 3),
        ("--use-torch-fsdp2", "zero", 3),
        ("--enable-zero-bubble --pipeline-model-parallel-size 4", "schedule", "zb-h1"),
        ("--zero-bubble-v-schedule --pipeline-model-parallel-size 4", "placement", "v"),
        ("--context-parallel-size 2 --cp-comm-type a2a", "cp_kind", "all-to-all"),
        ("--transformer-impl local", "runtime", "megatron-local"),
        ("--transformer-impl local", "flash", False),
        ("--grad-reduce-in-bf16", "grad_dtype", "bf16"),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router", "cuda_graphs", "attention"),
        ("--cuda-graph-impl local", "cuda_graphs", "layer"),
        ("--num-experts 8 --moe-token-dispatcher-type flex", "dispatcher", "deepep"),
        ("--num-experts 8 --moe-token-dispatcher-type flex --moe-enable-deepep", "dispatcher", "deepep"),
        ("--num-experts 8 --moe-enable-deepep", "dispatcher", "deepep"),
        ("--moe-enable-deepep", "dispatcher", "deepep"),
        ("--moe-token-dispatcher-type allgather", "dispatcher", "all-gather"),
        ("--overlap-moe-expert-parallel-comm", "ep_overlap", True),
        (
            "--num-experts 8 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
            "dispatcher",
            "hybridep",
        ),
        ("--num-experts 8 --moe-token-dispatcher-type alltoall", "dispatcher", "all-to-all"),
        ("--num-experts 8", "dispatcher", "all-gather"),
        ("--num-experts 8 --overlap-moe-expert-parallel-comm", "ep_overlap", True),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", "cuda_graphs", "layer"),
        ("--enable-cuda-graph", "cuda_graphs", "layer"),
        ("--cuda-graph-scope attn", "cuda_graphs", "none"),
        ("--cuda-graph-impl full_iteration", "cuda_graphs", "layer"),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn", "cuda_graphs", "attention"),
        ("--fp8-format hybrid", "scaling", "delayed"),
        ("--fp8-format hybrid --fp8-recipe tensorwise", "scaling", "tensor"),
        ("--fp8-format e4m3 --fp8-recipe blockwise", "scaling", "block"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "dtype", "mxfp8"),
        ("--fp8-format hybrid --fp8-param-gather", "fp8_weights", True),
        ("--fp4-format e2m1 --fp4-param-gather", "fp8_weights", True),
        ("--fp8-format hybrid --fp8-dot-product-attention", "fp8_attention", True),
        ("--decoder-first-pipeline-num-layers 9", "first_layers", 9),
        ("--account-for-loss-in-pipeline-split", "count_head", True),
        ("--pipeline-model-parallel-size 4 --use-tp-pp-dp-mapping", "rank_order", "pp-dp"),
        ("--optimizer-cpu-offload", "offload", "optimizer"),
        ("--recompute-activations", "recompute", "core-attention"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 2", "recompute", "full/2"),
    ],
)
def test_megatron_flags(tmp_path, text, field, value):
    found = getattr(_megatron(tmp_path, text).strategy, field)
    assert (str(found) if field == "recompute" else found) == value


def test_flags_of_older_megatrons_are_told_as_they_were_typed(tmp_path):
    told = " ".join(
        _megatron(tmp_path, "--num-experts 8 --enable-cuda-graph --moe-enable-deepep").understanding.understood
    )
    assert "--enable-cuda-graph -> cuda_graphs layer" in told
    assert "--moe-enable-deepep -> dispatcher deepep" in told
    assert "--cuda-graph-impl" not in told


TORCHTITAN = """
[job]
description = "Llama 3 70B"
[model]
name = "llama3"
flavor = "70B"
converters = ["float8"]
[training]
local_batch_size = 8
seq_len = 8192
steps = 1000
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 8
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "ZBVZeroBubble"
pipeline_parallel_microbatch_size = 2
context_parallel_degree = 1
[activation_checkpoint]
mode = "full"
"""


def test_torchtitan_toml(tmp_path):
    read = read_framework(_file(tmp_path, "train.toml", TORCHTITAN))
    strategy = read.strategy
    assert (strategy.tp, strategy.pp, strategy.vpp, strategy.dp, strategy.zero, strategy.zero_group) == (
        8,
        4,
        2,
        8,
        2,
        4,
    )
    assert (strategy.micro_batch, strategy.global_batch, strategy.seq) == (2, 64, 8192)
    assert (strategy.schedule, strategy.placement, strategy.dtype, strategy.runtime) == (
        "zb-v",
        "v",
        "fp8",
        "torchtitan",
    )
    assert strategy.recompute.full
    assert read.gpus == 256
    assert any("training.steps" in line for line in read.understanding.ignored)


def test_torchtitan_without_a_pipeline(tmp_path):
    read = read_framework(_file(tmp_path, "t.toml", "[training]\nlocal_batch_size = 4\n[parallelism]\n"))
    assert (read.strategy.zero, read.strategy.micro_batch, read.strategy.schedule) == (3, 4, "1f1b")
    assert str(read.strategy.recompute) == "ops"
    assert "dp" not in read.given
    assert read.gpus is None


PYTHON = """
import os
os.system("touch /tmp/shardwise-must-not-run")

def llama3_8b() -> Trainer.Config:
    return Trainer.Config(
        training=TrainingConfig(local_batch_size=1, seq_len=8192, steps=os.getpid()),
        parallelism=ParallelismConfig(tensor_parallel_degree=2, data_parallel_shard_degree=8),
        activation_checkpoint=SelectiveAC.Config(),
    )

def llama3_70b() -> Trainer.Config:
    return Trainer.Config(
        training=TrainingConfig(local_batch_size=8, seq_len=8192),
        parallelism=ParallelismConfig(
            pipeline_parallel_degree=4, pipeline_parallel_schedule="Interleaved1F1B",
            module_fqns_per_model_part=[["tok_embeddings", "layers.0"], ["layers.1"], ["layers.2"], ["layers.3"]],
            enable_sequence_parallel=False,
        ),
        activation_checkpoint=FullAC.Config(),
    )
"""


def test_torchtitan_python_is_read_and_not_run(tmp_path):
    path = _file(tmp_path, "config_registry.py", PYTHON)
    read = read_framework(f"{path}::llama3_8b")
    assert (read.strategy.tp, read.strategy.dp, read.strategy.zero) == (2, 8, 3)
    assert str(read.strategy.recompute) == "ops"
    large = read_framework(f"{path}::llama3_70b").strategy
    assert (large.layers, large.vpp, large.schedule, large.sp) == ((1, 1, 1, 1), 1, "interleaved", False)
    assert large.recompute.full
    with pytest.raises(InputError, match=r"2 configurations.*llama3_8b"):
        read_framework(path)
    with pytest.raises(InputError, match="no configuration 'x'"):
        read_framework(f"{path}::x")


def test_bad_torchtitan(tmp_path):
    with pytest.raises(InputError, match="holds no torchtitan configuration"):
        read_framework(_file(tmp_path, "a.py", "x = 1\n"))
    with pytest.raises(InputError, match="not Python"):
        read_framework(_file(tmp_path, "b.py", "def ("))
    text = '[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "Magic"\n'
    text += 'tensor_parallel_degree = "2x"\n'
    with pytest.raises(InputError, match="Magic") as caught:
        read_framework(_file(tmp_path, "c.toml", text))
    assert "tensor_parallel_degree" in str(caught.value)


MINDFORMERS = """
seed: 0
runner_config:
  batch_size: 1
parallel:
  enable_parallel_optimizer: true
  pipeline_config:
    pipeline_interleave: true
    pipeline_scheduler: 1f1b
parallel_config:
  data_parallel: 4
  model_parallel: 8
  pipeline_stage: 4
  micro_batch_num: 16
  use_seq_parallel: true
recompute_config:
  recompute: [[3, 2, 2, 1], [2, 2, 1, 0]]
  select_recompute: false
model:
  model_config:
    type: LlamaConfig
    num_layers: 34
    hidden_size: 8192
    num_heads: 64
    n_kv_heads: 8
    vocab_size: 32000
    multiple_of: 256
    ffn_dim_multiplier: 1.3
    seq_length: 4096
    pp_interleave_num: 2
    offset: [[1, 0, 0, 0], [0, 0, 0, 1]]
"""


def test_mindformers(tmp_path):
    read = read_framework(_file(tmp_path, "pretrain.yaml", MINDFORMERS))
    strategy = read.strategy
    assert (strategy.dp, strategy.tp, strategy.pp, strategy.vpp, strategy.zero) == (4, 8, 4, 2, 1)
    assert (strategy.global_batch, strategy.microbatches, strategy.seq) == (64, 16, 4096)
    assert strategy.layers == (5, 4, 4, 4, 4, 4, 4, 5)
    assert str(strategy.recompute) == "full:[3,2,2,1,2,2,1,0]"
    assert strategy.schedule == "interleaved"
    assert read.gpus == 128
    assert (read.model.layers, read.model.kv_heads, read.model.ffn) == (34, 8, 28672)


def test_bad_mindformers(tmp_path):
    for old, new, word in (
        ("offset: [[1, 0, 0, 0], [0, 0, 0, 1]]", "offset: [1, 1]", "offset"),
        ("offset: [[1, 0, 0, 0], [0, 0, 0, 1]]", "offset: [[1, 0, 0, 0], [0, 0, 0, 0]]", "33 layers"),
        ("model_parallel: 8", "model_parallel: 0", "parallel_config.model_parallel"),
        ("micro_batch_num: 16", "micro_batch_num: true", "micro_batch_num"),
    ):
        with pytest.raises(InputError, match=word):
            read_framework(_file(tmp_path, "p.yaml", MINDFORMERS.replace(old, new)))


def test_mindformers_v(tmp_path):
    text = MINDFORMERS.replace("pipeline_scheduler: 1f1b", "pipeline_scheduler: zero_bubble_v")
    strategy = read_framework(_file(tmp_path, "v.yaml", text)).strategy
    assert (strategy.schedule, strategy.placement) == ("zb-v", "v")
    assert strategy.layers == (5, 4, 4, 4, 5, 4, 4, 4)


DEEPSPEED = {
    "train_batch_size": 512,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "overlap_comm": True},
}


def test_deepspeed(tmp_path):
    read = read_framework(_file(tmp_path, "ds.json", DEEPSPEED))
    strategy = read.strategy
    assert (strategy.zero, strategy.dp, strategy.micro_batch, strategy.global_batch) == (2, 64, 4, 512)
    assert (strategy.dtype, strategy.offload, strategy.runtime) == ("bf16", "optimizer", "deepspeed")
    assert read.understanding.ignored == ("zero_optimization.overlap_comm = True", "gradient_clipping = 1.0")


def test_deepspeed_auto(tmp_path):
    data = {"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}
    read = read_framework(_file(tmp_path, "auto.json", data))
    assert (read.strategy.zero, read.strategy.dtype) == (3, "bf16")
    assert any("train_batch_size is auto" in line for line in read.understanding.assumed)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"train_batch_size": 500}, "500"),
        ({"zero_optimization": {"stage": 4}}, "stage"),
        ({"zero_optimization": 3}, "zero_optimization"),
        ({"train_micro_batch_size_per_gpu": -1}, "train_micro_batch_size_per_gpu"),
    ],
)
def test_bad_deepspeed(tmp_path, change, word):
    with pytest.raises(InputError, match=word):
        read_framework(_file(tmp_path, "ds.json", {**DEEPSPEED, **change}))


def test_an_unknown_form_says_which_are_known(tmp_path):
    with pytest.raises(InputError, match="Megatron-LM script"):
        read_framework(_file(tmp_path, "x.yaml", "a: 1\n"))


@pytest.mark.parametrize(
    "text",
    [
        "PAR=(--tensor-model-parallel-size 8 --global-batch-size 64 --sequence-parallel)\ntorchrun x.py ${PAR[@]}",
        "PAR+=(--sequence-parallel --global-batch-size 64 --tensor-model-parallel-size 8) # 1) the first\n",
        'PAR="--tensor-model-parallel-size 8 --global-batch-size 64 --sequence-parallel"\ntorchrun x.py $PAR',
        "(cd here && python x.py --sequence-parallel --tensor-model-parallel-size 8 --global-batch-size 64) && echo 1",
    ],
)
def test_parentheses_that_touch_a_flag_are_no_part_of_it(tmp_path, text):
    strategy = _megatron(tmp_path, text).strategy
    assert (strategy.tp, strategy.global_batch, strategy.sp) == (8, 64, True)


TITAN_REGISTRY = """
from torchtitan.models.llama3 import model_registry

def mine():
    compile_config = CompileConfig(enable=True)
    model_spec = model_registry("70B", converters=[Float8LinearConverter.Config(filter_fqns=["lm_head"])])
    return Trainer.Config(
        model_spec=model_spec,
        training=TrainingConfig(local_batch_size=2, seq_len=8192),
        parallelism=ParallelismConfig(tensor_parallel_degree=8, data_parallel_shard_degree=4),
        activation_checkpoint=FullAC.Config(),
        compile=compile_config,
    )
"""


def test_torchtitans_registry_names_the_model_and_its_numbers(tmp_path):
    (tmp_path / "config.py").write_text(TITAN_REGISTRY)
    read = read_framework(tmp_path / "config.py")
    assert read.model.name == "llama-3-70b"
    assert (read.strategy.dtype, read.strategy.compile, read.strategy.tp) == ("fp8", True, 8)
    assert any("model.flavor 70B -> model llama-3-70b" in line for line in read.understanding.understood)


def test_torchtitans_own_files_name_the_model_by_the_function(tmp_path):
    text = TITAN_REGISTRY.replace("from torchtitan.models.llama3 import", "from . import").replace("mine", "llama3_70b")
    (tmp_path / "config.py").write_text(text)
    assert read_framework(tmp_path / "config.py").model.name == "llama-3-70b"
    (tmp_path / "config.py").write_text(text.replace('"70B"', '"13B"'))
    read = read_framework(tmp_path / "config.py")
    assert read.model is None
    assert any("the catalog has no llama3 13B" in line for line in read.understanding.assumed)


@pytest.mark.parametrize(
    ("plan", "word"),
    [
        ({"dp": "two"}, "plan.dp"),
        ({"dp": 2, "master": "half"}, "plan.master"),
        ({"dp": 2, "zero": 4}, "plan.zero"),
        ([], "plan"),
    ],
)
def test_bad_plans_of_our_own_programs(tmp_path, plan, word):
    data = {"schema": "shardwise/huggingface/1", "plan": plan}
    with pytest.raises(InputError, match=word):
        read_framework(_file(tmp_path, "shardwise_train.json", data))
