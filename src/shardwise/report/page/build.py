"""One HTML file with everything in it: modules linked into one script, data as escaped JSON, nothing from outside.

Modules import by `import { a, b } from "./x.js";` and export declarations by name; each becomes a function scope
here, so that the file needs neither a bundler nor a server, and the policy can name the one script by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from shardwise.errors import UnknownNameError
from shardwise.inputs.serialise import Plain, to_plain
from shardwise.pipeline.timeline import Timeline
from shardwise.report.view.schedule import schedule_view
from shardwise.version import __version__

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)
_ENTRY = "main"


def page_of(
    views: Sequence[Plain],
    *,
    plans: Sequence[Plain | None] = (),
    exports: Sequence[Sequence[Plain]] = (),
    steps: Plain | None = None,
    title: str = "",
) -> str:
    """The page's text. `plans` and `exports` stand beside the views: the plan file, and the files of every target;
    `steps`: what the knobs of the one plan lead to.
    """
    if not views:
        message = "a page needs something to show"
        raise ValueError(message)
    shown = title or " / ".join(str(view["title"]) for view in views[:3])
    data = {
        "version": __version__,
        "views": to_plain(list(views)),
        "plans": to_plain(list(plans)),
        "exports": to_plain([list(one) for one in exports]),
        "steps": to_plain(steps),
    }
    script, style = linked(), asset_text("style.css")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(shown)} - Shardwise</title>\n"
        f'<link rel="icon" href="{_icon()}">\n'
        f"<style>{style}</style>\n</head>\n<body>\n"
        "<noscript>This page needs JavaScript to draw what it holds.</noscript>\n"
        f'<script type="application/json" id="data">{_escaped(data)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def timeline_page(
    timeline: Timeline,
    title: str = "",
    facts: Mapping[str, str] | None = None,
    *,
    seconds: bool = False,
    bound: float | None = None,
    others: Sequence[Timeline] = (),
) -> str:
    """The page of one timeline; `facts` are lines of its end, `others` stand beside it to compare with."""
    first = schedule_view(timeline, facts, title=title, seconds=seconds, bound=bound)
    return page_of([first, *(schedule_view(other, seconds=seconds) for other in others)])


def linked() -> str:
    """All modules as one script, those that others need first."""
    done = dict[str, str]()
    _link(_ENTRY, done, ())
    return '"use strict";\n' + "\n".join(done.values())


def _link(name: str, done: dict[str, str], above: tuple[str, ...]) -> None:
    if name in done:
        return
    if name in above:
        raise ValueError(f"modules import each other in a circle: {' > '.join((*above, name))}")
    text = asset_text(f"{name}.js")
    for needed in _IMPORT.findall(text):
        _link(needed[1], done, (*above, name))
    body = _IMPORT.sub(lambda found: f"const {{{found[1].replace(' as ', ': ')}}} = ${found[2]};\n", text)
    names = ", ".join(found[2] for found in _EXPORT.finditer(text))
    body = _EXPORT.sub(r"\1", body)
    done[name] = f"const ${name} = (() => {{\n{body}return {{{names}}};\n}})();"


def _escaped(data: Plain) -> str:
    """JSON that cannot end the block it stands in, whatever a name holds."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _icon() -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(asset_text('icon.svg').encode()).decode()}"


_KINDS = {"js", "css", "svg", "html"}


@cache
def asset_names() -> tuple[str, ...]:
    """All of them, sorted."""
    folder = files("shardwise.report.page") / "assets"
    names = (item.name for item in folder.iterdir() if item.is_file())
    return tuple(sorted(name for name in names if name.rpartition(".")[2] in _KINDS))


@cache
def asset_text(name: str) -> str:
    """The text of one asset."""
    if name not in asset_names():
        raise UnknownNameError("asset", name, asset_names())
    return (files("shardwise.report.page") / "assets" / name).read_text(encoding="utf-8")
