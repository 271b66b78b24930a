"""What must be there before a job is started: every fault at once, each with its cure."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import Fault
from shardwise.estimate.estimate import Estimate
from shardwise.frameworks.export import find
from shardwise.frameworks.launcher import PORT, gpus_per_node
from shardwise.frameworks.target import Export
from shardwise.inputs.load import gpu_names
from shardwise.inputs.lookup import normal
from shardwise.measure.launch.machine import FoundGpu, FoundMachine, host_memory
from shardwise.units import show_bytes

ROOM = 2**30
"""Bytes that a run's log and caches may need on the disk."""
ALIKE = 0.1
"""Share by which a GPU's memory may differ from the plan's: what is not for programs is counted by some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A module that a target imports."""

    module: str
    install: str
    """What gets it."""
    when: str = ""
    """Only where a file of the export holds this; a leading `!`: where none does; a leading `$`: where the environment
    has this variable."""
    package: str = ""
    """What pip calls it, where that is not the module's name."""
    beside: tuple[str, str] = ("", "")
    """A file that must lie beside it, or in the folder that a variable names; the variable."""
    gpu: bool = False
    """It is of no use without a GPU, and not asked for on CPUs."""


NEEDS: dict[str, tuple[Need, ...]] = {
    "megatron": (
        Need(
            module="megatron.core", install="put the folder of Megatron-LM on PYTHONPATH", package="megatron-core",
            beside=("pretrain_gpt.py", "MEGATRON"),
        ),
        Need(
            module="transformer_engine", install="pip install transformer-engine[pytorch], or plan for megatron-local",
            when="!--transformer-impl local", gpu=True,
        ),
        Need(
            module="fused_weight_gradient_mlp_cuda",
            install="build apex with --cuda_ext, or add --no-gradient-accumulation-fusion to train.sh",
            when="!--no-gradient-accumulation-fusion", gpu=True,
        ),
        Need(module="flash_attn", install="pip install flash-attn", when="--attention-backend flash", gpu=True),
    ),
    "megatron-bridge": (
        Need(module="megatron.bridge", install="pip install megatron-bridge"),
        Need(module="nvidia_resiliency_ext", install="pip install nvidia-resiliency-ext"),
        Need(module="transformer_engine", install="pip install transformer-engine[pytorch]", gpu=True),
    ),
    "torchtitan": (
        Need(module="torchtitan", install="pip install torchtitan"),
        Need(module="torchao", install="pip install torchao", when="float8"),
        Need(module="torchao", install="pip install torchao", when="mxfp8"),
    ),
    "deepspeed": (
        Need(module="deepspeed", install="pip install deepspeed"),
        Need(module="transformers", install="pip install transformers", when="transformers"),
    ),
    "huggingface": (
        Need(module="transformers", install="pip install transformers"),
        Need(module="accelerate", install="pip install accelerate", when="$TRAINER"),
    ),
    "mindformers": (
        Need(module="mindformers", install="pip install mindformers"),
        Need(module="mindspore", install="pip install mindspore, of the release that this MindFormers names"),
    ),
    "paddle": (
        Need(module="paddlenlp", install="pip install paddlenlp"),
        Need(module="paddle", install="pip install paddlepaddle-gpu"),
    ),
}  # fmt: skip
"""Target -> what its folders import; the first is the framework itself, whose version is held against the target's."""


STARTERS = {"mindformers": "msrun", "paddle": "python3"}
"""What starts the processes of a target, where it is not torchrun; torch is not asked for there, nor what it sees."""
NOT_ON_CPUS = {
    "torchtitan": "imports triton and asks for a GPU",
    "mindformers": "trains on NPUs",
    "paddle": "is told to train on GPUs",
}
"""Targets whose files do not start on CPUs, and why."""


def starter_of(export: Export) -> str:
    """The command that starts the processes of an export."""
    return STARTERS.get(export.target.partition("@")[0], "torchrun")


def needs_of(export: Export, environment: Mapping[str, str], *, cpu: bool) -> tuple[Need, ...]:
    """What this export imports."""
    text = "\n".join(file.text for file in export.files)

    def holds(when: str) -> bool:
        if when.startswith("$"):
            return bool(environment.get(when[1:]))
        return when[1:] not in text if when.startswith("!") else when in text

    every = NEEDS.get(export.target.partition("@")[0], ())
    return tuple({need.module: need for need in every if not (cpu and need.gpu) and holds(need.when)}.values())


def faults_of(
    export: Export, told: Estimate, machine: FoundMachine, environment: Mapping[str, str], folder: Path, *, cpu: bool
) -> Iterator[Fault]:
    """Everything that stands in the way of starting here."""
    yield from _software(export, machine, environment, cpu=cpu)
    yield from _places(folder)
    yield from _port(environment)
    seen = starter_of(export) == "torchrun" and not cpu  # by torch
    yield from _nodes(told, machine, environment, cpu=cpu, seen=seen)
    if cpu:
        yield from _on_cpus(export, told)
    elif seen:
        yield from _gpus(told, machine)


def slurm_faults(environment: Mapping[str, str], folder: Path) -> Iterator[Fault]:
    """The same where Slurm starts it: on machines that cannot be asked from here."""
    if not shutil.which("sbatch", path=environment.get("PATH", os.defpath)):
        yield Fault("--launcher", "is slurm, and sbatch is not on PATH; launch from a login node, or use torchrun")
    yield from _places(folder)


def _software(export: Export, machine: FoundMachine, environment: Mapping[str, str], *, cpu: bool) -> Iterator[Fault]:
    starter = starter_of(export)
    package = {"msrun": "mindspore", "python3": "paddlepaddle-gpu"}.get(starter, "torch")
    if not shutil.which(starter, path=environment.get("PATH", os.defpath)):
        yield Fault(starter, f"is not on PATH; activate the environment that has {package}, or pip install {package}")
    if starter == "torchrun" and not machine.torch:
        why = f" ({machine.fault})" if machine.fault else ""
        yield Fault("torch", f"cannot be imported by {machine.executable or 'any python3'}{why}; pip install torch")
        return
    needs = needs_of(export, environment, cpu=cpu)
    for need in needs:
        if machine.modules.get(need.module) is None:
            yield Fault(need.module, f"cannot be imported by {machine.executable}; {need.install}")
        else:
            yield from _beside(need, machine, environment)
    if needs and (found := machine.modules.get(needs[0].module)):
        yield from _version(export, needs[0].package or needs[0].module, found)


def _beside(need: Need, machine: FoundMachine, environment: Mapping[str, str]) -> Iterator[Fault]:
    name, variable = need.beside
    place = environment.get(variable) or machine.places.get(need.module, "")
    if name and not (Path(place) / name).is_file():
        yield Fault(variable, f"{name} is not in {place or 'any folder'}; set {variable} to the folder that has it")


def _version(export: Export, package: str, found: str) -> Iterator[Fault]:
    """A release that the files are for is said by its first numbers; of `main` nothing can be said."""
    target, version = find(export.target)
    wanted = version.partition("-")[0].split(".")
    if not wanted[0].isdigit() or found.split(".")[: len(wanted)] == wanted:
        return
    others = [f"{target.name}@{one}" for one in target.versions if found.startswith(f"{one}.")]
    way = f", or launch --to {others[0]}" if others else ""
    wanted_release = f"{'.'.join(wanted)}.*"
    yield Fault(
        package,
        f"is {found} here, and the files are for {export.speaks}; pip install '{package}=={wanted_release}'{way}",
    )


def _places(folder: Path) -> Iterator[Fault]:
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    unreal = shutil.disk_usage(there).total == 0  # /proc and its like let root write, and hold nothing
    if unreal or not os.access(there, os.W_OK):
        yield Fault("--out", f"{there} may not be written; choose another folder")
    elif (free := shutil.disk_usage(there).free) < ROOM:
        yield Fault(
            "--out", f"{there} has {show_bytes(free)} free; a run needs {show_bytes(ROOM)}: choose another disk"
        )


def _port(environment: Mapping[str, str]) -> Iterator[Fault]:
    """A port that was asked for must be free; the default gives way (`free_port`)."""
    text = environment.get("MASTER_PORT")
    if text is None or environment.get("NODE_RANK", "0") != "0":
        return
    if not text.isdigit() or not 0 < int(text) < 65536:
        yield Fault("MASTER_PORT", f"is {text!r}; give a port from 1 to 65535, or leave it out")
    elif not is_free(int(text)):
        yield Fault("MASTER_PORT", f"is {text}, which another program uses; leave it out, or set {free_port()}")


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """The usual port, or one that the system knows to be free."""
    if is_free(PORT):
        return PORT
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def _on_cpus(export: Export, told: Estimate) -> Iterator[Fault]:
    target, _ = find(export.target)
    if target.name in NOT_ON_CPUS:
        yield Fault("--cpu", f"{target.title} {NOT_ON_CPUS[target.name]}; leave it out where they are, or see the plan "
                    "start with --to huggingface or torch-pipelining")  # fmt: skip
    strategy, free = told.strategy, host_memory()
    states = sum(rank.static for rank in told.memory) * strategy.world / len(told.memory)
    if free is not None and states > free:
        many = f"{strategy.world} processes" if strategy.world > 1 else "the process"
        yield Fault("memory", f"{many} would keep {show_bytes(states)} of weights and states, and this machine has "
                    f"{show_bytes(free)} of memory free; plan a smaller model to see it start")  # fmt: skip


def _nodes(
    told: Estimate, machine: FoundMachine, environment: Mapping[str, str], *, cpu: bool, seen: bool
) -> Iterator[Fault]:
    world = told.strategy.world
    nodes = int(environment.get("NUM_NODES", "") or 0) or world // gpus_per_node(world)
    here = world if cpu else world // nodes
    if nodes > 1 and not {"MASTER_ADDR", "NODE_RANK"} <= environment.keys():
        yield Fault(
            "nodes", f"the plan has {world} GPUs on {nodes} nodes; use --launcher slurm, or launch on every node with "
            "NUM_NODES, NODE_RANK and MASTER_ADDR set",
        )  # fmt: skip
    elif seen and machine.torch and len(machine.gpus) < here:
        yield from _too_few(here, machine)


def _too_few(here: int, machine: FoundMachine) -> Iterator[Fault]:
    if machine.gpus:
        yield Fault(
            "GPUs", f"{here} are needed and {len(machine.gpus)} are here; plan for {len(machine.gpus)}, or move"
        )
        return
    why = f" ({machine.fault})" if machine.fault else "" if machine.cuda else " (this torch is built for CPUs)"
    driver = f"driver {machine.driver}" if machine.driver else "no driver answers nvidia-smi"
    yield Fault("GPUs", f"torch sees none{why}, {driver}; start it where they are, or see it start with --cpu")


def _gpus(told: Estimate, machine: FoundMachine) -> Iterator[Fault]:
    if told.strategy.world > 1 and machine.gpus and not machine.nccl:
        yield Fault("NCCL", f"torch {machine.torch} has none; install a build of torch for CUDA {machine.cuda}")
    if machine.gpus and not _same(machine.gpus[0], told):
        planned, found = told.cluster.gpu, machine.gpus[0]
        yield Fault(
            "GPU", f"is {found.name} ({show_bytes(found.total)}), and the plan is for {planned.name} "
            f"({show_bytes(planned.memory)}); see what it takes there: estimate PLAN.json --cluster "
            f"{len(machine.gpus)}x{_catalog(found.name) or 'GPU'}",
        )  # fmt: skip
    for index, gpu in enumerate(machine.gpus[: told.strategy.world]):
        if gpu.free < told.total_bytes <= gpu.total:
            yield Fault(
                "memory", f"GPU {index} has {show_bytes(gpu.free)} free of {show_bytes(gpu.total)}, and the plan needs "
                f"{show_bytes(told.total_bytes)}; end what runs there (nvidia-smi names it)",
            )  # fmt: skip


def _catalog(device: str) -> str:
    words = normal(device)
    return max((name for name in gpu_names() if name in words), key=len, default="")


def _same(found: FoundGpu, told: Estimate) -> bool:
    """By its name where the catalog knows it, else by its memory."""
    planned, known = normal(told.cluster.gpu.name), _catalog(found.name)
    if known and planned in {normal(name) for name in gpu_names()}:
        return known == planned or known in planned or planned in known
    return abs(found.total / told.cluster.gpu.memory - 1) <= ALIKE
