"""Requests that are wrong, hostile or too many: a clear no, never a traceback, and the server goes on."""

from __future__ import annotations

import json
import socket

import pytest
from serving import PATIENCE, SMALL

SCRIPT = "<script>alert(1)</script>"
MODEL = {"name": "m", "layers": 4, "hidden": 64, "heads": 4, "kv_heads": 4, "head_size": 16, "ffn": 256, "vocab": 1000}


def asked(**changes):
    return {**SMALL, **changes}


# name, path, body, status, what the sentence says
QUESTIONS = [
    ("text for a number", asked(global_batch="64"), "global_batch", "must be a whole number"),
    ("truth for a number", asked(seq=True), "seq", "must be a whole number"),
    ("a fraction of a batch", asked(global_batch=1.5), "global_batch", "must be a whole number"),
    ("below zero", asked(global_batch=-8), "global_batch", "at least 1"),
    ("beyond reason", asked(global_batch=10**30), "global_batch", "at most"),
    ("a list for a model", asked(model=["llama-3-8b"]), "model", "name of the catalog"),
    ("a number for a cluster", asked(cluster=64), "cluster", "such as 64xh100"),
    ("no cluster", {"model": "llama-3-8b", "global_batch": 8}, "cluster", "must be"),
    ("unknown field", asked(globl_batch=3), "globl_batch", "did you mean global_batch"),
    ("script in a model's name", asked(model=SCRIPT), "model", "there is no model named"),
    ("a file of the machine", asked(model="/etc/passwd"), "model", "there is no model named"),
    ("a file up the tree", asked(model="../../../etc/passwd"), "model", "there is no model named"),
    ("a file for a cluster", asked(cluster="8x/etc/passwd"), "cluster", "there is no GPU named"),
    ("a file for a runtime", asked(runtime="/etc/passwd"), "runtime", "is none of"),
    ("a runtime among the conditions", asked(only="runtime=/etc/passwd"), "only", "in the field runtime"),
    ("a file of lengths among them", asked(only="documents=/etc/passwd"), "only", "no list of lengths"),
    ("conditions without sense", asked(only="tp<=banana zorp=4"), "only", "not a whole number"),
    ("very long conditions", asked(only="tp<=8 " * 1000), "only", "at most 2,000"),
    ("a margin without sense", asked(memory_margin="six"), "memory_margin", ""),
    ("a margin that is a table", asked(memory_margin={}), "memory_margin", "such as"),
    ("all the time in the world", asked(time_limit=1e9), "time_limit", "at most"),
    ("no time at all", asked(time_limit=0), "time_limit", "above 0"),
    ("a gap over 1", asked(gap=7), "gap", "at most 1"),
    ("a long name", asked(model="x" * 100_000), "model", "at most 200"),
    ("no GPUs", asked(cluster="0xh100"), "cluster.gpus", "at least 1"),
    ("a model of our own, half", asked(model={"name": "m", "layers": 4}), "model.hidden", "missing"),
    ("a line break in a name", asked(model={**MODEL, "name": "a\nb"}), "model.name", "without line breaks"),
    ("a calibration", asked(cluster={"gpus": 8, "gpu": {"base": "h100", "calibration": "../x"}}), "cluster", "named"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body", "where", "what"), QUESTIONS, ids=[one[0] for one in QUESTIONS])
def test_bad_questions(server, name, body, where, what):
    found = server.post("/api/plan", body)
    assert found.status == 422, name
    assert found.headers["Content-Type"] == "application/json"
    assert what in found.message, found.message
    assert where in {fault["where"] for fault in found.data["error"]["faults"]}, found.data
    assert "Traceback" not in found.message


RAW = [
    ("not JSON", b"model=llama", 422, "not valid JSON"),
    ("nothing", b"", 422, "not valid JSON"),
    ("a list", b"[1, 2]", 422, "a list at the top"),
    ("not text", b"\xff\xfe\x00", 422, "not UTF-8"),
    ("a NaN", json.dumps(asked(gap=0)).replace(": 0,", ": NaN,").replace(": 0}", ": NaN}").encode(), 422, "NaN"),
    ("Infinity", b'{"model": Infinity}', 422, "Infinity"),
    ("a number too large for a float", b'{"seq": 1e999}', 422, "inf"),
    ("a key twice", b'{"model": "llama-3-8b", "model": "llama-3-70b"}', 422, "twice"),
    ("nested without end", b'{"model": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 422, "nested"),
    ("nested too deeply", b'{"model": ' + b"[" * 200 + b"]" * 200 + b"}", 422, "deeper"),
    ("a number of many digits", b'{"seq": ' + b"9" * 10_000 + b"}", 422, "digits"),
    ("half a character", b'{"model": "\\ud800"}', 422, "half of a character"),
    ("half a character in a key", b'{"\\ud800": 1}', 422, "half of a character"),
    ("a NUL byte", b'{"model": "a\\u0000b"}', 422, "there is no model"),
    ("a huge body", b'{"model": "' + b"x" * (5 * 2**20) + b'"}', 413, "larger than 4"),
]


@pytest.mark.parametrize(("name", "body", "status", "what"), RAW, ids=[one[0] for one in RAW])
def test_bad_bodies(server, name, body, status, what):
    for path in ("/api/plan", "/api/view"):
        found = server.post(path, body)
        assert found.status == status, name
        assert what in found.message or path == "/api/view", found.message


def test_a_huge_body_without_a_length(server):
    """Chunked: the size is counted as it arrives."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as line:
        head = "POST /api/model HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        line.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        try:
            for _ in range(40):
                line.sendall(chunk)
            line.sendall(b"0\r\n\r\n")
        except OSError:
            pass  # the server has said no and closed
        assert b" 413 " in line.recv(4096).partition(b"\r\n")[0]
    assert server.get("/api/catalog").status == 200


@pytest.mark.parametrize(
    "path",
    ["/assets/../../../../etc/passwd", "/assets/%2e%2e/%2e%2e/page.py", "/assets//etc/passwd", "/assets/..\\..\\x",
     "/assets/%00", "/assets/", "/../etc/passwd", "/assets/index.html/..", "/api/../../etc", "/nowhere", "/api/plan/x"],
)  # fmt: skip
def test_path_tricks(server, path):
    found = server.get(path)
    assert found.status in {404, 405}
    assert found.message
    assert b"root:" not in found.body


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "BREW"])
def test_wrong_methods(server, method):
    found = server.ask(method, "/api/plan")
    assert found.status == 405
    assert method in found.message
    assert found.headers["Allow"] == "POST"
    assert server.post("/api/catalog", {}).status == 405
    assert server.get("/api/plan").status == 405


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_wrong_content_types(server, kind):
    """Those that a form of another site could send without asking are refused as well."""
    found = server.ask("POST", "/api/plan", json.dumps(SMALL), {"Content-Type": kind})
    assert found.status == 415
    assert "application/json" in found.message


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "localhost.evil.example", "127.0.0.1.nip.io", "", "::"]
)
def test_other_hosts(server, host):
    """A name of another site that was turned to this machine (DNS rebinding)."""
    for method, path in (("GET", "/"), ("GET", "/api/catalog"), ("POST", "/api/plan")):
        found = server.ask(method, path, None if method == "GET" else SMALL, {"Host": host})
        assert found.status == 421
        assert "this server is not" in found.message


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9999", "127.0.0.1:1", "[::1]:8765"])
def test_our_own_hosts(server, host):
    assert server.get("/", Host=host).status == 200


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost:1"},
     {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}],
)  # fmt: skip
def test_other_origins(server, headers):
    for path in ("/api/plan", "/api/view", "/api/plan/x/stop", "/api/report"):
        found = server.post(path, SMALL, **headers)
        assert found.status == 403
        assert "another site" in found.message


def test_our_own_origin(server):
    host = f"127.0.0.1:{server.port}"
    assert server.post("/api/view", {}, Origin=f"http://{host}", Host=host).status == 422


PLANS = [
    ("no plan", {}, "plan"),
    ("a text", {"plan": "plan.json"}, "plan"),
    ("another schema", {"plan": {"schema": "other"}}, "is not a plan"),
    ("a newer plan", {"plan": {"schema": "shardwise/plan/99"}}, "newer"),
    ("no inputs", {"plan": {"schema": "shardwise/plan/1"}}, "inputs"),
    ("unknown field", {"plan": {}, "extra": 1}, "extra"),
]


@pytest.mark.parametrize(("name", "body", "what"), PLANS, ids=[one[0] for one in PLANS])
def test_bad_plans(server, name, body, what):
    for path in ("/api/view", "/api/why", "/api/export"):
        found = server.post(path, body)
        assert found.status == 422, name
        assert found.data["error"]["message"]
        assert what in found.message or path != "/api/view", found.message


@pytest.fixture(scope="module")
def plan(server):
    found = server.post("/api/view", {"question": SMALL, "strategy": "tp2 pp2 mbs1"})
    assert found.status == 200, found.message
    return found.data["plan"]


def changed(plan, path, value):
    """A plan with one value changed, dotted path."""
    found = json.loads(json.dumps(plan))
    *way, last = path.split(".")
    inner = found
    for part in way:
        inner = inner.setdefault(part, {})
    inner[last] = value
    return found


HOSTILE = [
    ("inputs.strategy.runtime", "/etc/passwd"),
    ("inputs.strategy.runtime", "../../../../etc/passwd"),
    ("inputs.strategy.schedule", "gpipe2"),
    ("inputs.strategy.pp", 10**6),
    ("inputs.strategy.tp", 0),
    ("inputs.strategy.global_batch", 10**14),
    ("inputs.strategy.layers", ["a"]),
    ("inputs.cluster.gpu.calibration", "../../../etc/passwd"),
    ("inputs.cluster.gpu.name", "a\x1b[2Jb"),
    ("inputs.strategy.documents", {"lengths": [512], "counts": []}),
    ("inputs.strategy.documents", {"lengths": [-1], "counts": [1]}),
    ("inputs.strategy.documents", "/etc/passwd"),
    ("inputs.model.layers", 10**9),
    ("inputs.model.name", "x\ny"),
    ("predictions.iteration_seconds", {"a": 1}),
    ("predictions.memory_limit", "all"),
    ("predictions.bound", -1),
]


WAYS = (
    ("/api/view", {}), ("/api/why", {"strategy": "tp1"}), ("/api/export", {"target": "megatron"}),
    ("/api/export", {"target": "mindformers"}), ("/api/export", {"target": "torch-pipelining"}),
    ("/api/export", {"target": "torchtitan"}),
)  # fmt: skip


@pytest.mark.parametrize(("path", "value"), HOSTILE, ids=[f"{path}={value!r}"[:60] for path, value in HOSTILE])
def test_hostile_plans(server, plan, path, value):
    for url, more in WAYS:
        found = server.post(url, {"plan": changed(plan, path, value), **more})
        harmless = url == "/api/export" and path.endswith("global_batch")  # most targets compute nothing with it
        assert found.status == 422 or (harmless and found.status == 200), found.body[:300]
        assert b"root:" not in found.body


JUNK = [
    [], "x", 7, None, {"a": {"b": []}}, [None], ["0F0"], [["0F0"], {}], ["0F0,0B0", "1F0,1B0"],
    ["0F0,0B0,\ud800", "1F99999999999999999999"], {"time": 3, "stages": "x", "memory": [1]},
    {"problem": "", "recompute": [{"choices": {"full": ["x", []]}}]}, {"problem": 7, "recompute": "x"},
    {"problem": "", "recompute": [{"choices": {"full": [1, 2, 3]}}]}, {"of": 3, "parts": [{"bound": "x"}]},
    {"stages": [], "names": 3},
]  # fmt: skip


@pytest.mark.parametrize("part", ["order", "balance", "operators", "predictions", "proof", "provenance", "run"])
def test_junk_in_the_parts_of_a_plan_is_refused(server, plan, part):
    for junk in JUNK:
        for url, more in WAYS if part in {"order", "balance"} else WAYS[:2]:
            found = server.post(url, {"plan": {**plan, part: junk}, **more})
            assert found.status == 422 or (found.status == 200 and (junk is None or part == "run")), (url, junk)


def test_a_file_for_a_strategy(server, plan):
    for text in ("runtime=/etc/passwd", "plan.json", "/etc/passwd", "x" * 5000, 7, None):
        for body in ({"plan": plan, "strategy": text}, {"question": SMALL, "strategy": text}):
            found = server.post("/api/why" if "plan" in body else "/api/view", body)
            assert found.status == 422
            assert "root:" not in found.message


def test_unknown_targets(server, plan):
    for target in ("nemo", "megatron@99", "../x", SCRIPT, 3, None, "x" * 10_000):
        found = server.post("/api/export", {"plan": plan, "target": target})
        assert found.status == 422
        assert len(found.message) < 1000


def test_reports_of_nothing_and_of_too_much(server, plan):
    for plans in ([], "x", [plan] * 17, [{}], None):
        assert server.post("/api/report", {"plans": plans}).status == 422


def test_script_in_a_name_stays_text(server, plan):
    """It may be shown, since the page writes text only; a saved report holds it without a tag."""
    named = changed(plan, "inputs.model.name", f"{SCRIPT}</script><img src=x onerror=alert(1)>")
    assert server.post("/api/view", {"plan": named}).headers["Content-Type"] == "application/json"
    report = server.post("/api/report", {"plans": [named]})
    assert report.status == 200
    assert SCRIPT.encode() not in report.body
    assert b"<img src=x" not in report.body


def test_what_is_no_http(server):
    for junk in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 200_000):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as line:
            try:
                line.sendall(junk + b"\r\n\r\n")
                assert b"Traceback" not in line.recv(4096)
            except ConnectionError:
                pass
    assert server.get("/").status == 200


def test_a_stop_of_what_is_not_there(server):
    for name in ("x", "..", "%2e%2e", "x" * 5000):
        assert server.post(f"/api/plan/{name}/stop", "").status == 404


def test_very_many_unknown_fields(server):
    found = server.post("/api/plan", {**SMALL, **{f"field{index}": 0 for index in range(5000)}})
    assert found.status == 422
    assert len(found.body) < 100_000


def test_numbers_that_lead_nowhere(server, plan):
    found = server.post("/api/view", {"plan": changed(plan, "inputs.cluster.gpu.bandwidth", 1e-300)})
    assert found.status == 422
    assert "check its unit" in found.message


def _per_operator(plan):
    """The plan as one whose operators have splits of their own."""
    stage = {
        "ops": 1, "gpus": 8, "layouts": [[2, 4, 0]], "recompute": [], "seconds": 2.0, "memory": 1e9, "ideal": 1.0,
        "lost": 0.0, "spare": 0.0, "parts": {},
    }  # fmt: skip
    operators = {
        "names": ["a"], "microbatches": 8, "stages": [stage], "seconds": 2.0, "gpu_seconds": 2.0, "bound": 1.0,
        "gap": 1.0, "orders": [], "profile": {"name": "p"},
    }  # fmt: skip
    return {**plan, "operators": operators, "predictions": None}


@pytest.mark.parametrize(
    ("url", "more", "verb"),
    [
        ("view", {}, "the page"), ("why", {"strategy": "tp2"}, "why"), ("export", {"target": "megatron"}, "export"),
        ("report", None, "a report"),
    ],
)  # fmt: skip
def test_a_per_operator_plan_is_not_taken_for_its_nearest_strategy(server, plan, url, more, verb):
    own = _per_operator(plan)
    found = server.post(f"/api/{url}", {"plans": [plan, own]} if more is None else {"plan": own, **more})
    assert found.status == 422
    assert f"is a per-operator plan, which {verb} cannot take" in found.message
    where = "plans.1" if more is None else "plan"
    assert [fault["where"] for fault in found.data["error"]["faults"]] == [where]


def test_a_plan_that_names_a_file_of_lengths_opens_none(server, plan):
    """Nor does a line beside it, or the conditions that it was planned with."""
    documents = {"lengths": [512, 9000], "counts": [3, 1], "source": "/etc/passwd"}
    whole = changed(plan, "inputs.strategy.documents", documents)
    assert server.post("/api/view", {"plan": whole}).status == 200
    beside = server.post("/api/why", {"plan": whole, "strategy": "tp1 documents=/etc/passwd"})
    assert beside.status == 200, beside.body[:300]
    for way in ({"strategy": "tp1 documents=/etc/shadow"}, {"strategy": "documents=/etc/hostname"}):
        found = server.post("/api/why", {"plan": whole, **way})
        assert found.status == 422
        assert "no list of lengths" in found.message
    assert (
        b"root:"
        not in server.post("/api/view", {"plan": changed(whole, "provenance.conditions", "documents=/etc/passwd")}).body
    )
