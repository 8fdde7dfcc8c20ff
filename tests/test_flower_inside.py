"""What the suite uses of Flower beyond its documented interface: in which modules, and whether Flower still has it."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.retry import make_simple_http_retry_invoker

from docs.generate.version_pages import INSIDE, names_inside
from florilegium.apps.origins.code import LAYERS
from florilegium.strategies.exchange import flower_inside
from florilegium.strategies.exchange.flower_inside import (
    ErrorCode,
    bear_internal_errors,
    identify,
    name_message,
    node_pairs,
)
from florilegium.strategies.exchange.flower_objects import pull, push, put_together
from tests.processes import ROOT

FILES = [path for folder in (*LAYERS, "benchmarks", "research", "docs") for path in (ROOT / folder).rglob("*.py")]
NAMES = [(path, name) for path in INSIDE for name in names_inside(ROOT / path)]


def _found(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    try:
        return import_module(name)
    except ImportError:
        return getattr(import_module(module), attribute)


def test_no_other_modules_use_it() -> None:
    """Move what another module needs of it to one of these, or to the documented interface."""
    using = {str(path.relative_to(ROOT)): names_inside(path) for path in FILES}
    assert {path: names for path, names in using.items() if names and path not in INSIDE} == {}
    assert {path for path, names in using.items() if names} == {*INSIDE}
    texts = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in FILES}
    ids = {path for path, text in texts.items() if "._message_id" in text or '"_message_id"' in text}
    assert ids == {"strategies/exchange/flower_inside.py"}


def test_it_is_noticed_where_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import flwr.supercore\nfrom flwr.app import Message, Odd\ndef f():\n    from flwr.common import log\n"
        "from flwr_datasets.partitioner import IidPartitioner\nimport numpy"
    )
    assert names_inside(tmp_path / "a.py") == ["flwr.app.Odd", "flwr.common.log", "flwr.supercore"]


@pytest.mark.parametrize(("path", "name"), NAMES, ids=lambda value: str(value).rpartition(".")[2])
def test_flower_still_has_it(path: str, name: str) -> None:
    try:
        _found(name)
    except (ImportError, AttributeError):
        pytest.fail(f"flwr {version('flwr')} has no {name}; {path} uses it")


KEYS: tuple[Any, Any] = (None, None)
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "flwr.cli.build.build_fab_from_disk": ((None,), {}),
    "flwr.cli.install.install_from_fab": ((b"",), {"skip_prompt": True}),
    "flwr.clientapp.utils.get_load_client_app_fn": (
        (), {"default_app_ref": "", "app_path": None, "multi_app": True}
    ),
    "flwr.common.config.get_fused_config_from_fab": ((b"", None), {}),
    "flwr.common.config.parse_config_args": (([""],), {}),
    "flwr.common.logger.update_console_handler": ((), {"timestamps": True}),
    "flwr.common.ndarrays_to_parameters": (([],), {}),
    "flwr.common.serde.recorddict_from_proto": ((None,), {}),
    "flwr.common.serde.recorddict_to_proto": ((None,), {}),
    "flwr.server.strategy.aggregate.aggregate_krum": (([], 1, 1), {}),
    "flwr.server.strategy.aggregate.aggregate_median": (([],), {}),
    "flwr.server.strategy.aggregate.aggregate_trimmed_avg": (([], 0.1), {}),
    "flwr.serverapp.strategy.bulyan.aggregate_n_closest_weights": ((None, [], 1), {}),
    "flwr.supercore.exit.flwr_exit": ((0, ""), {}),
    "flwr.supercore.exit.register_signal_handlers": ((None, ""), {"grpc_servers": []}),
    "flwr.supercore.grpc_health.run_health_server_grpc_no_tls": (("",), {}),
    "flwr.supercore.inflatable.inflatable_object.get_object_tree": ((None,), {}),
    "flwr.supercore.inflatable.inflatable_object.iterate_object_tree": ((None,), {}),
    "flwr.supercore.inflatable.inflatable_object.no_object_id_recompute": ((), {}),
    "flwr.supercore.primitives.asymmetric.public_key_to_bytes": ((None,), {}),
    "flwr.supercore.inflatable.inflatable_object.get_all_nested_objects": ((None,), {}),
    "flwr.supercore.inflatable.inflatable_object.get_object_body": ((b"", None), {}),
    "flwr.supercore.inflatable.inflatable_object.get_object_head_values_from_object_content": ((b"",), {}),
    "flwr.supercore.inflatable.inflatable_utils.inflate_object_from_contents": (("", {}), {"objects": {}}),
    "flwr.supercore.inflatable.inflatable_utils.pull_objects": (([], None), {"initial_backoff": 0.1}),
    "flwr.supercore.inflatable.inflatable_utils.push_object_contents_from_iterable": (([], None), {}),
    "flwr.supercore.interceptors.http.runtime_version.RuntimeVersionHttpInterceptor": ((), {"component_name": ""}),
    "flwr.supernode.cli.flower_supernode._parse_supernode_lifespan_config": ((), {}),
    "flwr.supernode.node_auth_http_interceptor.NodeAuthHttpInterceptor": (KEYS, {}),
    "flwr.supernode.start_client_internal._verify_fab": ((None, {}), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_functions_take_the_arguments_that_they_are_given(name: str) -> None:
    positional, named = CALLS[name]
    try:
        inspect.signature(_found(name)).bind(*positional, **named)
    except TypeError as error:
        pytest.fail(f"flwr {version('flwr')}, {name}{inspect.signature(_found(name))}: {error}")


def test_all_functions_are_among_them() -> None:
    assert {name for _, name in NAMES if inspect.isfunction(_found(name))} - CALLS.keys() == set()


def test_a_connection_consists_of_eight_functions() -> None:
    """The node's id; then receive, send, run, FAB, pull, push and confirm, in this order."""
    from flwr.supernode import fleet_http_connection
    from flwr.supernode.cli.flower_supernode import SuperNodeLifespanConfig

    annotation = inspect.signature(
        inspect.unwrap(fleet_http_connection.http_request_response), eval_str=True
    ).return_annotation
    (functions,) = get_args(annotation)
    arguments = [[kind.__name__ for kind in get_args(one)[0]] for one in get_args(functions)[1:]]
    assert arguments == [
        [], ["Message", "ObjectTree", "float"], ["int"], ["str", "int"], ["int", "str"],
        ["int", "str", "str", "bytes"], ["int", "str"],
    ]  # fmt: skip
    used = {
        "server_address", "insecure", "root_certificates", "authentication_keys", "max_retries", "max_wait_time",
        "node_config", "health_server_address", "trusted_entities",
    }  # fmt: skip
    assert used - SuperNodeLifespanConfig.__annotations__.keys() == set()


def test_functions_of_the_grid_that_are_replaced_are_those_it_calls() -> None:
    from flwr.supercore.inflatable import inflatable_utils
    from flwr.superlink.grid import http_grid

    ours = {"pull_objects": pull, "push_objects": push, "inflate_object_from_contents": put_together}
    source = inspect.getsource(http_grid.HttpGrid)
    for name, function in ours.items():
        # Another test of this process may have replaced them.
        assert getattr(http_grid, name) in (getattr(inflatable_utils, name), function)
        assert f"{name}(" in source
    assert "inflate_object_from_contents(msg_id, all_object_contents)" in source
    calls = (
        r"pull_objects\(\s+object_ids=.*?,\s+pull_object_fn=",
        r"push_objects\(\s+all_objects,\s+push_object_fn=.*?object_ids_to_push=",
    )
    for call in calls:
        assert re.search(call, source, re.DOTALL)


def test_functions_of_a_connection_are_those_that_are_used() -> None:
    from flwr.supernode import fleet_http_connection

    inspect.signature(fleet_http_connection.http_request_response).bind("", True, None, KEYS, None, None)
    source = inspect.getsource(inspect.unwrap(fleet_http_connection.http_request_response))
    assert "retry_invoker = make_simple_http_retry_invoker()" in source


class _Answers:
    """Fails so many times with an HTTP status, then succeeds."""

    def __init__(self, status: int, times: int) -> None:
        self.status, self.left, self.calls = status, times, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.left:
            self.left -= 1
            response = httpx.Response(self.status, request=httpx.Request("POST", "http://superlink"))
            response.raise_for_status()
        return "done"


@pytest.fixture
def invoker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Flower's, with a clock of its own."""
    now = [0.0]
    monkeypatch.setattr(flower_inside.time, "monotonic", lambda: now[0])
    made = make_simple_http_retry_invoker()
    made.wait_function = lambda seconds: now.__setitem__(0, now[0] + seconds)
    return made


def test_internal_errors_of_the_superlink_are_borne_for_two_minutes(invoker: Any) -> None:
    with pytest.raises(httpx.HTTPStatusError):
        invoker.invoke(_Answers(500, 1))  # as Flower does
    bear_internal_errors(invoker)
    for _ in range(30):  # each request has its own two minutes
        assert invoker.invoke(_Answers(500, 4)) == "done"
    never = _Answers(500, 10_000)
    with pytest.raises(httpx.HTTPStatusError):
        invoker.invoke(never)
    assert 5 < never.calls < 30
    assert invoker.invoke(_Answers(503, 1)) == "done"
    with pytest.raises(httpx.HTTPStatusError):
        invoker.invoke(_Answers(404, 1))


def test_a_message_keeps_the_id_that_it_is_given() -> None:
    identify()
    message = Message(RecordDict(), dst_node_id=5, message_type="train")
    assert (message.metadata.run_id, message.metadata.src_node_id, message.metadata.message_id) == (1, 1, "")
    name_message(message, "seven")
    assert message.metadata.message_id == "seven"
    assert Message(RecordDict(), reply_to=message).metadata.reply_to_message_id == "seven"


@pytest.mark.parametrize(
    ("text", "pairs"),
    [('a="b c" d=1', {"a": "b c", "d": 1}), ("a=true b=0.5", {"a": True, "b": 0.5}), ("a = 1", {}), ("", {})],
)
def test_pairs_of_a_node_are_read_as_before(text: str, pairs: dict[str, Any]) -> None:
    assert node_pairs(text) == pairs


def test_kinds_of_errors_differ() -> None:
    kinds = ("UNKNOWN", "NODE_UNAVAILABLE", "REPLY_MESSAGE_UNAVAILABLE", "CLIENT_APP_RAISED_EXCEPTION",
             "LOAD_CLIENT_APP_EXCEPTION", "INVALID_FAB", "CLIENT_APP_CRASHED")  # fmt: skip
    assert len({getattr(ErrorCode, kind) for kind in kinds}) == len(kinds)


def test_the_command_line_says_which_run_it_has_started() -> None:
    """``flwr run`` is called in the same process, and its output searched for the run's number."""
    assert "started run {res.run_id}" in inspect.getsource(import_module("flwr.cli.run.run"))
