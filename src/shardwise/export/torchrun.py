"""How a job of many GPUs is started with torchrun."""

from __future__ import annotations


def gpus_per_node(gpus: int) -> int:
    """Eight as in most nodes, or the most that divides the GPUs."""
    return next(count for count in range(min(8, gpus), 0, -1) if gpus % count == 0)


def start_lines(gpus: int) -> list[str]:
    """Lines of a script up to the program's name, which the caller adds."""
    node = gpus_per_node(gpus)
    return [
        f"GPUS_PER_NODE=${{GPUS_PER_NODE:-{node}}}",
        f"NUM_NODES=${{NUM_NODES:-{gpus // node}}}",
        "",
        "torchrun --nproc-per-node $GPUS_PER_NODE --nnodes $NUM_NODES \\",
        "    --node-rank ${NODE_RANK:-0} --master-addr ${MASTER_ADDR:-localhost} --master-port ${MASTER_PORT:-6000} \\",
    ]
