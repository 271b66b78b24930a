"""Which runtime stands for each framework that published runs name, and what their notes change about it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from shardwise.frameworks.load import load_cluster
from shardwise.inputs.cluster import Cluster, Level
from shardwise.inputs.load import load_runtime, load_site
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.site import Site

# First pattern that a row's `framework` matches, in lower case.
RUNTIMES: tuple[tuple[str, str], ...] = (
    ("aa-scaling", "aleph"),
    ("composer|llm-foundry|mosaic", "mosaic"),
    ("maxtext|jax", "maxtext"),
    # torchao's table of H100 runs names torchtitan 0.0.2; its others, and the tutorial's, commits of summer 2025
    ("torchtitan.*(2024|docs/performance|workflows/training.*h100)", "torchtitan-2024"),
    ("torchtitan.*(2025-?0[1-6]|pretraining.rst|workflows/training.*mi300)", "torchtitan-2025"),
    ("torchtitan", "torchtitan"),
    ("nanotron.*2024", "nanotron-2024"),
    ("nanotron", "nanotron"),
    ("internevo|internlm", "internevo"),
    ("llm\\.c", "llm-c"),
    ("megatron-lm \\+ deepspeed zero-3", "deepspeed-2021"),
    ("zero-3|zero3|deepspeed zero", "deepspeed"),
    ("megatron-deepspeed", "megatron-deepspeed"),
    ("fsdp1|fabric|lit-gpt|hugging", "fsdp"),
    ("zero-bubble", "zero-bubble"),
    ("megatron-lm fork", "megatron-2023"),
    ("megatron-lm \\((2020|2021|2022)|285068c8|nemo megatron", "megatron-2021"),
    ("alpa", "megatron-2021"),
    ("automodel", "automodel"),
    ("mindformers|mindspore", "mindformers"),
    ("paddle", "paddle"),
    ("deepspeed", "deepspeed"),
    ("megatron|nemo|meta internal|deepseek", "megatron"),
)

_GPUS: tuple[tuple[str, str], ...] = (
    ("h100-96gb", "h100-96"),
    ("a100.*40gb", "a100-40"),
    ("a800", "a800"),
    ("a100", "a100"),
    ("h200", "h200"),
    ("h800", "h800"),
    ("h100", "h100"),
    ("gb300", "gb300"),
    ("gb200", "gb200"),
    ("b300", "b300"),
    ("b200", "b200"),
    ("v100.*16gb", "v100-16"),
    ("v100", "v100"),
    ("mi300", "mi300x"),
    ("mi325", "mi325x"),
    ("mi350", "mi350x"),
    ("mi355", "mi355x"),
)


def runtime_for(framework: str, page: str = "", gpu: str = "") -> Runtime | None:
    """The runtime that stands for a framework's text; the page and the GPU of its table tell its age."""
    text = f"{framework} {page} {gpu}".lower()
    return next((load_runtime(name) for pattern, name in RUNTIMES if re.search(pattern, text)), None)


def with_overlap(runtime: Runtime, overlap: dict[str, Any] | None) -> Runtime:
    """A runtime whose overlaps a row states: true, false, or unknown."""
    if not overlap:
        return runtime
    changes: dict[str, Any] = {}
    if overlap.get("tp") is not None:
        changes["tp"] = runtime.overlap.tp if overlap["tp"] else 0.0
    if overlap.get("dp") is False:
        changes |= {"grad_reduce": 0.0, "param_gather": 0.0}
    if overlap.get("pp") is False:
        changes["p2p"] = 0.0
    return replace(runtime, overlap=replace(runtime.overlap, **changes))


# First pattern that a row's source, GPU and notes match; all others are taken for usual.
SITES: tuple[tuple[str, str], ...] = (
    ("^bloom ", "bloom"),
    ("^mt-nlg ", "mt-nlg"),
    ("^aleph-", "aleph"),
    ("^torchao.* MI300X ", "torchao-mi300x"),
    ("power-limited|^torchao.* B200 ", "power-limited"),  # one team, one cluster
)


def site_for(source: str, gpu: str = "", notes: str = "") -> Site:
    """Where a row was measured."""
    text = f"{source} {gpu} {notes}"
    return load_site(next((name for pattern, name in SITES if re.search(pattern, text)), "usual"))


def cluster_for(gpu: dict[str, Any], gpus: int) -> Cluster | None:
    """The cluster that a row's gpu object describes, its network where it states one."""
    text = f"{gpu.get('type', '')} {gpu.get('family', '')}".lower()
    name = next((name for pattern, name in _GPUS if re.search(pattern, text)), None)
    if name is None:
        return None
    cluster = load_cluster(f"{gpus}x{name}")
    return _networked(cluster, gpu, gpus)


def _networked(cluster: Cluster, gpu: dict[str, Any], gpus: int) -> Cluster:
    inner = cluster.levels[0]
    domain = inner.size
    if "NVL72" not in str(gpu.get("type", "")):
        domain = int(gpu.get("gpus_per_node") or inner.size)
    if gpus > domain:  # a job takes as many GPUs of every rack: 64 of 72
        domain = max(size for size in range(1, domain + 1) if gpus % size == 0)
    inner = replace(inner, size=domain, topology="switch")
    if gpus <= domain:
        return replace(cluster, levels=(inner,))
    outer = (
        cluster.levels[1] if len(cluster.levels) > 1 else Level(name="network", size=gpus, bandwidth=25e9, latency=8e-6)
    )
    stated = network_rate(str(gpu.get("inter_node") or ""), domain)
    outer = replace(outer, size=max(gpus, domain), bandwidth=stated or outer.bandwidth)
    return replace(cluster, levels=(inner, outer))


_RATE = re.compile(
    r"(?:(\d+)\s*x\s*)?(?:[A-Za-z\- ]+)?(\d+)\s*Gb/s(?:\s+[A-Za-z]+)*?\s+per\s+(node|GPU)", re.IGNORECASE
)


def network_rate(text: str, per_node: int) -> float | None:
    """Bytes per second and GPU from words like `4x 100 Gb/s RoCE per node` or `RDMA 400 Gb/s per GPU`."""
    found = _RATE.search(text)
    if not found:
        return None
    rate = float(found[1] or 1) * float(found[2]) * 1e9 / 8
    return rate / per_node if found[3].lower() == "node" else rate
