"""Cases of `bad_inputs.py` in files that are no tables: logs, schedules, pickles, YAML, traces, archives, runs."""

from __future__ import annotations

from collections.abc import Iterator

from bad_inputs_cases import LONG, Case

_MS = "elapsed time per iteration (ms): "
LOGS = ("", "no times here", f"{_MS}1.2.3", f"{_MS}0\n" * 5, f"{_MS}{LONG}", f"{_MS}nan", f"{_MS}-5", "tps: 0",
"tps: ,",
        f"tps: {LONG}", f"{_MS}1e9", f"{_MS}²", "\n" * 100_000, b"\xff\xfe" * 1000,
        f"{_MS}0.0000001\n" * 5)  # fmt: skip
SCHEDULES = ("", "x", "0F", "F0", "0F0", "0F0,0B0,0F0", "0Q0", "-1F0", "0F-1", "²F0", "0F²", f"{LONG}F0", "999999999F0",
             "0F999999999", "0F0,0B0\n1F0", "0F0\n0B0", "0B0,0F0", ",,,", "0F0;0B0", "0F0,0I0", b"\x00\x01",
             "[1]")  # fmt: skip
PICKLES = (b"", b".", b"N.", b"(lp0\n.", b"cos\nsystem\n(S'x'\ntR.", b"\x80\x05}\x94.", b"}" * 1000 + b".",
b"(" * 1000 + b".",
           b"\x8a\xff" + b"\xff" * 255 + b".", b"]a.", b"}u.", b"\x80\x04N}s.", bytes(range(256)))  # fmt: skip
YAML = (
    "a: &a [1]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\n"
    + "".join(f"{chr(99 + n)}: &{chr(99 + n)} [{', '.join(['*' + chr(98 + n)] * 9)}]\n" for n in range(8)),
    "parallel_config: !!python/object/apply:os.system ['true']", "parallel_config: [", "parallel_config:\n\t- 1",
    "? [a]\n: 1\nparallel_config: {}", "parallel_config: *nowhere", "parallel_config: .nan", "---\na: 1\n---\nb: 2",
    "<<: 5\nparallel_config: {}", "parallel_config: 2026-99-99", "%YAML 9.9\n---\nparallel_config: {}", "\x00",
)  # fmt: skip
TRACES = (
    "[", "[]", "{}", '{"traceEvents": 5}', '{"traceEvents": []}', '[{"ph": "X", "dur": 1}', "[1, 2, 3]", "[[[]]]",
    "[" * 10**6,
    '[{"name": "' + "x" * 1000 + '", "ph": "X", "cat": "kernel", "dur": 1e999}]', '[{"dur": NaN, "ph": "X"}]',
    '[{"args": 5, "ph": "M", "name": "process_name", "pid": 1}]', '[{"args": {"correlation": 1e999}, "cat": "kernel"}]',
)  # fmt: skip
PROFILES = ("plan-operators", "llama-3.2-1b", "-c", "8xh100", "--profiles", "archive")
RUN = ("--plan", "h100.json", "--name", "ours", "--dry-run")
ROWS = {
    "id": "x",
    "source_key": "y",
    "model": "llama-3-8b",
    "parallel": {"tp": 1},
    "measured": {"iteration_seconds": 1.0},
}


def _packed(data: bytes) -> bytes:
    import gzip

    return gzip.compress(data, mtime=0)  # the same bytes every time


def _tarred(size: int) -> bytes:
    import io
    import tarfile

    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        info = tarfile.TarInfo("gpt_1_3B_mbs1_tp1_algo0.csv")
        info.size = size
        archive.addfile(info, io.BytesIO(bytes(size)))
    return _packed(held.getvalue())


def contents() -> Iterator[Case]:
    """Hostile contents of files that are no tables: logs, schedules, pickles, YAML, traces, archives, measured runs."""
    floods = {"zeros": _packed(bytes(2**27)), "spaces": _packed(b"[" + b" " * 2**26),
    "no gzip": b"\x1f\x8b" + bytes(99),
              "events": _packed(b"[" + b"{}," * 10**6)}  # fmt: skip
    archives = {"tar of zeros": _tarred(2**27), "small tar": _tarred(100), "no zip": b"PK\x03\x04" + bytes(99)}
    rows = [None, 5, [], {}, {**ROWS, "parallel": []}, {**ROWS, "model": 5}, {**ROWS,
    "measured": {"iteration_seconds": "x"}},
            {**ROWS, "parallel": {"tp": "x"}}, {**ROWS, "gpus": -1}]  # fmt: skip
    for words, name, texts in (
        (("calibrate", "--log", "train.log", *RUN), "train.log", LOGS),
        (("simulate", "s.csv", "--costs", "1,1,1"), "s.csv", SCHEDULES),
        (("calibrate", "--snapshot", "s.pickle", *RUN), "s.pickle", PICKLES),
        (("check", "--from", "mf.yaml", "-c", "8xascend-910b"), "mf.yaml", YAML),
        (("calibrate", "--trace", "t.json", *RUN), "t.json", TRACES),
        (("calibrate", "--trace", "t.json.gz", *RUN), "t.json.gz", tuple(floods.values())),
        (("calibrate", "--log", "t.log.gz", *RUN), "t.log.gz", tuple(floods.values())),
        (PROFILES, "archive", tuple(archives.values())),
        (("validate", "--data", "rows.json"), "rows.json", [[row] for row in rows]),
    ):
        for number, text in enumerate(texts):
            held = {name: text} | ({"h100.json": "h100.json"} if "h100.json" in words else {})
            yield Case(name=f"{words[0]} {name} {number}: {str(text)[:24]!r}", group="content", words=words, files=held)
