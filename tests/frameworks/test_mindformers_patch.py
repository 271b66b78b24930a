"""`balance patch`: a user's own MindFormers YAML gets an answer; only the lines that must change do.

`meant` is a second reading of the patched file, by PyYAML and MindFormers' rules, that shares nothing with ours.
"""

from __future__ import annotations

import json
import random
import re

import pytest
import yaml
from mindformers_yamls import DEEPSEEK, FILES, LLAMA, QWEN, answer, drawn_answer, drawn_file

import shardwise
from shardwise.api import patch_mindformers
from shardwise.cli.main import run
from shardwise.errors import InputError
from shardwise.frameworks.export import export
from shardwise.frameworks.mindformers.patch import patch
from shardwise.frameworks.mindformers.wanted import LISTS, answer_settings, settings_from

KEYS = "offset|pp_interleave_num|recompute|select_recompute|select_comm_recompute|micro_batch_num|jit_level"
KEYS += "|pipeline_config|pipeline_interleave|pipeline_scheduler|recompute_config|context|jit_config"
OURS = re.compile(
    rf"^\s*(- |parallel_config: .*, )?['\"]?({KEYS})['\"]?:|ENABLE_LESS_MEM_VPP|^[\s\[\]\d,-]*(#.*)?$|feed_forward"
)


def patched(text, data, **more):
    return patch(text, answer_settings(data, "answer.json"), "job.yaml", **more)


def meant(text, pp, layers):
    """What MindFormers makes of a file: chunks, layers of each and the layers of each that are recomputed so."""
    data = yaml.safe_load(text)
    model, config = data["model"]["model_config"], data.get("recompute_config") or {}
    several = (data["parallel"].get("pipeline_config") or {}).get("pipeline_interleave", False)
    vpp = model.get("pp_interleave_num", 1) if several else 1
    total = layers + model.get("mtp_depth", 0)
    offset = model.get("offset") or [[0] * pp] * vpp
    rows = [offset] * vpp if not isinstance(offset[0], list) else offset
    made = [total // (pp * vpp) + item for row in rows for item in row]
    made[-1] -= total - layers

    def counts(value):
        if isinstance(value, dict):
            value = next(iter(value.values()))
        if value in (None, True, False):
            return made if value else [0] * len(made)
        flat = [item for row in value for item in (row if isinstance(row, list) else [row])]
        return [min(a, b) for a, b in zip(flat, made, strict=True)]

    return vpp, made, [counts(config.get(key)) for key in LISTS], data["parallel_config"].get("micro_batch_num")


def check(after, data, layers):
    """The law: read back equal, and every line that is not of a key that is patched stands as it was."""
    flat = [[item for row in data["mindformers"][key] for item in row] for key in LISTS]
    assert meant(after, data["pp"], layers) == (data["vpp"], data["layers"], flat, data["microbatches"])
    assert ("ENABLE_LESS_MEM_VPP=1" in after) == (data["schedule"] == "low-memory")
    if data["schedule"] == "low-memory":
        assert yaml.safe_load(after)["context"]["jit_config"]["jit_level"] in {"O0", "O1"}
    assert not patched(after, data).changed


def others(lines, kept):
    """Lines that are left when those that must stay are taken out, which they are in their order."""
    left, stay = [], list(kept)
    for line in lines:
        if stay and line == stay[0]:
            del stay[0]
        else:
            left.append(line)
    assert stay == []
    return left


@pytest.mark.parametrize("name", FILES)
def test_drawn_answers_change_only_their_lines(name):
    whole, layers = FILES[name]
    for seed in range(25):
        chance = random.Random(f"{name} {seed}")  # noqa: S311 - the same answers every time
        data = drawn_answer(chance, layers)
        text = whole
        if name == "qwen" and data["vpp"] > 1:  # its offset has comments among the items
            with pytest.raises(InputError, match="holds comments"):
                patched(text, data)
            text = text.replace("   # first", "").replace("    # last", "")
        made = patched(text, data)
        check(made.after, data, layers)
        stay = [line for line in made.before.splitlines(keepends=True) if not OURS.search(line)]
        assert [line for line in others(made.after.splitlines(keepends=True), stay) if not OURS.search(line)] == []


def test_drawn_files_keep_every_other_byte():
    for seed in range(120):
        chance = random.Random(seed)  # noqa: S311 - the same files every time
        layers = chance.choice([24, 61, 80])
        lines = drawn_file(chance, layers)
        end = chance.choice(["\n", "\r\n", "\n"])
        text = end.join(line for line, _ in lines) + chance.choice(["", end, end * 2])
        text = chance.choice(["", "", "\ufeff"]) + text
        data = drawn_answer(chance, layers)
        made = patched(text, data)
        plain = made.after.removeprefix("\ufeff")
        check(plain, data, layers)
        assert (made.after.startswith("\ufeff"), made.after.endswith(end)) == (
            text.startswith("\ufeff"),
            text.endswith(end),
        )
        assert end == "\r\n" or "\r" not in made.after
        assert end == "\n" or "\n" not in made.after.replace("\r\n", "")
        left = others(plain.split(end), [line for line, key in lines if not key])
        assert [
            one for one in left if not OURS.search(one) and (one, True) not in {(a, bool(b)) for a, b in lines}
        ] == []


def test_the_same_shape_keeps_how_a_list_is_written():
    data = answer(4, 1, [15, 15, 17, 17], microbatches=4)
    made = patched(QWEN.replace("- 1\n      - 1 ", "- 0\n      - 2 "), data)
    assert "      - -1   # first\n      - -1\n      - 1\n      - 1    # last\n" in made.after
    assert made.after.endswith("layer_decay: 0.65")


def test_what_says_it_already_stays_as_it_is():
    zero = answer(4, 1, [20] * 4, microbatches=256)
    text = LLAMA.replace("[10,8,6,4]", "[0,0,0,0]")
    assert not patched(text, zero).changed
    every = answer(4, 1, [20] * 4, microbatches=256, full=[20] * 4, select=[20] * 4, comm=[20] * 4)
    assert not patched(re.sub(r"(recompute: )(False|\[.*\])", r"\1True", LLAMA), every).changed
    assert not patched(LLAMA, answer(4, 1, [20] * 4, select=[10, 8, 6, 4], comm=[10, 8, 6, 4]), keep_batch=True).changed


def test_an_alias_of_the_same_name_follows_and_is_named():
    made = patched(DEEPSEEK, answer(4, 2, [8, 8, 8, 8, 8, 8, 8, 5], microbatches=64))
    assert "micro_batch_num: &micro_batch_num 64\n" in made.after
    assert yaml.safe_load(made.after)["callbacks"][0]["micro_batch_num"] == 64
    assert any("follows by its alias" in note for note in made.notes)


def test_sequences_are_cut_no_more_and_every_pattern_that_is_on_is_counted():
    """As in Qwen 2.5 72B of 1.5 to 1.8, which cuts sequences and names what is recomputed."""
    text = DEEPSEEK.replace("'1f1b'", "seqpipe").replace(
        "  model_parallel: 4\n", "  model_parallel: 4\n  seq_split_num: 8\n"
    )
    made = patched(text, answer(4, 2, [8] * 7 + [5], select=[2] * 8))
    data = yaml.safe_load(made.after)
    assert data["parallel_config"]["seq_split_num"] == 1
    assert data["parallel"]["pipeline_config"]["pipeline_scheduler"] == "1f1b"
    assert data["recompute_config"]["select_recompute"] == {r"feed_forward\.mul": [[2] * 4] * 2, "attention": False}
    assert "seq_split_num 8 becomes 1: answer.json cuts no sequences" in made.notes


def test_a_switch_that_is_there_is_turned():
    low = answer(4, 2, [10] * 8, schedule="low-memory")
    on = patched(LLAMA, low).after
    assert on.count("ENABLE_LESS_MEM_VPP=1") == 1
    assert 'jit_level: "O0"' in on
    off = patched(on, answer(4, 2, [10] * 8)).after
    assert "ENABLE_LESS_MEM_VPP=0" in off
    assert patched(off, low).after == on


def test_of_one_chunk_no_order_is_said():
    """The comment still asked for the switch of an order that one chunk does not have."""
    low, one = answer(4, 2, [10] * 8, schedule="low-memory"), answer(4, 1, [20] * 4)
    on = patched(LLAMA, low).after
    assert "ENABLE_LESS_MEM_VPP" not in patched(on, one).after
    own = on.replace("# low-memory order: start the job with", "# we export")
    assert "# we export ENABLE_LESS_MEM_VPP=0; no" in patched(own, one).after


def test_own_keys_go_before_merged_ones():
    """A merge (<<) was told as a key given twice."""
    base = "base: &base {pipeline_stage: 8, micro_batch_num: 16}\n"
    text = base + LLAMA.replace("parallel_config:\n", "parallel_config:\n  <<: *base\n")
    made = patched(text, answer(4, 1, [19, 21, 20, 20], microbatches=64))
    data = yaml.safe_load(made.after)["parallel_config"]
    assert (data["pipeline_stage"], data["micro_batch_num"]) == (4, 64)
    assert base in made.after


def test_layers_that_predict_further_may_be_counted_or_not():
    lists = {"schedule": "interleaved", "microbatches": 32}
    for layers in ([8, 8, 8, 8, 8, 8, 8, 5], [8, 8, 8, 8, 8, 8, 8, 6]):
        made = patched(DEEPSEEK, answer(4, 2, layers, **lists))
        assert yaml.safe_load(made.after)["model"]["model_config"]["offset"] == [[1, 1, 1, 1], [1, 1, 1, -1]]


MISFITS = [
    (LLAMA, answer(8, 1, [10] * 8), r"parallel_config\.pipeline_stage: is 4, but 8 in answer"),
    (LLAMA, answer(4, 1, [20, 20, 20, 19]), r"num_layers: is 80, but answer\.json has 79 layers"),
    (LLAMA + "swap_config: {swap: true}\n", answer(4, 1, [20] * 4, full=[1] * 4), "swap is true"),
    ("a: 1\n", answer(4, 1, [20] * 4), "no MindFormers YAML for training"),
    ("parallelism: {}\ntraining: {}\n", answer(4, 1, [20] * 4), "PyNative mode"),
    ("distribute_parallel_config: {}\n", answer(4, 1, [20] * 4), "distribute_parallel_config, which is not read"),
    (LLAMA.replace("recompute: False", "recompute: &all False").replace("[10,8,6,4]", "*all")
     + "other: *all\n", answer(4, 1, [20] * 4, full=[1] * 4), r"line 2\d: recompute_config\.select_recompute is \*all"),
    (LLAMA.replace("recompute_config:", "recompute_config: &rc") + "copy: {<<: *rc}\n",
     answer(4, 1, [20] * 4, full=[1] * 4), r"line 4\d: copy\.<< is \*rc, which changes"),
    (re.sub(r"recompute_config:\n(  .*\n)+", "rc: &rc {recompute: False}\nrecompute_config: *rc\n", LLAMA),
     answer(4, 1, [20] * 4, full=[1] * 4), "recompute_config is an alias of another table"),
    (LLAMA.replace("[10,8,6,4]", "[10, # front\n    8]"), answer(4, 1, [20] * 4, full=[1] * 4), "holds comments"),
    (LLAMA.replace("offset: 0", "offset: 0\n    offset: 1"), answer(4, 1, [20] * 4), "twice"),
    (LLAMA.replace("pipeline_stage: 4", "pipeline_stage: 1"), answer(1, 1, [80]), "no pipeline to patch"),
    (LLAMA.replace("pipeline_stage: 4", "pipeline_stage: '4'"), answer(4, 1, [20] * 4),
     r"pipeline_stage: is '4', a text; write the number without quotes: it is 4 in answer\.json"),
    (LLAMA.replace("pipeline_stage: 4", "pipeline_stage: 4.0"), answer(4, 1, [20] * 4),
     r"pipeline_stage: is 4\.0, no whole number, but 4 in answer\.json"),
    (LLAMA.replace("  pipeline_stage: 4\n", ""), answer(4, 1, [20] * 4),
     r"pipeline_stage: is missing, which means 1, but 4 in answer\.json"),
    (LLAMA.replace("mode: 0", "mode: 1"), answer(4, 1, [20] * 4), r"context\.mode: is 1, PyNative"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "data", "word"), MISFITS)
def test_what_cannot_be_patched_is_refused(text, data, word):
    with pytest.raises(InputError, match=word):
        patched(text, data)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"mindformers": None}, "holds no lists for MindFormers"),
        ({"splits": 2}, "in pieces"),
        ({"pp": "four"}, "pp"),
        ({"layers": [20, 20, 20]}, "must be whole numbers, one for each of pp 4 x vpp 1"),
        ({"layers": [19, 21, 20, 20]}, "says other layers than"),
        ({"mindformers": {"offset": [[0] * 4]}}, "must be vpp 1 lists of pp 4"),
        (
            answer(4, 1, [20] * 4, select=[2, 21, 0, 0]),
            r"mindformers\.select_recompute\.0\.1: is 21; write 0 to 20",
        ),
        (answer(4, 1, [20] * 4, full=[0, 0, 0, -7]), r"mindformers\.recompute\.0\.3: is -7; write 0 to 20"),
    ],
)
def test_answers_that_are_none_are_refused(change, word):
    with pytest.raises(InputError, match=word):
        answer_settings(answer(4, 1, [20] * 4) | change, "answer.json")


STRATEGY = "tp2 pp4x2 dp2 zero1 mbs1 gbs32 seq4096 layers=4,4,4,4,3,3,3,3 {order} runtime=mindformers {more}"


@pytest.mark.parametrize(
    ("order", "more"),
    [
        ("low-memory", ""),
        ("interleaved", "recompute=core-attention+comm:[1,2,3,0,1,0,1,0]"),
        ("zb-v", "recompute=full:[1,1,0,0,1,2,0,3]"),
    ],
)
def test_a_plan_is_put_into_a_file(order, more, tmp_path):
    """The file of another cut of the same job; afterwards it reads as the plan's own export does."""
    line = STRATEGY.format(order=order, more=more)
    plan = shardwise.plan_of(shardwise.estimate("qwen3-0.6b", "16xascend-910b", line))
    other = shardwise.plan_of(
        shardwise.estimate(
            "qwen3-0.6b", "16xascend-910b", re.sub(r"x2| layers=\S+| recompute=\S+", "", line.replace(order, "1f1b"))
        )
    )
    texts = [
        {file.name: file.text for file in export(one, "mindformers").files}["mindformers.yaml"] for one in (plan, other)
    ]
    (tmp_path / "job.yaml").write_text(texts[1], encoding="utf-8")
    made = patch_mindformers(tmp_path / "job.yaml", plan)
    assert (tmp_path / "job.yaml").read_text(encoding="utf-8") == made.after
    want, got = (yaml.safe_load(text) for text in (texts[0], made.after))
    for table in ("parallel_config", "recompute_config", "parallel"):
        assert got[table] == want[table]
    assert got["model"]["model_config"] == want["model"]["model_config"]


def test_a_plan_of_other_degrees_is_refused():
    plan = shardwise.plan_of(
        shardwise.estimate("qwen3-0.6b", "16xascend-910b", STRATEGY.format(order="interleaved", more=""))
    )
    with pytest.raises(InputError, match=r"model_parallel: is 8, but 2 in the plan"):
        patch(LLAMA, settings_from(plan), "job.yaml")


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_bytes(LLAMA.replace("\n", "\r\n").encode())
    data = answer(4, 1, [19, 21, 20, 20], full=[1, 0, 0, 0], select=[1, 0, 0, 0], comm=[1, 0, 0, 0])
    (tmp_path / "answer.json").write_text(json.dumps(data), encoding="utf-8")
    return tmp_path / "job.yaml"


def test_the_command_shows_and_writes(job, capfd):
    before = job.read_bytes()
    assert run(["balance", "patch", "job.yaml", "answer.json", "--check"]) == 1
    assert job.read_bytes() == before
    assert run(["balance", "patch", "job.yaml", "answer.json", "--out", "new.yaml", "--json", "a.json"]) == 0
    assert job.read_bytes() == before
    said = capfd.readouterr()
    assert "+    offset: [-1, 1, 0, 0]" in said.out
    assert "the global batch with it" in said.err
    assert json.loads((job.parent / "a.json").read_text())["changed"]
    assert run(["balance", "patch", "job.yaml", "answer.json"]) == 0
    assert job.read_bytes() == (job.parent / "new.yaml").read_bytes() != before
    assert run(["balance", "patch", "job.yaml", "answer.json", "--check"]) == 0
    assert "nothing to change" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["no.yaml", "answer.json"], "no such file"),
        (["job.yaml", "no.json"], "no such file"),
        (["answer.json", "answer.json"], "is no YAML by its name"),
        (["job.yaml", "job.yaml"], "holds no lists for MindFormers"),
        (["latin.yaml", "answer.json"], "is not UTF-8"),
    ],
)
def test_the_command_refuses_with_a_sentence(job, capfd, words, word):
    (job.parent / "latin.yaml").write_bytes(b"a: \xff\n")
    before = job.read_bytes()
    assert run(["balance", "patch", *words]) == 2
    assert word in capfd.readouterr().err
    assert job.read_bytes() == before


def test_the_answer_is_not_replaced(job, capfd):
    before = (job.parent / "answer.json").read_bytes()
    assert run(["balance", "patch", "job.yaml", "answer.json", "--out", "answer.json"]) == 2
    assert "--out: would replace answer.json, which is ANSWER; give another name" in capfd.readouterr().err
    assert (job.parent / "answer.json").read_bytes() == before


@pytest.mark.parametrize(
    ("vpp", "schedule", "runs"),
    [(1, "gpipe", "1f1b"), (1, "interleaved", "1f1b"), (2, "1f1b", "interleaved or low-memory")],
)
def test_orders_that_a_patched_file_would_not_run_are_refused(vpp, schedule, runs):
    """The file said 1f1b, and the answer's seconds and memory were those of another order."""
    data = answer(4, vpp, [20 // vpp] * 4 * vpp, schedule=schedule)
    with pytest.raises(InputError, match=f"schedule: is {schedule}; .* runs {runs}: balance with that order"):
        answer_settings(data, "answer.json")
