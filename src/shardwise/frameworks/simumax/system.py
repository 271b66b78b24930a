"""SimuMax's system files: a cluster of ours, and its measured efficiencies kept beside it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from shardwise.errors import InputError
from shardwise.inputs import lookup
from shardwise.inputs.calibration import Calibration
from shardwise.inputs.cluster import Cluster, Gpu, Level, Topology
from shardwise.inputs.foreign import Foreign
from shardwise.inputs.gate import counted
from shardwise.inputs.scalars import SCALARS

Raw = dict[str, Any]

GIB = 2.0**30
_OPERATORS = ("default", "matmul", "fp8_matmul", "group_matmul", "fp8_group_matmul", "sdp_fwd", "sdp_bwd")
_RATES = ("default", "permute_fwd", "permute_bwd", "ce", "ce_fusion")
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "p2p", "all2all")
_PCIE = ("intra_node_pcie_8x", "intra_node_pcie_4x", "intra_node_pcie_2x")
_NETWORKS = (*_PCIE, "high_intra_node", "low_intra_node", "inter_node")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorEfficiency:
    """One kind of compute operator."""

    peak: float
    """Operations per second."""
    fallback: float
    """Share of the peak where the table has no entry."""
    table: dict[str, float] = field(hash=False)
    """Share of the peak by SimuMax's text for a shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRate:
    """One kind of operator bound by memory."""

    rate: float
    """Bytes per second."""
    efficiency: float
    """Share of it that is reached."""
    latency: float
    """Seconds added to every operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveEfficiency:
    """One collective on one network: time = volume / (rate x efficiency) + latencies."""

    efficiency: float
    """Share of the network's rate."""
    latency: float
    """Seconds per step."""
    fixed: float
    """Seconds once."""
    fixed_by_group: dict[int, float] = field(hash=False)
    """Seconds once, by group size, in place of `fixed`."""
    rate_by_group: dict[int, float] = field(hash=False)
    """Bytes per second of dense data parallel by group size, in place of the rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkEfficiency:
    """One network."""

    rate: float
    """Bytes per second; of the whole node for the network between nodes."""
    collectives: dict[str, CollectiveEfficiency] = field(hash=False)
    """By name: all_reduce, all_gather, reduce_scatter, p2p, all2all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimumaxEfficiency:
    """Everything that a system file measured."""

    operators: dict[str, OperatorEfficiency] = field(hash=False)
    """By name: default, matmul, group_matmul, sdp_fwd, sdp_bwd, fp8_..."""
    memory: dict[str, MemoryRate] = field(hash=False)
    """By name: default, permute_fwd, permute_bwd, ce, ce_fusion."""
    networks: dict[str, NetworkEfficiency] = field(hash=False)
    """By name: high_intra_node, inter_node, intra_node_pcie_8x ..."""
    roofline: bool = True
    """Time is the larger of compute and memory time; else compute time alone."""
    pcie: bool = False
    """GPUs of a node are joined by PCIe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimumaxSystem:
    """A SimuMax system file."""

    cluster: Cluster
    """The cluster."""
    efficiency: SimumaxEfficiency
    """Its measured efficiencies."""
    raw: Raw
    """The file as it was."""
    notes: tuple[str, ...] = ()
    """Sentences for the user."""


def is_system(data: Raw) -> bool:
    return bool({"sys_name", "accelerator", "num_per_node"} & data.keys())


def read_system(data: Raw, *, gpus: int | None = None, title: str = "system") -> SimumaxSystem:
    """A cluster of `gpus` (one node, if not said) and the efficiencies of a SimuMax system file."""
    keys = Foreign(data)
    keys.refuse_unknown(("sys_name", "num_per_node", "FC8", "accelerator", "networks"))
    name, node = keys.text("sys_name"), keys.whole("num_per_node", row="Cluster.gpus")
    accelerator = keys.table("accelerator", required=True)
    accelerator.refuse_unknown(("backend", "mem_gbs", "mode", "op", "bandwidth"))
    backend = accelerator.text("backend", choices=("cuda", "musa"))
    mode = accelerator.text("mode", choices=("roofline", "only_compute"))
    notes: list[str] = []
    operators = _operators(accelerator.table("op", required=True), notes)
    memory = _memory(accelerator.table("bandwidth", required=True))
    networks = _networks(keys.table("networks", required=True), notes)
    pcie = _by_pcie(keys, networks)
    levels = _levels(keys, networks, node, gpus or node, pcie=pcie)
    efficiency = SimumaxEfficiency(
        operators=operators, memory=memory, networks=networks, roofline=mode == "roofline", pcie=pcie
    )
    gpu = _gpu(name, accelerator.number("mem_gbs", row="simumax.mem_gbs"), operators, memory, notes)
    keys.finish(title)
    notes += _unused(efficiency, backend)
    gpu = replace(gpu, calibration=_calibration(name, efficiency, levels, notes))
    count = gpus or node
    cluster = Cluster(name=f"{count}x{name}", gpu=gpu, gpus=count, levels=levels)
    return SimumaxSystem(cluster=cluster, efficiency=efficiency, raw=dict(data), notes=tuple(notes))


def _operators(table: Foreign, notes: list[str]) -> dict[str, OperatorEfficiency]:
    table.refuse_unknown(_OPERATORS)
    found = {}
    for name in ("default", "matmul", *(name for name in _OPERATORS[2:] if table.has(name))):
        op = table.table(name, required=True)
        op.refuse_unknown(("tflops", "efficient_factor", "accurate_efficient_factor"))
        shapes = op.table("accurate_efficient_factor")
        if name.startswith("fp8") and op.data.get("efficient_factor") == 0 and not shapes.data:
            notes.append(f"{name} has no measurement (efficiency 0), so FP8 is left out of this cluster")
            continue
        found[name] = OperatorEfficiency(
            peak=op.number("tflops", row="simumax.tflops") * 1e12,
            fallback=op.number("efficient_factor", row="simumax.operator_share"),
            table={shape: shapes.number(shape, row="simumax.operator_share") for shape in shapes.data},
        )
    return found


def _memory(table: Foreign) -> dict[str, MemoryRate]:
    table.refuse_unknown(_RATES)
    found = {}
    for name in ("default", *(name for name in _RATES[1:] if table.has(name))):
        rate = table.table(name, required=True)
        rate.refuse_unknown(("gbps", "efficient_factor", "latency_us"))
        found[name] = MemoryRate(
            rate=rate.number("gbps", row="simumax.gbps") * GIB,
            efficiency=rate.number("efficient_factor", row="simumax.operator_share"),
            latency=rate.number("latency_us", 0.0, row="simumax.latency_us") * 1e-6,
        )
    return found


def _networks(table: Foreign, notes: list[str]) -> dict[str, NetworkEfficiency]:
    table.refuse_unknown(("intra_with_pcie", *_NETWORKS))
    unused: dict[str, None] = {}
    found = {name: _network(table.table(name), unused) for name in _NETWORKS if table.has(name)}
    if unused:
        notes.append(f"SimuMax's settings without effect here: {', '.join(unused)} of its networks")
    return found


def _network(table: Foreign, unused: dict[str, None]) -> NetworkEfficiency:
    table.refuse_unknown(("processor_usage", "bandwidth", "op"))
    base = table.table("bandwidth", required=True)
    base.refuse_unknown(("gbps", "efficient_factor", "latency_us", "fixed_latency", "fixed_latency_us_by_comm_num"))
    ops = table.table("op", required=True)
    ops.refuse_unknown(_COLLECTIVES)
    collectives = {name: _collective(ops.table(name), base, unused) for name in _COLLECTIVES if ops.has(name)}
    rate = base.number("gbps", row="simumax.gbps") * GIB
    base.number("efficient_factor", 1.0, row="simumax.network_share")
    base.number("latency_us", 0.0, row="simumax.latency_us")
    _by_group(base.table("fixed_latency_us_by_comm_num"), 1e-6, "simumax.latency_us")
    for idle in (table, base):
        unused |= dict.fromkeys(_last(idle.unused({"number": ("processor_usage", "fixed_latency")}, "simumax.number")))
    # what every collective has of its own is read from the network itself by none
    own = [name for name in ("efficient_factor", "latency_us") if all(ops.table(op).has(name) for op in collectives)]
    unused |= dict.fromkeys(_last(base.given([*own, "fixed_latency_us_by_comm_num"])))
    return NetworkEfficiency(rate=rate, collectives=collectives)


def _last(settings: list[str]) -> list[str]:
    pairs = (setting.partition(" = ") for setting in settings)
    return [f"{path.rpartition('.')[2]} = {value}" for path, _, value in pairs]


def _collective(op: Foreign, base: Foreign, unused: dict[str, None]) -> CollectiveEfficiency:
    op.refuse_unknown(
        ("scale", "offset", "efficient_factor", "latency_us", "fixed_latency_us", "fixed_latency_us_by_comm_num",
         "dp_fixed_bw")
    )  # fmt: skip
    # what a collective moves follows from its kind
    unused |= dict.fromkeys(_last(op.unused({"number": ("scale", "offset")}, "simumax.number")))
    own = op if op.has("efficient_factor") else base
    return CollectiveEfficiency(
        efficiency=own.number("efficient_factor", row="simumax.network_share"),
        latency=(op if op.has("latency_us") else base).number("latency_us", 0.0, row="simumax.latency_us") * 1e-6,
        fixed=op.number("fixed_latency_us", 0.0, row="simumax.latency_us") * 1e-6,
        fixed_by_group=_by_group(op.table("fixed_latency_us_by_comm_num"), 1e-6, "simumax.latency_us"),
        rate_by_group=_by_group(op.table("dp_fixed_bw"), GIB, "simumax.gbps"),
    )


def _by_group(table: Foreign, scale: float, row: str) -> dict[int, float]:
    found = {}
    for key in table.data:
        try:
            found[counted(key, SCALARS["Cluster.gpus"], key)] = table.number(key, row=row) * scale
        except InputError:
            table.fault(key, "must be a group size, a whole number")
    return found


def _by_pcie(keys: Foreign, networks: dict[str, NetworkEfficiency]) -> bool:
    """Whether GPUs of a node are joined by PCIe: as the file says, or as it describes one of the two alone."""
    told = keys.table("networks").switch("intra_with_pcie", default=False)
    return any(name in networks for name in _PCIE) and (told or "high_intra_node" not in networks)


def _inside(networks: dict[str, NetworkEfficiency], *, pcie: bool) -> list[str]:
    """The networks inside a node, that of the smallest groups first."""
    names = reversed(_PCIE) if pcie else ("high_intra_node",)
    return [name for name in names if name in networks]


def _levels(
    keys: Foreign, networks: dict[str, NetworkEfficiency], node: int, gpus: int, *, pcie: bool
) -> tuple[Level, ...]:
    inside = _inside(networks, pcie=pcie)
    if not inside:
        keys.fault("networks", "has neither high_intra_node nor intra_node_pcie_8x; describe the network inside a node")
        return ()
    near, rate = networks[inside[-1]], max(networks[name].rate for name in inside)
    # what groups of several share of a PCIe tree is in its efficiencies
    topology: Topology = "mesh" if keys.switch("FC8", default=False) and not pcie else "switch"
    levels = [Level(name=inside[-1], size=node, bandwidth=rate, latency=_latency(near), topology=topology)]
    if gpus <= node:
        return tuple(levels)
    if "inter_node" not in networks:
        keys.fault("networks", f"{gpus} GPUs are more than the {node} of a node, but inter_node is missing; add it")
        return tuple(levels)
    outer = networks["inter_node"]
    size = -(-gpus // node) * node
    # SimuMax gives the rate of a whole node, all adapters together.
    levels.append(Level(name="inter_node", size=size, bandwidth=outer.rate / node, latency=_latency(outer)))
    return tuple(levels)


def _latency(network: NetworkEfficiency) -> float:
    p2p = network.collectives.get("p2p")
    return p2p.latency if p2p else 0.0


def _calibration(name: str, efficiency: SimumaxEfficiency, levels: tuple[Level, ...], notes: list[str]) -> Calibration:
    from shardwise.frameworks.simumax.calibration import calibration_of  # it reads this file's types

    networks, inner = efficiency.networks, levels[0]
    inside = _inside(networks, pcie=efficiency.pcie)
    within = {one: int(one[-2]) for one in inside[:-1]}  # intra_node_pcie_2x: groups of two neighbours
    nets = [(inner.name, within.get(one, 0), networks[one]) for one in inside]
    rates = {inner.name: inner.bandwidth}
    if "inter_node" in networks:
        nets.append(("inter_node", 0, networks["inter_node"]))
        rates["inter_node"] = networks["inter_node"].rate
    return calibration_of(name, efficiency, tuple(nets), rates, notes)


def _unused(efficiency: SimumaxEfficiency, backend: str) -> list[str]:
    """What the file measured and no kernel here is priced by, with its values."""
    operators, inside = efficiency.operators, _inside(efficiency.networks, pcie=efficiency.pcie)
    memory = efficiency.memory
    told = [f"bandwidth.{name}.latency_us = {one.latency * 1e6:g} (every kernel takes default's)"
            for name, one in memory.items() if one.latency != memory["default"].latency]  # fmt: skip
    if ("permute_fwd" in memory) != ("permute_bwd" in memory):
        told.append("one of bandwidth.permute_fwd and .permute_bwd without the other")
    if {"matmul", "group_matmul", "sdp_fwd", "sdp_bwd"} <= operators.keys():
        told.append(f"op.default.efficient_factor = {operators['default'].fallback:g}")
    if "fp8_group_matmul" in operators:
        fp8 = operators["fp8_group_matmul"]
        told.append(f"op.fp8_group_matmul: tflops = {fp8.peak / 1e12:g}, efficient_factor = {fp8.fallback:g}")
    told += [
        f"networks.{name} (gbps = {one.rate / GIB:g}), which SimuMax does not use either"
        for name, one in efficiency.networks.items() if name not in {*inside, "inter_node"}
    ]  # fmt: skip
    if not efficiency.roofline:
        told.append("mode = only_compute: memory traffic counts here all the same")
    if backend == "musa":
        told.append("backend = musa")
    text = f"SimuMax's figures without effect here, where kernels are counted otherwise: {'; '.join(told)}"
    return [text] if told else []


def _gpu(
    name: str, memory: float, operators: dict[str, OperatorEfficiency], rates: dict[str, MemoryRate], notes: list[str]
) -> Gpu:
    """The file's peaks, with what it does not say taken from the catalog's GPU of that name."""
    known = _catalog_gpu(name)
    peak = operators["default"].peak
    flops = {"bf16": peak, "fp16": peak, "fp32": known.flops["fp32"] if known else peak / 16}
    if known is None:
        notes.append(f"no fp32 peak in a SimuMax file and no {name} in the catalog; 1/16 of the 16-bit peak is assumed")
    if "fp8_matmul" in operators:
        if known and not known.has("fp8"):
            fp8 = operators["fp8_matmul"]
            told = f"tflops = {fp8.peak / 1e12:g}, efficient_factor = {fp8.fallback:g}"
            notes.append(f"fp8_matmul ({told}) is left out: {known.name} has no FP8 hardware")
        else:
            flops["fp8"] = operators["fp8_matmul"].peak
    chip = {"sms": known.sms, "l2": known.l2} if known else {}
    return Gpu(name=name, memory=memory * GIB, bandwidth=rates["default"].rate, flops=flops, **chip)  # type: ignore[arg-type]


def _catalog_gpu(name: str) -> Gpu | None:
    """The catalog's GPU with the longest name that the system's name starts with."""
    folder = lookup.CATALOG / "clusters"
    wanted = lookup.normal(name)
    near = max((known for known in lookup.names(folder) if wanted.startswith(known)), key=len, default=None)
    found = lookup.entry("gpus", folder, near) if near else None
    if found is None:
        return None
    own = {key: value for key, value in found[1].items() if key != "levels" and not key.startswith("host_")}
    return lookup.build(Gpu, {"name": found[0], **own})


def write_system(system: SimumaxSystem) -> Raw:
    """The file as it was, with the cluster's memory and node size as they are now."""
    raw = {**system.raw, "accelerator": dict(system.raw["accelerator"])}
    memory = system.cluster.gpu.memory / GIB
    if memory != raw["accelerator"]["mem_gbs"]:
        raw["accelerator"]["mem_gbs"] = memory
    if system.cluster.levels[0].size != raw["num_per_node"]:
        raw["num_per_node"] = system.cluster.levels[0].size
    return raw
