"""Starts the folders of every target, unedited, on one H200: `write FOLDER` here, then `FOLDER/run_all.sh` there.

    MEGATRON_PATHS=... TORCHTITAN_PATHS=... DEEPSPEED_PATHS=... OUT=logs STEPS=8 FOLDER/run_all.sh

`X_PATHS` goes before PYTHONPATH for the target X, `X_ENV` holds more of its environment (NAME=value words), ONLY a
pattern of folders. Every folder has LIMIT seconds. At the end a line for each says whether it started, its steps,
parameters and first loss; what a target cannot express is listed with its sentence.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

TARGETS = {
    "megatron": ("megatron", "mbs2 gbs8 seq4096 runtime=megatron"),
    "megatron-local": ("megatron", "mbs1 gbs4 seq2048 runtime=megatron-local"),
    "torchtitan": ("torchtitan@0.2", "mbs2 gbs8 seq4096 zero0 runtime=torchtitan"),
    "deepspeed": ("deepspeed", "mbs2 gbs8 seq4096 runtime=deepspeed"),
    "huggingface": ("huggingface", "mbs2 gbs8 seq4096 zero0 runtime=huggingface"),
    "huggingface-fsdp": ("huggingface", "mbs2 gbs8 seq4096 zero3 recompute=full runtime=huggingface"),
    "pipelining-pp1": ("torch-pipelining", "pp1 mbs2 gbs8 seq4096 runtime=huggingface"),
    "pipelining-pp2": ("torch-pipelining", "pp2 mbs1 gbs4 seq128 runtime=megatron"),
}
"""Folder -> target and strategy; two stages on one GPU run on its CPU, so they are short, and of few words."""

RUN = r"""#!/bin/bash
# Written by benchmarks/h200_starts.py; see there.
cd "$(dirname "${BASH_SOURCE[0]}")"
export STEPS=${STEPS:-8} OUT=$(realpath -m "${OUT:-logs}") HF_HUB_OFFLINE=1
mkdir -p "$OUT"
if ! command -v torchrun > /dev/null; then
    mkdir -p shims; printf '#!/bin/bash\nexec python3 -m torch.distributed.run "$@"\n' > shims/torchrun
    chmod +x shims/torchrun; export PATH=$PWD/shims:$PATH
fi
port=6300
for folder in */; do
    name=${folder%/}
    [[ $name == shims || ( -n ${ONLY:-} && ! $name =~ $ONLY ) ]] && continue
    case $name in
        megatron*) paths=${MEGATRON_PATHS:-} more=${MEGATRON_ENV:-};;
        torchtitan*) paths=${TORCHTITAN_PATHS:-} more=${TORCHTITAN_ENV:-};;
        deepspeed*) paths=${DEEPSPEED_PATHS:-} more=${DEEPSPEED_ENV:-};;
        *) paths= more=;;
    esac
    script=$(ls "$name"/*.sh | head -n 1); port=$((port + 1))
    env PYTHONPATH="$paths${paths:+:}${PYTHONPATH:-}" MASTER_PORT=$port $more \
        timeout "${LIMIT:-240}" "$script" > "$OUT/$name.log" 2>&1
    echo $? > "$OUT/$name.rc"
    python3 summary.py summary . "$OUT" "$name"
done
python3 summary.py summary . "$OUT" | tee "$OUT/summary.txt"
"""

STEP = re.compile(
    r"shardwise step=(?P<a>\d+) .*?loss=(?P<b>[\d.a-z]+)|iteration +(?P<c>\d+)/.*lm loss: (?P<d>[\dE.+-]+)"
    r"|step: +(?P<e>\d+) +.*?loss: +(?P<f>[\d.]+)"
)
PARAMETERS = re.compile(
    r"shardwise parameters=(\d+)|model parallel rank \(0, 0\): (\d+)|size: .*?([\d,]+) total parameters"
)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def models():
    import shardwise

    experts = shardwise.load_model("qwen3-30b-a3b")
    return {
        "dense": replace(shardwise.load_model("llama-3-8b"), name="llama-3-8b-6", layers=6),
        "gqa": shardwise.load_model("qwen3-1.7b"),
        "moe": replace(experts, name="qwen3-moe-4", layers=4),
    }


def write(folder: Path) -> None:
    import shardwise
    from shardwise.frameworks.export import export
    from shardwise.frameworks.folder import write_export
    from shardwise.inputs.parameters import count

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run_all.sh").write_text(RUN)
    (folder / "run_all.sh").chmod(0o755)
    shutil.copy(__file__, folder / "summary.py")
    for kind, full in models().items():
        for name, (target, words) in TARGETS.items():
            model = replace(full, layers=2, vocab=4096) if "pp2" in name else full
            strategy = shardwise.Strategy.parse(words)
            place = folder / f"{name}-{kind}"
            shutil.rmtree(place, ignore_errors=True)
            try:
                plan = shardwise.plan_of(shardwise.estimate(model, f"{strategy.world}xh200", strategy))
                write_export(export(plan, target), place)
            except shardwise.ShardwiseError as error:
                place.with_suffix(".refused").write_text(str(error))
                continue
            place.with_suffix(".refused").unlink(missing_ok=True)
            told = f"{count(model).total} {math.log(model.vocab):.3f}\n"
            place.with_suffix(".planned").write_text(told)


def summary(folder: Path, out: Path, only: str = "") -> None:
    for planned in sorted(folder.glob(f"{only or '*'}.planned")):
        name = planned.stem
        wanted, uniform = planned.read_text().split()
        log = out / f"{name}.log"
        text = COLOURS.sub("", log.read_text(errors="replace")) if log.is_file() else ""
        steps = [[part for part in found.groups() if part] for found in STEP.finditer(text)]
        sizes = [next(filter(None, found)).replace(",", "") for found in PARAMETERS.findall(text)]
        code = (out / f"{name}.rc").read_text().strip() if (out / f"{name}.rc").is_file() else "not run"
        size = sizes[0] if sizes else "?"
        print(
            f"{name:24} {'started' if steps else 'FAILED '} steps={len(steps)} rc={code} parameters={size}"
            f"{'' if size == wanted else f' (planned {wanted})'} loss={steps[0][1] if steps else '?'}"
            f" ln(vocabulary)={uniform}"
        )
    if not only:
        for refused in sorted(folder.glob("*.refused")):
            print(f"{refused.stem:24} refused: {' '.join(refused.read_text().split())}")


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    {"write": write, "summary": summary}[verb](Path(rest[0]), *([Path(rest[1]), *rest[2:]] if rest[1:] else []))
