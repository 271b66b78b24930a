"""The Plan view as a person uses it: ask, watch, stop, choose, edit, drop a file."""

from __future__ import annotations

import json
import re

import pytest
from browsing import QUESTION, STRATEGY

from shardwise.report.page import asset_names, asset_text

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
    "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "hidden_act": "silu", "max_position_embeddings": 8192,
}  # fmt: skip
HAND = ".cockpit .hand"
DROP = """([name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name, {type: "application/json"}));
  const drop = kind => dispatchEvent(new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true}));
  drop("dragover");
  drop("drop");
}"""


def test_a_question_typed_in_is_planned(look):
    page = look.go()
    assert page.is_visible(".welcome")
    for name in ("model", "gpus", "global_batch", "seq"):
        page.fill(f"#field-{name}", str(QUESTION[name]))
    page.click("summary:has-text('Limits')")
    page.fill("#field-only", QUESTION["only"])
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer h2:has-text('llama-3-8b')")
    assert page.locator("table.best tbody tr").count() > 2
    assert page.locator(".scatter circle.best").count() == 1
    assert page.locator(".scatter .frontier").count() == 1
    assert page.locator(".scatter .limit-line").count() == 1
    assert "ran=1" in page.url


def test_an_example_of_the_empty_page_is_one_click(look):
    page = look.go()
    page.click(".example >> nth=0")
    page.wait_for_selector(".answer h2:has-text('llama-3-8b')")
    assert page.input_value("#field-gpus") == "16"


def test_a_search_is_stopped_early_and_keeps_its_best(look):
    page = look.go("plan", model="llama-3-70b", gpus=64, global_batch=1024, seq=8192, gap="0.0001", time_limit=100)
    page.click("#plan-button")
    page.wait_for_selector(".best-line")
    assert page.locator(".meter[role=progressbar]").count() == 1
    page.click("button.stop")
    page.wait_for_selector(".answer")
    assert "best so far" in page.inner_text(".answer .gap")
    assert page.locator(".scatter circle").count() > 0


def test_a_point_of_the_scatter_is_chosen_by_mouse_and_by_keyboard(look):
    page = look.planned()
    best = page.inner_text("tr.chosen .strategy")
    page.locator(".cockpit .tile").first.wait_for()
    page.locator(".scatter").scroll_into_view_if_needed()
    dot = page.locator(".scatter circle.fits").last
    box = dot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "tokens/s/GPU" in page.inner_text(".tip")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(".cockpit .back")
    after = page.locator(".scatter circle.chosen").bounding_box()
    assert abs(after["y"] + after["height"] / 2 - box["y"] - box["height"] / 2) < 2, "the chart stays under the hand"
    assert "s=" in page.url
    page.focus(".scatter")
    was = page.inner_text(HAND)
    for keys in (("End", "Enter"), ("Home", "ArrowRight", "Enter")):
        for key in keys:
            page.keyboard.press(key)
        page.wait_for_function("was => document.querySelector('.cockpit .hand').innerText !== was", arg=was)
        was = page.inner_text(HAND)
    page.click("table.best tbody tr >> nth=0")
    page.wait_for_function("() => document.querySelector('.cockpit .back') === null")
    assert page.inner_text("tr.chosen .strategy") == best


def test_results_stay_while_the_question_is_edited(look):
    page = look.planned()
    before = page.inner_text(".answer .chips")
    page.fill("#field-seq", "2048")
    assert "still answers llama-3-8b" in page.inner_text(".stale")
    assert page.inner_text(".answer .chips") == before
    page.click("#plan-button")
    page.wait_for_function("was => document.querySelector('.answer .chips')?.innerText !== was", arg=before)
    assert "seq2048" in page.inner_text(".answer .chips")


def test_nothing_fits_says_what_would(look):
    page = look.go("plan", model="llama-3-70b", gpus=8, global_batch=8, seq=8192)
    page.click("#plan-button")
    page.wait_for_selector("h2:has-text('Nothing fits')")
    assert re.search(r"lacks [\d.]+ GiB", page.inner_text(".card.empty"))
    page.wait_for_selector("h3:has-text('Ways out')")
    assert page.locator(".card.empty tbody tr").count() >= 1


def test_wrong_values_are_told_beside_their_fields(look):
    page = look.go()
    page.fill("#field-model", "llama-9")
    page.click("#plan-button")
    page.wait_for_selector(".field.wrong, .alert")
    said = page.inner_text("#view-plan")
    assert "llama-9" in said
    assert "Traceback" not in said


def test_what_cannot_be_at_all_is_told_with_its_reason(look):
    page = look.go("plan", **{**QUESTION, "gpu": "v100", "only": ""})
    page.click("#plan-button")
    page.wait_for_selector(".card.empty:has-text('has no bf16 hardware; use fp32 or fp16')")
    page.click(".more summary")
    page.fill("#field-only", "fp16")
    page.click("#plan-button")
    page.wait_for_selector(".card.empty:has-text('Nothing fits'), .answer")


def test_wrong_conditions_are_told_once_and_beside_their_field(look):
    page = look.go("plan", **{**QUESTION, "only": "tp==9 foo"})
    page.click("#plan-button")
    page.wait_for_selector("[data-field=only].wrong")
    said = page.inner_text("#view-plan")
    assert "--only" not in said
    assert said.count("'foo'") == 1
    page.fill("#field-gpus", "-3")
    page.click("#plan-button")
    assert page.evaluate("document.activeElement.id") == "field-gpus"


def test_a_field_without_a_number_says_so_and_the_one_before_counts(look):
    page = look.go("plan", **QUESTION, s=STRATEGY)
    page.wait_for_selector(".cockpit .tile.iteration")
    for name, wrong, value in (("gpus", "", 8), ("global_batch", "2.5", 16), ("seq", "", 4096)):
        page.fill(f"#field-{name}", wrong)
        assert f"until then {value} counts" in page.inner_text(f"[data-field={name}] .fault")
        page.click("#plan-button")
        assert page.evaluate("document.activeElement.id") == f"field-{name}"
        page.fill(f"#field-{name}", str(value))
        assert page.inner_text(f"[data-field={name}] .fault") == ""
    page.fill("#budget-tokens", "many")
    page.keyboard.press("Tab")
    assert "Give a number" in page.inner_text(".budget .fault >> nth=0")
    assert "null" not in page.inner_text("main") + page.url
    page = look.go("plan", **{**QUESTION, "gpus": "-1", "seq": "NaN"})
    assert page.input_value("#field-gpus") == "64"


def test_a_bad_file_is_refused_with_a_sentence(look):
    page = look.go()
    page.evaluate(DROP, ["notes.json", "{ this is no JSON"])
    page.wait_for_selector(".file-state .alert")
    assert page.inner_text(".file-state .alert").startswith("notes.json: ")
    page.evaluate(DROP, ["big.json", " " * (2**20 + 1)])
    page.wait_for_selector(".file-state .alert:has-text('at most 1 MiB')")


def test_a_config_of_hugging_face_is_planned(look):
    page = look.go("plan", **{**QUESTION, "model": "llama-3-8b"})
    page.evaluate(DROP, ["config.json", json.dumps(LLAMA)])
    page.wait_for_selector(".file-chip")
    assert "16 layers" in page.inner_text(".file-chip")
    page.click("#plan-button")
    page.wait_for_selector(".answer")
    page.click("nav a >> nth=1")
    page.wait_for_selector("canvas.timeline")
    assert "1.236B" in page.inner_text(".card-facts")
    assert "custom=" in page.url


def test_a_plan_is_dropped_and_looked_into(look, server):
    page = look.go()
    strategy = "tp2 pp2 dp2 mbs1 gbs16 seq4096"
    question = {"model": "llama-3-8b", "cluster": "8xh100", "global_batch": 16, "seq": 4096, "runtime": "megatron"}
    plan = server.post("/api/view", {"question": question, "strategy": strategy}).data["plan"]
    page.evaluate(DROP, ["plan.json", json.dumps(plan)])
    page.wait_for_selector("canvas.timeline")
    assert "pp2" in page.inner_text("#view-inside .chips")
    assert "model=llama-3-8b" in page.url
    plan["inputs"]["strategy"]["tp"] = 7
    page.evaluate(DROP, ["broken.json", json.dumps(plan)])
    page.click("nav a >> nth=0")
    page.wait_for_selector(".file-state .alert")
    assert "broken.json: " in page.inner_text(".file-state .alert")


def test_script_in_a_name_is_text(look):
    evil = "<img src=x onerror='window.broken=1'><script>window.broken=1</script>"
    page = look.go("plan", **QUESTION)
    page.evaluate(DROP, ["config.json", json.dumps({**LLAMA, "_name_or_path": evil, "model_type": "llama"})])
    page.wait_for_selector(".file-chip, .file-state .alert")
    page.fill("#field-model", evil)
    page.click("#plan-button")
    page.wait_for_selector(".field.wrong, .alert")
    page.goto(f"{look.url}/#inside?model={evil}&s={evil}")
    page.reload()
    page.wait_for_selector("#view-inside .alert, #view-inside .empty")
    assert page.evaluate("window.broken") is None


def test_the_page_is_painted_at_once(look, record_property):
    page = look.go()
    times = []
    for _ in range(3):
        page.reload()
        page.wait_for_selector("#plan-button")
        page.wait_for_function("() => performance.getEntriesByType('paint').length > 1")
        paints = page.evaluate("performance.getEntriesByType('paint').map(one => one.startTime)")
        times.append(max(paints))
    size = sum(len(asset_text(name).encode()) for name in asset_names())
    told = f"first paint {min(times):.0f} to {max(times):.0f} ms, all files of the page {size:,} bytes"
    record_property("measured", told)
    assert len(times) == 3


@pytest.mark.parametrize(
    "address",
    [
        "#plan?model=llama-3-8b&gpus=many&seq=-1&gap=x&lang=xx&theme=neon&to=nowhere",
        '#compare?model=x&pin={"s":1}&pin=[]&pin={"s":"tp2","q":{"model":7,"custom":{"name":"n"}}}&pin={',
        '#inside?custom={"name":"n","model":{"layers":"all"}}&s=tp2&ran=1',
        "#plan?custom=null&custom=[1]&model=&s=",
        "#nowhere?%%%",
    ],
)
def test_an_address_with_nonsense_in_it_leaves_the_page_whole(look, address):
    page = look.page
    page.goto(look.url + "/" + address)
    page.wait_for_selector("nav a.here")
    page.wait_for_function("() => document.querySelectorAll('#models option').length > 0")
    page.click("nav a >> nth=0")
    assert page.is_visible("#plan-button")
    page.click("nav a >> nth=2")
    assert page.is_visible("#view-compare")
