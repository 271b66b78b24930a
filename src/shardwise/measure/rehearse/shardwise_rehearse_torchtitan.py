"""Run one rank's share of a plan with torchtitan's own modules: `python rehearse_pp0.py --out result.json`.

Needs torch, torchtitan 0.2 and the standard library; one file, so that it can be copied alone. `shardwise rehearse
--with torchtitan` writes SPEC into it, which holds the configuration and the model's module as `export --to
torchtitan@0.2` writes them. torchtitan's trainer builds the model, its sharding, checkpointing and compilation, the
loss and the optimizer over a fake process group: collectives return at once, what is gathered holds copies of the
rank's own part. `--device meta` has it do the same on tensors without data, as if on a CPU, and counts every byte.
"""
# torchtitan is not installed where this is checked, so its things have no types:
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, ANN204, ANN205, SLF001

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# the written program has that file's text above, where these stand, and the rest of this one below it
from shardwise.measure.rehearse.shardwise_rehearse import RANKS, MetaNorm

# --- a rank of torchtitan's own modules -----------------------------------------------------------------------------


class Sent(TorchDispatchMode):
    """Notes the collectives that compute waits for (tensor and context parallel), to time their copies apart."""

    def __init__(self, found: dict[tuple[str, tuple[int, ...]], int]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(hasattr(one, "__tensor_flatten__") for one in types):
            return NotImplemented
        kind = str(func).removeprefix("_c10d_functional.").split(".")[0]
        if kind == "all_gather_into_tensor":
            self.note(f"spread {args[1]}", args[0].numel())
        elif kind == "reduce_scatter_tensor":
            self.note("scatter", args[0].numel() // args[2])
        return func(*args, **(kwargs or {}))

    def note(self, kind: str, size: int) -> None:
        self.found[kind, (size,)] = self.found.get((kind, (size,)), 0) + 1


class Faked:
    """What was filled in for other ranks, as our own program notes it."""

    def __init__(self) -> None:
        self.faked: dict[tuple[str, tuple[int, ...]], int] = {}

    def gathered(self, x):
        return x


class TrainerRank:
    """torchtitan's trainer of one rank; its iteration is the trainer's own, in two halves."""

    def __init__(self, spec: dict[str, Any], device: str, counter=None) -> None:
        from torchtitan.config import ConfigManager

        self.spec, self.device, self.home = spec, "cpu" if device == "meta" else "cuda", Faked()
        self.told = {"framework": f"torchtitan {version()}"}
        folder = spec["folder"]
        words = ["--job.config_file", f"{folder}/torchtitan.toml", "--job.dump_folder", folder]
        words += ["--model.hf_assets_path", folder, "--training.steps", "100", "--debug.seed", "1"]
        config = ConfigManager().parse_args(words)
        self.trainer = trainer_of(config, spec["family"], device)
        self.trainer.device = torch.device(self.device)
        # compiled code sends by itself, and is not compiled where others look on
        self.sent = None if counter or config.compile.enable else Sent(self.home.faked)
        if counter:
            watch_resizes(counter)
        self.shape = config.training.local_batch_size, config.training.seq_len
        self.most, self.vocabulary = config.training.max_norm, self.trainer.model_args.vocab_size
        self.valid = torch.tensor(float(config.training.global_batch_size * self.shape[1]), device=self.device)

    @staticmethod
    @contextlib.contextmanager
    def around(spec: dict[str, Any], device: str):
        """The files of the export in a folder, and the process group that the trainer finds."""
        import os
        import tempfile

        import torch.distributed as dist
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if device == "meta":
            without_gpu(spec["family"])
        import torchtitan.train  # noqa: F401 - before tensors lose their data

        if not version().startswith(("0.2", "checkout")):
            raise ImportError(f"torchtitan {version()} is installed, and 0.2 is what this was written for")
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            spec["folder"] = folder
            for name, text in spec["files"].items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            sys.path.insert(0, folder)
            os.environ.update({"LOCAL_RANK": "0", "RANK": str(spec["place"]), "WORLD_SIZE": str(spec["world"])})
            dist.init_process_group("fake", rank=spec["place"], world_size=spec["world"], store=FakeStore())
            if device == "meta":
                stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            yield

    @property
    def parameters(self) -> list[Any]:
        whole = (one for part in self.trainer.model_parts for one in part.parameters())
        return [one.to_local() if hasattr(one, "to_local") else one for one in whole]

    def passes(self, clock, after_first) -> None:
        del clock, after_first  # forward and backward are one step of the trainer
        noting, self.sent = self.sent, None
        with noting or contextlib.nullcontext():  # the first time alone, which warms up: it slows the host
            for _ in range(self.trainer.gradient_accumulation_steps):
                tokens = torch.randint(self.vocabulary, self.shape, device=self.device)
                self.trainer.forward_backward_step(
                    input_dict={"input": tokens}, labels=tokens, global_valid_tokens=self.valid
                )

    def step(self) -> None:
        from torchtitan.distributed.utils import clip_grad_norm_

        parts, dims = self.trainer.model_parts, self.trainer.parallel_dims
        clip_grad_norm_(
            [one for part in parts for one in part.parameters()], self.most, foreach=True,
            pp_mesh=dims.get_optional_mesh("pp"), ep_enabled=dims.ep_enabled,
        )  # fmt: skip
        self.trainer.optimizers.step()
        self.trainer.optimizers.zero_grad()


def version() -> str:
    """Of what is installed; a checkout on the path has none, and is taken as it is."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("torchtitan")
    except PackageNotFoundError:
        return "checkout"


def with_data(work):
    """Work that is not counted, on tensors as they are: groups of ranks, and a model before it has memory."""
    from torch.utils._python_dispatch import _disable_current_modes

    def done(*args, **kwargs):
        with _disable_current_modes():
            return work(*args, **kwargs)

    return done


def trainer_of(config, family: str, device: str):
    import dataclasses
    import importlib

    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torchtitan.distributed import ParallelDims
    from torchtitan.protocols import train_spec
    from torchtitan.train import Trainer

    if device == "meta":
        importlib.import_module(config.experimental.custom_import)
        own = train_spec.get_train_spec(family)
        model, parallel = with_data(own.model_cls), with_data(own.parallelize_fn)
        train_spec._extra_train_specs[family] = dataclasses.replace(own, model_cls=model, parallelize_fn=parallel)
        ParallelDims.build_mesh = with_data(ParallelDims.build_mesh)
        # shapes of all ranks together, which nobody holds
        shapes = "_propagate_tensor_meta_non_cached"
        setattr(ShardingPropagator, shapes, with_data(getattr(ShardingPropagator, shapes)))
    return Trainer(config)


def watch_resizes(counter) -> None:
    """FSDP lets go of gathered parameters by the size of their storage, which no operator tells."""
    own = torch.UntypedStorage.resize_

    def resize(storage, size):
        own(storage, size)
        if storage._cdata in counter.sizes:
            counter.resized(storage)

    torch.UntypedStorage.resize_ = resize


def on_shares(work):
    """Work on a rank's own shares where they come as one whole; its result is shared as its first input is."""

    def done(x, *rest, **named):
        if not hasattr(x, "to_local"):
            return work(x, *rest, **named)
        local = [one.to_local() if hasattr(one, "to_local") else one for one in (x, *rest)]
        return type(x).from_local(work(*local, **named), x.device_mesh, x.placements, run_check=False)

    return done


def one_norm(x, shape, weight=None, eps=None):
    """A GPU has one kernel for it, where a CPU goes through fp32 step by step."""
    del shape, eps
    return MetaNorm.apply(x, weight)


def without_gpu(family: str) -> None:
    """It knows no CPU, and draws first values, which tensors without data have none of: both are stood in for."""
    import importlib
    import types

    import torch._utils

    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.current_device = lambda: 0
    torch.cpu.get_device_name = lambda *_: "CPU"
    torch.cpu.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 40)
    torch.cpu.memory_stats = lambda *_: {}
    torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda *_: None
    for name in ("trunc_normal_", "normal_"):
        setattr(torch.nn.init, name, lambda x, *_, **__: x)
    kernels = torch.nn.functional
    kernels.rms_norm = on_shares(one_norm)
    kernels.scaled_dot_product_attention = on_shares(kernels.scaled_dot_product_attention)  # DTensor knows a GPU's
    if importlib.util.find_spec("triton") is None:  # of experts alone
        permuting = types.ModuleType("torchtitan.models.moe.kernels")
        permuting.generate_permute_indices = None
        sys.modules[permuting.__name__] = permuting
    sharding = importlib.import_module(f"torchtitan.models.{family}.infra.parallelize")
    sharding._op_sac_save_list.add(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)


RANKS["torchtitan"] = TrainerRank
