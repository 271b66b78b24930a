"""What starts an export: a script for one node or many, what it needs around it, and the job for a scheduler.

The script is the same whoever runs it: it reads the nodes, its own rank and the meeting point from the environment, so
that Slurm's and Kubernetes' files only set these and call it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd

import yaml

from shardwise.errors import UnknownNameError
from shardwise.frameworks.target import ExportDraft, File
from shardwise.inputs.mixed import kinds_of

LAUNCHERS = ("torchrun", "slurm", "kubernetes")
STEPS = 20
"""Iterations of a job that nobody told otherwise: enough to see a steady time, few enough to try."""
PORT = 6000


TORCHRUN = (
    "torchrun --nproc-per-node $GPUS_PER_NODE --nnodes $NUM_NODES \\",
    "    --node-rank ${NODE_RANK:-0} --master-addr ${MASTER_ADDR:-localhost} \\",
    f"    --master-port ${{MASTER_PORT:-{PORT}}} \\",
)


def check_launcher(name: str) -> None:
    if name not in LAUNCHERS:
        raise UnknownNameError("launcher", name, LAUNCHERS)


def starting(
    draft: ExportDraft,
    name: str,
    program: Sequence[str],
    *,
    before: Iterable[str] = (),
    environment: Mapping[str, str | int] | None = None,
    needs: str,
    runner: Sequence[str] | None = None,
) -> tuple[File, ...]:
    """The script `name`.sh with its environment, a README, and the file of the draft's launcher.

    `program`: what torchrun starts, a line each; `before`: lines of the script above it; `environment`: what the
    framework must find set, where the user has not; `needs`: what must be installed, in words; `runner`: lines that
    start processes on a node, where torchrun is not what does.
    """
    if draft.launcher == "kubernetes":
        draft.by_hand.append(f"{name}.yaml: put your image and the claim of a volume with this folder in their places")
    head = draft.header()
    script = [
        "#!/bin/bash",
        head + "# Flags after the script's name are added to the end.",
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        f"source ./{name}.env",
        f"STEPS=${{STEPS:-{STEPS}}}",
        *before,
        *_nodes(draft),
        *(TORCHRUN if runner is None else runner),
        *(f"    {line} \\" for line in program[:-1]),
        f'    {program[-1]} "$@"',
    ]
    files = [
        File(name=f"{name}.sh", text="\n".join(script) + "\n", program=True),
        File(name=f"{name}.env", text=head + _environment(environment or {})),
        File(name=f"README-{draft.target.name}.md", text=_readme(draft, name, needs)),
    ]
    if draft.launcher == "slurm":
        files.append(File(name=f"{name}.sbatch", text=_slurm(draft, name, head)))
    elif draft.launcher == "kubernetes":
        files.append(File(name=f"{name}.yaml", text=head + _kubernetes(draft, name)))
    return tuple(files)


def gpus_per_node(gpus: int) -> int:
    """Eight as in most nodes, or the most that divides the GPUs."""
    return next(count for count in range(min(8, gpus), 0, -1) if gpus % count == 0)


def node_of(draft: ExportDraft) -> int:
    """GPUs of a node, which are of one kind."""
    return gpus_per_node(gcd(draft.strategy.world, *(kind.gpus for kind in kinds_of(draft.plan.cluster))))


def _nodes(draft: ExportDraft) -> list[str]:
    node = node_of(draft)
    nodes = draft.strategy.world // node
    return [f"GPUS_PER_NODE=${{GPUS_PER_NODE:-{node}}}", f"NUM_NODES=${{NUM_NODES:-{nodes}}}", ""]


def _kinds(draft: ExportDraft) -> list[str]:
    """Which nodes are of which kind, where there are several."""
    kinds, node, told, first = kinds_of(draft.plan.cluster), node_of(draft), [], 0
    for kind in kinds:
        last = first + kind.gpus // node - 1
        told.append(f"NODE_RANK {first}{f' to {last}' if last > first else ''} must be nodes of {kind.gpu.name}")
        first = last + 1
    return [f"Ranks are numbered kind by kind: {', '.join(told)}, {node} GPUs each."] if len(kinds) > 1 else []


def _environment(values: Mapping[str, str | int]) -> str:
    lines = [f"export {name}=${{{name}:-{value}}}" for name, value in values.items()]
    site = [
        "# Of your site, where NCCL finds no network or the wrong one:",
        "# export NCCL_SOCKET_IFNAME=eth0",
        "# export NCCL_IB_HCA=mlx5",
    ]
    return "\n".join([*lines, *site]) + "\n"


def _readme(draft: ExportDraft, name: str, needs: str) -> str:
    start = {
        "torchrun": f"`./{name}.sh` on every node (NODE_RANK, MASTER_ADDR and NUM_NODES name them)",
        "slurm": f"`sbatch {name}.sbatch` in this folder, which all nodes must see",
        "kubernetes": f"`kubectl apply -f {name}.yaml`, after its image and volume are yours",
    }[draft.launcher]
    if draft.launcher == "torchrun" and draft.strategy.world == node_of(draft):
        start = f"`./{name}.sh`"
    kubernetes = draft.launcher == "kubernetes"
    steps = f"STEPS of {name}.yaml at 100" if kubernetes else "STEPS=100 before it"
    told = [
        f"Needs {needs}.",
        f"Start {start}; {steps} trains 100 steps ({STEPS} else), on made-up data until you name yours.",
        *_kinds(draft),
        "`shardwise watch LOG --plan PLAN.json` holds the job's log against what is predicted.",
    ]
    return draft.header("") + "\n" + "\n".join(told) + "\n"


def _slurm(draft: ExportDraft, name: str, head: str) -> str:
    world = draft.strategy.world
    node = gpus_per_node(world)
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={name}-{draft.id}",
        f"#SBATCH --nodes={world // node}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={node}",
        "#SBATCH --exclusive",
        f"#SBATCH --output={name}-%j.log",
        head.rstrip("\n"),
        "# Start it from its own folder, which all nodes must see.",
        "set -euo pipefail",
        'cd "$SLURM_SUBMIT_DIR"',
        'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"export MASTER_PORT=${{MASTER_PORT:-$(({PORT} + SLURM_JOB_ID % 10000))}}",
        "export NUM_NODES=$SLURM_NNODES",
        f"srun --kill-on-bad-exit=1 bash -c 'NODE_RANK=$SLURM_NODEID exec ./{name}.sh'",
    ]
    return "\n".join(lines) + "\n"


def _kubernetes(draft: ExportDraft, name: str) -> str:
    """An indexed Job and the service that gives its first pod a name: no operator is needed."""
    world = draft.strategy.world
    node = gpus_per_node(world)
    title = f"{draft.target.name}-{draft.id}"
    variables = {
        "NUM_NODES": str(world // node), "GPUS_PER_NODE": str(node), "MASTER_ADDR": f"{title}-0.{title}",
        "MASTER_PORT": str(PORT), "STEPS": str(STEPS),
    }  # fmt: skip
    container = {
        "name": "train",
        "image": "IMAGE-WITH-THE-FRAMEWORK",
        "command": ["bash", "-c", f"NODE_RANK=$JOB_COMPLETION_INDEX exec /plan/{name}.sh"],
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "resources": {"limits": {"nvidia.com/gpu": node}},
        "volumeMounts": [{"name": "plan", "mountPath": "/plan"}, {"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
    }
    pod = {
        "subdomain": title,
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            {"name": "plan", "persistentVolumeClaim": {"claimName": "CLAIM-WITH-THIS-FOLDER"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    label = {"job-name": title}
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": title},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": label},
    }  # fmt: skip
    nodes = world // node
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": title},
        "spec": {
            "completions": nodes, "parallelism": nodes, "completionMode": "Indexed", "backoffLimit": 0,
            "template": {"metadata": {"labels": label}, "spec": pod},
        },
    }  # fmt: skip
    return yaml.safe_dump_all([service, job], sort_keys=False, width=120)
