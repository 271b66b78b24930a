"""The wheel, made from the sdist, in an environment outside the tree: it plans, validates and serves, kernels or not.

Nothing is fetched: the build and the new environments use the packages of the one that runs the tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import venv
from pathlib import Path

import pytest

from shardwise import __version__, kernels

ROOT = Path(__file__).parents[1]
PLAN = ("plan", "llama-3-8b", "--cluster", "8xh100", "--global-batch", "16", "--only", "tp=1 pp=2", "--json", "-")
pytest.importorskip("hatchling", reason="hatchling is not installed: make test does it")
needs_kernels = pytest.mark.skipif(kernels.library() is None, reason="no C kernels are built here")


def python(*words, **changes):
    """Run Python without this tree on its path; a change to None takes a variable away."""
    wanted = os.environ | {"PYTHONPATH": None, "SHARDWISE_NO_KERNELS": None} | changes
    environment = {name: value for name, value in wanted.items() if value is not None}
    return subprocess.run(words, env=environment, cwd="/", capture_output=True, text=True, check=True)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """What the sdist holds: so the wheel is built from no more than that."""
    folder = tmp_path_factory.mktemp("sdist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", folder], cwd=ROOT, check=True
    )
    (packed,) = folder.iterdir()
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"shardwise-{__version__}"


def installed(sources, folder, **changes):
    """The name of the wheel, and the program from it in an environment of its own."""
    words = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, sources)
    python(sys.executable, "-m", "pip", "wheel", *words, **changes)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False)
    own = folder / "env" / "bin" / "python"
    site = Path(python(own, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    # Folders only: the .pth files in them, that of our own editable install among them, are not read.
    (site / "dev.pth").write_text("\n".join(one for one in sys.path if one.endswith("site-packages")))
    python(sys.executable, "-m", "pip", "--python", own, "install", "--quiet", "--no-deps", "--no-index", wheel)
    return wheel.name, own.with_name("shardwise")


@pytest.fixture(scope="module")
def built(sources, tmp_path_factory):
    return installed(sources, tmp_path_factory.mktemp("wheel"))


@needs_kernels
def test_a_wheel_serves_every_python_of_a_platform(built):
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert built[0] == f"shardwise-{__version__}-py3-none-{platform}.whl"


@needs_kernels
def test_the_installed_program_plans_and_validates(built):
    done = python(built[1], *PLAN)
    assert json.loads(done.stdout)["run"]["kernels"] is True
    assert kernels.LACKING not in done.stderr
    home = Path(python(built[1].with_name("python"), "-c", "import shardwise; print(shardwise.__file__)").stdout).parent
    assert home.is_relative_to(built[1].parents[1])
    measured = home / "measure" / "validate" / "data" / "h200_huggingface.json.gz"
    assert json.loads(python(built[1], "validate", "--data", measured, "--json", "-").stdout)["rows"]


def test_the_installed_program_serves_the_page(built):
    words = [built[1], "serve", "--port", "0", "--no-open"]
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    server = subprocess.Popen(words, cwd="/", env=outside, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        with urllib.request.urlopen(server.stdout.readline().strip(), timeout=60) as page:  # noqa: S310 - ours
            assert b"Shardwise" in page.read()
    finally:
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=60)
    assert (kernels.LACKING in said) == (kernels.library() is None)


def test_without_a_compiler_there_is_a_wheel_that_says_what_it_lacks(sources, tmp_path):
    name, program = installed(sources, tmp_path, PATH=str(tmp_path), CC=None)
    assert name == f"shardwise-{__version__}-py3-none-any.whl"
    done = python(program, *PLAN)
    assert json.loads(done.stdout)["run"]["kernels"] is False
    assert done.stderr.count(kernels.LACKING) == 1


def test_the_lock_pins_what_the_project_asks_for():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lock_lines()}
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    assert {one.partition(">")[0].lower() for one in wanted} <= pinned
    assert all("==" in line and "+" not in line and "@" not in line for line in lock_lines())


def lock_lines():
    lines = (ROOT / "requirements-dev.lock").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]
