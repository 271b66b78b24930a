"""Train what mindformers.yaml describes for STEPS steps, on made-up tokens unless it names others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

PLACE = Path(__file__).with_name("mindformers.yaml")


def graph(settings: dict[str, Any], steps: int) -> None:
    """Steps are what the samples last for, over one epoch."""
    from mindformers import MindFormerConfig, Trainer, build_context  # type: ignore[import-not-found]

    config = MindFormerConfig(str(PLACE))
    passes = settings["runner_config"]["gradient_accumulation_steps"] * settings["parallel_config"]["micro_batch_num"]
    samples = passes * settings["runner_config"]["batch_size"] * settings["parallel_config"]["data_parallel"]
    for part in (config.train_dataset, config.train_dataset_task.dataset_config):
        part.data_loader.sizes[0] = steps * samples
    build_context(config)
    Trainer(config).train()


def pynative(settings: dict[str, Any], steps: int) -> None:
    """Its trainer takes a table."""
    from mindformers.pynative.trainer import Trainer  # type: ignore[import-not-found]

    settings["training"]["steps"] = steps
    settings["train_dataset"]["dataloader"]["sizes"][0] = steps * settings["training"]["global_batch_size"]
    Trainer(config=settings, run_mode="train").train()


if __name__ == "__main__":
    read = yaml.safe_load(PLACE.read_text(encoding="utf-8"))
    (pynative if "training" in read else graph)(read, int(os.environ.get("STEPS", "20")))
