"""`shardwise serve`: the page to plan with."""

from __future__ import annotations

import os

import click

from shardwise.cli.options import Number
from shardwise.cli.output import Output, output_options
from shardwise.errors import MissingExtraError
from shardwise.inputs.write import write_now
from shardwise.kernels import library


@click.command("serve")
@click.option("--port", type=Number("option.port"), default=8765, metavar="N", help="0: any free one. [8765]")
@click.option("--host", default="127.0.0.1", metavar="NAME", help="Who may reach it. [127.0.0.1: this machine only]")
@click.option(
    "--token",
    default="",
    envvar="SHARDWISE_TOKEN",
    metavar="TEXT",
    help="What a visitor must know; also SHARDWISE_TOKEN. [none on this machine only, else a new one]",
)
@click.option("--open/--no-open", "open_page", default=None, help="Open the page in a browser. [on a desktop]")
@click.option("--searches", type=Number("option.searches"), metavar="N", help="Searches at a time. [the cores]")
@output_options
def command(output: Output, *, port: int, host: str, token: str, open_page: bool | None, searches: int | None) -> None:
    """Serve the page to plan with: choose, search, look inside, compare, export.

    \b
    shardwise serve
    shardwise serve --port 9000 --no-open
    shardwise serve --host 0.0.0.0        (others may come who know the token in the printed address)
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    try:
        from shardwise.web.app import App
        from shardwise.web.server import make_token, open_socket, run, url_of
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"starlette", "uvicorn", "anyio", "h11"}:
            raise
        raise MissingExtraError("the page", "web") from None

    token = make_token(host, token)
    listener = open_socket(host, port)
    port = listener.getsockname()[1]
    app = App(host=host, port=port, token=token, searches=searches or os.cpu_count() or 1)
    url = url_of(host, port, token)

    def ready() -> None:
        output.answer({"url": url})
        write_now()  # who waits for the address waits for the file, not for the server's end
        output.say(url)
        output.note("Ctrl-C stops it")
        library()  # asked for now, so that what all searches lack is said at once
        output.note_lack()
        if open_page or (open_page is None and not token and _has_desktop()):  # a token would show in the process list
            click.launch(url)

    run(listener, app, ready)


def _has_desktop() -> bool:
    return os.name == "nt" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
