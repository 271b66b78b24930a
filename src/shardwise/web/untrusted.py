"""What comes in a request: text to values, and names that must not lead to a file of this machine.

A name in a file that a user gives on the command line may be another file; in a request it may only be in the catalog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from shardwise import api
from shardwise.errors import Fault, FileError, InputError, UnknownNameError
from shardwise.inputs.calibrations import calibration_names
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.files import parse_mapping
from shardwise.inputs.load import load_runtime, named_cluster, named_model, runtime_names
from shardwise.inputs.mixed import Mixed
from shardwise.inputs.model import Model

if TYPE_CHECKING:
    from shardwise.plan.plan import Plan

T = TypeVar("T")

NAME_LENGTH = 200
_TITLE = "request.json"


def read_body(body: bytes) -> dict[str, Any]:
    """The keys and values of a request: no NaN, no key twice, nothing nested without end."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError("the request", f"is not UTF-8 text (byte {error.start}); send it as UTF-8") from None
    try:
        return parse_mapping(text, _TITLE)
    except FileError as error:
        message = error.faults[0].message.removeprefix(f"{_TITLE}: ")
        raise InputError(f"the request {message}") from None


def model_of(value: object) -> Model:
    """A model by catalog name, or from what a file would hold."""
    if isinstance(value, str):
        return named_model(_short(value, "model"))
    if not isinstance(value, dict):
        raise InputError(Fault("model", "must be a name of the catalog, or a model as a table of keys and values"))
    if str(value.get("schema", "")).startswith("shardwise/plan/"):
        return plan_of(value).model
    return _with_plain_texts(api.model_from(value, "model"), "model")


def cluster_of(value: object) -> Cluster:
    """A cluster from text such as `64xh100`, or from what a file would hold."""
    if isinstance(value, str):
        return named_cluster(_short(value, "cluster"))
    if not isinstance(value, dict):
        raise InputError(Fault("cluster", "must be a text such as 64xh100, or a cluster as a table of keys and values"))
    return _checked_names(api.cluster_from(value, "cluster"))


def plan_of(value: object, at: str = "plan") -> Plan:
    """A plan from what its file would hold."""
    if not isinstance(value, dict):
        raise InputError(Fault(at, "is missing; it must be what a plan file holds, as a table of keys and values"))
    plan = api.plan_from(value, at)
    _with_plain_texts(plan.model, "inputs.model")
    _checked_names(plan.cluster)
    runtime_of(plan.strategy.runtime)
    return plan


def runtime_of(name: str) -> str:
    """A runtime of the catalog, other values laid over it or not."""
    if name.partition("+")[0] not in runtime_names():
        raise UnknownNameError("runtime", _short(name, "runtime"), runtime_names())
    return load_runtime(_short(name, "runtime")).name


def _short(text: str, what: str) -> str:
    if len(text) > NAME_LENGTH:
        raise InputError(Fault(what, f"has {len(text):,} characters; a name has at most {NAME_LENGTH}"))
    return text


def _checked_names(cluster: Cluster) -> Cluster:
    """A cluster whose names are only names."""
    if isinstance(cluster, Mixed):
        for kind in cluster.kinds:
            _checked_names(kind)
        _with_plain_texts(cluster.join, "cluster.join")
        return _with_plain_texts(cluster, "cluster")
    own, names = cluster.gpu.calibration, calibration_names()
    if isinstance(own, str) and own and own not in names:
        raise UnknownNameError("calibration", _short(own, "cluster.gpu.calibration"), names)
    _with_plain_texts(own, "cluster.gpu.calibration")
    _with_plain_texts(cluster.gpu, "cluster.gpu")
    for index, level in enumerate(cluster.levels):
        _with_plain_texts(level, f"cluster.levels.{index}")
    return _with_plain_texts(cluster, "cluster")


def _with_plain_texts(value: T, at: str) -> T:
    """Refuse names that are long or hold line breaks and other invisible characters: they are written into files."""
    name = getattr(value, "name", "")
    if not name.isprintable() or len(name) > NAME_LENGTH:
        message = f"must be at most {NAME_LENGTH} visible characters without line breaks; choose a plain name"
        raise InputError(Fault(f"{at}.name", message))
    return value
