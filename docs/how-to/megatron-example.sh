#!/bin/bash
# A launch script as people have it: Llama-3 8B on two nodes.
export CUDA_DEVICE_MAX_CONNECTIONS=1
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --vocab-size 128256 --max-position-embeddings 8192
    --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear
    --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel --tp-comm-overlap
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
)
TRAIN_ARGS=(--seq-length 8192 --micro-batch-size 1 --global-batch-size 128 --bf16 --lr 3e-4 --train-iters 1000)
torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py "${MODEL_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${TRAIN_ARGS[@]}" "$@"
