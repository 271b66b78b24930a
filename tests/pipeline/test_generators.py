"""Each generator against figures that its source's own program reached (re-timed by one neutral simulator)."""

import pytest

from shardwise.errors import InputError
from shardwise.pipeline.action import placed
from shardwise.pipeline.costs import costs, limit_of
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.faults import validate
from shardwise.pipeline.generate import SHAPES, generate, split_costs

# schedule, pp, micro batches, F, I, W, hop, makespan, peak in 1F1B's; rows of the study's table of rivals: PyTorch
# 2.13.0 (1f1b, interleaved, zb-v, dualpipe-v) and sail-sg/zero-bubble-pipeline-parallelism 39f2c186 (the others)
ROWS = [
    ("1f1b", 8, 16, 20, 22, 18, 1, 1420, 1.0),
    ("interleaved", 8, 16, 10, 11, 9, 1, 1200, 1.4375),
    ("zb-v", 8, 16, 10, 11, 9, 1, 1070, 1.0),
    ("zb-v", 4, 4, 10, 11, 9, 1, 318, 1.0),
    ("zb-v", 8, 16, 10, 10, 10, 0, 1030, 1.0),
    ("dualpipe-v", 8, 16, 10, 11, 9, 1, 1083, 1.0625),
    ("v-half", 8, 16, 10, 11, 9, 1, 1204, 0.625),
    ("v-half", 16, 32, 10, 11, 9, 1, 2489, 0.5625),
    ("v-min", 8, 16, 10, 11, 9, 1, 1434, 0.5),
    ("v-min", 16, 64, 10, 10, 10, 0, 4430, 0.375),
    ("zb-1p", 8, 16, 20, 22, 18, 1, 1156, 1.0),
    ("zb-2p", 8, 16, 20, 22, 18, 1, 1107, 2.0),
]


@pytest.mark.parametrize(("name", "pp", "m", "f", "i", "w", "hop", "makespan", "peak"), ROWS)
def test_generator_reaches_its_sources_figures(name, pp, m, f, i, w, hop, makespan, peak):
    vpp = SHAPES[name].vpp or 2
    given = costs(pp=pp, vpp=vpp, f=f, i=i, w=w, hop=hop)
    schedule = generate(name, pp=pp, microbatches=m, costs=given)
    validate(schedule, rank_of=placed(pp, vpp, SHAPES[name].placement))
    timeline = simulate(schedule, given)
    assert timeline.makespan == makespan
    assert max(timeline.peak) / limit_of(given, schedule.rank_of, 1.0)[0] == pytest.approx(peak)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("pp", "m"), [(1, 2), (2, 4), (3, 6), (4, 12), (5, 10)])
def test_every_schedule_is_sound(name, pp, m):
    schedule = generate(name, pp=pp, microbatches=m)
    validate(schedule)
    assert schedule.name == name


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (8, 16)])
@pytest.mark.parametrize(("f", "i", "w"), [(10, 10, 10), (10, 11, 9), (10, 12, 8)])
def test_handcrafted_zero_bubble_closed_forms(pp, m, f, i, w):
    """Qi et al. (2023), table 2: H1 idles (p-1)(F+I-W), H2 per period (p-1)(F+I-2W); memory p and 2p-1."""
    given = costs(pp=pp, f=f, i=i, w=w)
    h1, h2 = (simulate(generate(name, pp=pp, microbatches=m), given) for name in ("zb-h1", "zb-h2"))
    assert h1.makespan - m * (f + i + w) == (pp - 1) * (f + i - w)
    assert h2.period - m * (f + i + w) == (pp - 1) * (f + i - 2 * w)
    assert (max(h1.peak), max(h2.peak)) == (pp, 2 * pp - 1)


@pytest.mark.parametrize(("f", "m"), [([3, 1, 2], 3), ([3, 1, 3, 2], 5), ([1, 3, 1, 1, 1, 1, 3, 3], 12)])
def test_automatic_order_of_unequal_stages_waits_for_the_rank_before(f, m):
    """A rank warmed up with more forwards than the one before it had made."""
    made = generate("zb-2p", pp=len(f), microbatches=m, costs=costs(pp=len(f), f=f, i=1, w=1))
    validate(made)


def test_interleaved_closed_form():
    """Narayanan et al. (2021): the bubble is (p-1)/(v m) of the work when m is a multiple of p."""
    for pp, vpp, m in ((4, 2, 8), (4, 3, 12), (8, 2, 16)):
        timeline = simulate(
            generate("interleaved", pp=pp, vpp=vpp, microbatches=m), costs(pp=pp, vpp=vpp, f=3, i=4, w=2)
        )
        assert timeline.makespan == m * vpp * 9 + (pp - 1) * 9


@pytest.mark.parametrize(("m", "group"), [(4, 4), (9, 5), (12, 8), (12, 6), (11, 7), (12, 12)])
def test_interleaved_runs_with_any_group_that_megatron_takes(m, group):
    validate(generate("interleaved", pp=4, vpp=3, microbatches=m, group=group))


def test_sequence_split_saves_memory_and_bubble():
    given = costs(pp=8, f=20, i=22, w=18, hop=0.5)
    timeline = simulate(generate("seq-1f1b", pp=8, microbatches=16, splits=4), split_costs(given, 4))
    assert timeline.bubble == pytest.approx(0.1459, abs=1e-4)
    assert max(timeline.peak) / 8 == pytest.approx(0.34375)


def test_low_memory_interleave_reaches_sapps_figure():
    """Seed 001, vpp 3 low memory, 16 micro batches, select and comm recompute on all of 96 layers: it ends at 1487.

    Times as the study reconstructed them: head 0.0588, body 3.1346, tail 3.5158; backward 2 x forward, x 1.165.
    """
    f = [2 * 3.1346] * 48
    f[0] += 0.0588
    f[-1] += 3.5158
    b = [2 * 2 * 3.1346 * 1.165] * 48
    b[0] += 2 * 0.0588
    b[-1] += 2 * 3.5158
    timeline = simulate(generate("low-memory", pp=16, vpp=3, microbatches=16), costs(pp=16, vpp=3, f=f, i=b, w=0))
    assert timeline.makespan == pytest.approx(1486.80, abs=0.01)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("dualpipe-v", {"microbatches": 7}, "at least 2 x pp = 8 micro batches"),
        ("low-memory", {"microbatches": 6}, "not a multiple of pp 4"),
        ("interleaved", {"microbatches": 8, "group": 2}, "group 2 is below pp 4"),
        ("interleaved", {"microbatches": 6}, "fewer than pp 4"),
        ("zb-v", {"microbatches": 8, "vpp": 3}, "zb-v has 2 chunks a rank"),
        ("zbv", {"microbatches": 8}, "did you mean zb-v"),
    ],
)
def test_refusals_say_what_to_change(name, options, words):
    with pytest.raises(InputError, match=words):
        generate(name, pp=4, **options)
