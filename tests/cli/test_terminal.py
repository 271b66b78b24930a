"""What a terminal shows: wide, narrow, none at all, without colour; and what every verb takes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.cli.main import run
from shardwise.cli.program import VERBS, group
from shardwise.cli.progress import Progress
from shardwise.cli.tables import fitted, hung, styled
from shardwise.pipeline.costs import costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.generate import generate
from shardwise.report.text import draw_ends

CELL = st.text(alphabet="abc 0123456789█·%", min_size=1, max_size=30).map(str.strip).filter(bool)


def in_terminal(columns, *words, **environment):
    """What a verb prints to a terminal of so many columns, and its exit code."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "NO_COLOR", "FORCE_COLOR"}}
    process = subprocess.Popen(
        [sys.executable, "-m", "shardwise", *words],
        stdout=slave,
        stderr=slave,
        stdin=slave,
        env={**kept, "TERM": "xterm-256color", **environment},
    )
    os.close(slave)
    read = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the program has ended
            break
        if not part:
            break
        read += part
    os.close(master)
    return read.decode().replace("\r\n", "\n"), process.wait()


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*[mK]", "", text)


@given(
    columns=st.integers(1, 6).flatmap(
        lambda n: st.lists(st.lists(CELL, min_size=n, max_size=n), min_size=1, max_size=4)
    ),
    width=st.integers(20, 120),
)
def test_no_cell_is_lost_whatever_the_width(columns, width):
    heads, *rows = columns
    pieces = fitted(heads, rows, width)
    shown = " ".join(cell for piece in pieces for row in (piece.heads, *piece.rows) for cell in row)
    for cell in (*heads, *(cell for row in rows for cell in row)):
        assert re.sub("^[█]*[·]* +(?=[0-9])", "", cell) in shown
    for piece in pieces:
        if piece.hanging:
            assert all(len(line) <= width for line in hung(piece)[1::2])


def test_bars_over_the_limit_are_red():
    assert str(styled("████ 104%").spans[0].style) == "red"
    assert str(styled("███·  75%").spans[0].style) == "cyan"
    assert not styled("104%").spans


@pytest.mark.parametrize("columns", [60, 80, 160])
def test_an_estimate_fits_its_terminal(columns):
    words = ("estimate", "llama-3-8b", "-c", "16xh100", "--pp", "4", "--global-batch", "64")
    text, code = in_terminal(columns, *words)
    lines = plain(text).splitlines()
    assert code == 0
    assert all(len(line) <= columns for line in lines[1:]), text  # the first is the strategy, to be copied whole
    assert "…" not in text
    assert ("█" in text) == (columns > 100)


def test_colour_is_for_terminals_that_want_it():
    words = ("estimate", "llama-3-8b", "-c", "16xh100", "--pp", "4", "--global-batch", "64")
    coloured, _ = in_terminal(160, *words)
    without, _ = in_terminal(160, *words, NO_COLOR="1")
    dumb, _ = in_terminal(160, *words, TERM="dumb")
    assert "\x1b[36m" in coloured
    assert "\x1b[36m" not in without
    assert "\x1b" not in dumb
    assert plain(without) == plain(coloured)
    error, code = in_terminal(80, "models", "nothing-of-the-sort", NO_COLOR="1")
    assert code == 2
    assert error.startswith("error: ")


def test_no_marks_where_a_program_reads(capfd):
    assert run(["estimate", "llama-3-8b", "-c", "16xh100", "--pp", "4", "--global-batch", "64"]) == 0
    out, err = capfd.readouterr()
    assert "\x1b" not in out + err


def test_a_stream_without_bars_is_no_error():
    words = [sys.executable, "-m", "shardwise", "estimate", "llama-3-8b", "-c", "8xh100", "--global-batch", "8"]
    done = subprocess.run(words, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=False)
    assert done.returncode in {0, 1}
    assert b"unexpected" not in done.stderr


@given(width=st.integers(30, 200), evaluated=st.integers(0, 10**9), best=st.none() | st.floats(1e-3, 1e6))
def test_progress_is_one_line(width, evaluated, best):
    state = Progress(title="strategies", evaluated=evaluated, pruned=10**6, best=best, bound=1e-3)
    line = state.line(width)
    assert len(line) < width
    if best is not None and width >= 60:
        assert "gap" in line


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_answers_in_json_and_can_be_quiet(verb):
    context = click.Context(group)
    found = group.get_command(context, verb)
    names = {name for param in found.params for name in param.opts}
    assert {"--json", "--quiet", "-q"} <= names or verb == "serve"


@pytest.mark.parametrize(("name", "vpp", "count"), [("1f1b", 1, 4), ("1f1b", 1, 200), ("interleaved", 2, 64)])
@pytest.mark.parametrize("width", [60, 120])
def test_a_pipeline_is_drawn_in_its_width(name, vpp, count, width):
    timeline = simulate(generate(name, pp=4, vpp=vpp, microbatches=count), costs(pp=4, vpp=vpp, f=2, i=2, w=2))
    lines = draw_ends(timeline, width).splitlines()
    assert len(lines) == 4
    assert all(len(line) <= width for line in lines)
    assert "F0" in lines[0]
    assert (" ~ " in lines[0]) == (count > 4 or width == 60)
