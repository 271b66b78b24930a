"""The one reader of training logs: every framework's lines, warm-up by what is seen, and whose run it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise
from shardwise.errors import FileError, InputError
from shardwise.measure.logs.match import differences, refuse_other_run
from shardwise.measure.logs.reader import LogReader, read_log
from shardwise.measure.logs.record import StepRecord
from shardwise.measure.logs.steady import steady, steady_of, warm_up

MEGATRON = """
using world size: 8, data-parallel size: 4, context-parallel size: 1, hierarchical context-parallel sizes: None,
 > number of parameters on (tensor, gtp_weight_remat, pipeline) model parallel rank (0, 0, 1): 12345
 [2026-08-01 10:00:00.123456] iteration        1/      20 | consumed samples:           32 | elapsed time per \
iteration (ms): 15000.1 | learning rate: 1.0E-04 | global batch size:    32 | lm loss: 1.080000E+01 | loss scale: 1.0 |
[Rank 0] (after 1 iterations) memory (MB) | allocated: 20.00 | max allocated: 84319.50 | reserved: 90.00 | max \
reserved: 90834.00
[Rank 4] (after 1 iterations) memory (MB) | allocated: 20.00 | max allocated: 84320.50 | reserved: 90.00 | max \
reserved: 90830.00
(min, max) time across ranks (ms):
    forward-backward ...............................: (2000.10, 2001.20)
    forward-compute ................................: (700.10, 701.20)
    optimizer ......................................: (20.10, 21.20)
 [2026-08-01 10:00:02.123456] iteration        2/      20 | consumed samples:           64 | elapsed time per \
iteration (ms): 2300.1 | global batch size:    32 | lm loss: 1.070000E+01 |
max time across ranks (ms):
    forward-backward ...............................: 2001.20
"""
TORCHTITAN = """
[rank0]:[titan] 2026-08-01 10:00:00 - root - INFO - \x1b[34mModel llama3 1B \x1b[31msize: 1,235,814,400 total parameters
[rank0]:[titan] 2026-08-01 10:00:00 - root - INFO - Trainer is initialized with local batch size 4, global batch size \
16, gradient accumulation steps 4, sequence length 4096, total steps 9 (warmup 2)
[rank0]:[titan] 2026 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: 12.20000  \x1b[38;2;180;60;0mgrad_norm:  4.1  \
\x1b[38;2;54;234;195mmemory: 53.25GiB(38.05%)  \x1b[34mtps: 2,048  \x1b[36mtflops: 20.1  \x1b[35mmfu: 2.03%\x1b[39m
[rank0]:[titan] 2026 - root - INFO - \x1b[31mstep:  2  \x1b[32mloss: 11.90000  \x1b[38;2;180;60;0mgrad_norm:  4.1  \
\x1b[38;2;54;234;195mmemory: 54.25GiB(38.05%)  \x1b[34mtps: 65,536  \x1b[36mtflops: 20.1  \x1b[35mmfu: 2.03%\x1b[39m
"""
DEEPSPEED = """
[2026-08-01 10:00:00,1] [INFO] [logging.py:107:log_dist] [Rank 0] step=3, skipped=0, lr=[0.0001], mom=[(0.9, 0.95)]
[2026-08-01 10:00:00,1] [INFO] [timer.py:264:stop] epoch=0/micro_step=3/global_step=3, RunningAvgSamplesPerSec=12.1, \
CurrSamplesPerSec=13.5, MemAllocated=20.1GB, MaxMemAllocated=100.25GB
[Rank 0] time (ms) | fwd_microstep: 100.1 | bwd_microstep: 200.2 | bwd_inner_microstep: 190.0 | step_microstep: 40.0
[Rank 0] time (ms) | fwd: 200.10 | bwd: 400.20 | bwd_inner: 390.00 | bwd_allreduce: 10.00 | step: 40.00
steps: 4 loss: 10.8000 iter time (s): 1.234 samples/sec: 51.900
"""
TRAINER = (
    "  0%|          | 0/20 [00:00<?, ?it/s]\r  5%|5         | 1/20 [00:04<01:20,  4.25s/it]\r"
    "{'loss': '10.8', 'grad_norm': '3.1', 'learning_rate': '1e-4', 'epoch': '0.01'}\n"
    " 10%|#         | 2/20 [00:05<00:40,  1.25it/s]\n"
)
OWN = """
shardwise parameters=1235814400 world=2 device=cuda dtype=bf16 runtime=huggingface
{'loss': 10.8, 'epoch': 0.01}
shardwise step=1 seconds=9.5 loss=10.8123 forward=0.31 backward=0.82 optimizer=0.02 allocated=88415227392 reserved=9e10
shardwise step=2 seconds=1.25 loss=nan forward=0.31 data=0.1
"""


def read(text, **scale):
    reader = LogReader(**{"tokens_per_gpu": 65536.0, "samples": 27.0, **scale})
    reader.feed(text.encode())
    reader.close()
    return reader.log()


def test_megatron():
    log = read(MEGATRON)
    first, second = log.steps
    assert (log.framework, first.step, first.seconds, first.loss) == ("megatron", 1, 15.0001, 10.8)
    assert (first.allocated, first.reserved) == (84320.5 * 2**20, 90834.0 * 2**20)  # of the fullest rank
    assert dict(first.parts) == {"passes": 2.0012, "forward": 0.7012, "optimizer": 0.0212}
    assert (second.step, second.seconds, dict(second.parts)) == (2, 2.3001, {"passes": 2.0012})
    assert log.facts == {"world": 8.0, "parameters pp1": 12345.0, "steps": 20.0, "global_batch": 32.0}


def test_torchtitan():
    log = read(TORCHTITAN)
    assert [(step.step, step.seconds, step.loss) for step in log.steps] == [(1, 32.0, 12.2), (2, 1.0, 11.9)]
    assert log.steps[1].reserved == 54.25 * 2**30
    assert log.facts == {"parameters": 1235814400.0, "global_batch": 16.0, "seq": 4096.0, "steps": 9.0}


def test_deepspeed():
    first, second = read(DEEPSPEED).steps
    assert (first.step, first.seconds, first.allocated) == (3, 2.0, 100.25 * 2**30)
    assert dict(first.parts) == pytest.approx(
        {"forward": 0.2001, "backward": 0.4002, "optimizer": 0.04, "gradient reduction": 0.01}
    )
    assert (second.step, second.seconds, second.loss) == (4, 1.234, 10.8)
    alone = read("".join(f"[Rank 0] time (ms) | fwd: 200.0 | bwd: {400 + i} | step: 50.0\n" for i in range(3)))
    assert [round(step.seconds, 4) for step in alone.steps] == [0.65, 0.651, 0.652]


def test_trainer():
    log = read(TRAINER)
    assert [(step.step, step.seconds, step.loss) for step in log.steps] == [(1, 4.25, 10.8), (2, 0.8, None)]


def test_our_own_lines_go_before_others():
    log = read(TRAINER + OWN)
    assert log.framework == "shardwise"
    assert [(step.step, step.seconds) for step in log.steps] == [(1, 9.5), (2, 1.25)]
    assert log.steps[0].allocated == 88415227392
    assert dict(log.steps[1].parts) == {"forward": 0.31, "data": 0.1}
    assert (log.facts["parameters"], log.facts["world"]) == (1235814400.0, 2.0)
    assert (log.runtime, log.not_finite) == ("huggingface", (2,))


def test_losses_that_are_no_numbers_and_lines_that_cannot_be_read_are_told():
    texts = {
        "megatron": " iteration 7/ 9 | elapsed time per iteration (ms): {} | lm loss: NAN |",
        "torchtitan": "step:  7  loss: nan  memory: 53.25GiB(38.05%)  tps: {}  tflops: 20.1",
        "shardwise": "shardwise step=7 seconds={} loss=-inf forward=0.3",
    }
    for framework, text in texts.items():
        log = read(f"{text.format('2')}\n{text.format('?')}\n{text[:30]}")
        assert (log.framework, log.not_finite, log.unreadable, len(log.steps)) == (framework, (7,), 1, 1)
        assert log.steps[0].loss is None
        assert [note[:30] for note in log.notes] == ["the loss is nan or infinite in", "1 line of steps without a time"]
    assert not read("see https: //x.org\n").unreadable


def test_a_trainer_without_its_bar_says_a_mean():
    log = read("{'loss': 2.1, 'epoch': 1.0}\n{'train_runtime': 250.0, 'train_steps_per_second': 0.4, 'epoch': 1.0}\n")
    found = steady_of(log, "log")
    assert (log.framework, found.seconds, found.steps) == ("trainer", 2.5, 100)
    assert "warm-up included" in found.note
    with pytest.raises(InputError, match="disable_tqdm=False of Trainer"):
        steady(log.steps, "log")


@given(st.lists(st.integers(1, 40), min_size=1), st.sampled_from([MEGATRON, TORCHTITAN, DEEPSPEED, TRAINER, OWN]))
def test_a_log_in_pieces_reads_as_in_one(cuts, text):
    whole, reader, at = text.encode(), LogReader(tokens_per_gpu=65536.0, samples=27.0), 0
    while at < len(whole):
        for size in cuts:
            reader.feed(whole[at : at + 7 * size])
            at += 7 * size
    reader.close()
    assert reader.log() == read(text)


def test_lines_of_several_ranks_are_one_step_and_a_restart_begins_anew():
    lines = [f"step: {step}  loss: 3.1  memory: 1{rank}GiB  tps: 1,000" for step in (1, 2, 3, 4) for rank in (0, 1)]
    lines[3], lines[4] = lines[4], lines[3]  # one rank is late
    log = read("\n".join(lines))
    assert [step.step for step in log.steps] == [1, 2, 3, 4]
    assert log.steps[3].reserved == 11 * 2**30
    again = read("\n".join([*lines, *lines]))
    assert (again.starts, len(again.steps)) == (2, 4)
    zero = read("\n".join(f"shardwise step={step} seconds=1.5" for step in range(5)))
    assert (zero.starts, len(zero.steps)) == (1, 5)


def test_a_log_without_steps(tmp_path):
    (tmp_path / "log").write_text("nothing\n")
    with pytest.raises(FileError, match="has no iteration times"):
        read_log(tmp_path / "log", tokens_per_gpu=1, samples=1)


def records(*times):
    return [StepRecord(index + 1, time) for index, time in enumerate(times)]


def test_warm_up_is_what_stands_out():
    assert warm_up([9.0, 3.0, 2.01, 2.0, 1.99]) == 2
    assert warm_up([2.0, 2.01, 1.99, 2.0]) == 0
    assert warm_up([30.0, 2.0, 2.4, 1.7, 2.2, 1.9, 2.3]) == 1
    found = steady(records(9.0, 3.0, 2.01, 2.0, 1.99), "log")
    assert (found.seconds, found.steps, found.warm_up, found.note) == (2.0, 3, 2, "")
    noisy = steady(records(9.0, 2.0, 2.4, 1.7, 2.2), "log")
    assert "differ by 33% after the warm-up" in noisy.note


@pytest.mark.parametrize("times", [(15.0,), (15.0, 2.3), (15.0, 2.3, 2.3), (15.0, 9.0, 2.3, 2.3)])
def test_fewer_than_three_steady_steps_are_no_measurement(times):
    with pytest.raises(InputError, match=r"a measurement needs 3: run more \(STEPS=12\)"):
        steady(records(*times), "train.log")


def test_the_log_that_one_iteration_writes_is_not_stored(tmp_path, monkeypatch):
    """It was once stored as x6.56, with a spread of 0%: its only iteration is warm-up."""
    monkeypatch.setenv("SHARDWISE_HOME", str(tmp_path / "home"))
    plan = shardwise.plan_of(shardwise.estimate("llama-3.2-1b", "1xh200", "mbs8 gbs32 seq4096"))
    (tmp_path / "log").write_text(
        " iteration 20/ 20 | elapsed time per iteration (ms): 15000.1 | global batch size: 32 |"
    )
    with pytest.raises(InputError, match="holds 1 timed iteration, 1 after the warm-up"):
        shardwise.calibrate("ours", log=tmp_path / "log", plan=plan)
    assert not (tmp_path / "home").exists()


def test_a_log_of_another_run_says_all_that_differs():
    told = shardwise.estimate("llama-3.2-1b", "8xh200", "tp2 gbs16 seq4096")
    facts = {"global_batch": 32.0, "seq": 4096.0, "world": 4.0, "parameters": 8e9, "parameters pp0": 5e9, "steps": 9.0}
    found = [fault.path for fault in differences(facts, told)]
    assert found == ["global_batch", "world", "parameters", "parameters pp0"]
    with pytest.raises(InputError, match="log is the log of another run"):
        refuse_other_run(facts, told, "log")
    ours = {"global_batch": 16.0, "seq": 4096.0, "world": 8.0, "parameters": 1_235_814_400.0}
    assert not list(differences(ours, told))
