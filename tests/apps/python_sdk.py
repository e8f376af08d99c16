"""What the Python client promises, one function each. The server `demo` is registered. Raises where a promise is not kept."""

import asyncio
import os
import threading

from mcp_sidecar import (
    Accept,
    AlreadyResolved,
    AsyncClient,
    CallOptions,
    CallResult,
    Cancelled,
    Client,
    Code,
    ConnectFailed,
    DeadlineExceeded,
    Handlers,
    InvalidRequest,
    NotFound,
    Reset,
    SidecarError,
    UpstreamError,
    proto,
    read_model_call,
    socket_candidates,
)
from mcpsidecar.v1 import tool_pb2


def raises(kind, act):
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def the_search_for_the_socket():
    def found(**env):
        return [str(path) for path in socket_candidates(env)]

    assert found(MCP_SIDECAR_SOCKET="/x.sock", XDG_RUNTIME_DIR="/run/user/7") == ["/x.sock"]
    assert found(XDG_RUNTIME_DIR="/run/user/7", HOME="/home/ann") == [
        "/run/user/7/mcp-sidecar/app.sock",
        "/home/ann/.local/state/mcp-sidecar/app.sock",
        "/run/mcp-sidecar/app.sock",
    ]
    assert found(HOME="/home/ann", XDG_STATE_HOME="/state")[0] == "/state/mcp-sidecar/app.sock"
    error = raises(ConnectFailed, lambda: Client.connect("/nowhere/app.sock", connect_timeout=0.1))
    assert list(error.tried) == ["/nowhere/app.sock"] and "/nowhere/app.sock" in str(error)


def other_stubs_are_left_alone(client):
    theirs, ours = tool_pb2.Tool(name="x"), proto.Tool(name="x")
    assert theirs.SerializeToString() == ours.SerializeToString()
    assert type(theirs) is not type(ours)


def errors_say_everything(client):
    error = raises(NotFound, lambda: client.call_tool("nowhere", "add"))
    assert (error.code, error.reason, error.is_retryable) == (Code.NOT_FOUND, "SERVER_NOT_FOUND", False)
    error = raises(UpstreamError, lambda: client.call_tool("demo", "broken"))
    assert (error.jsonrpc_code, error.data_json) == (-32050, '{"part":7}')
    assert error.metadata["jsonrpc_message"] == "It is broken"
    error = raises(InvalidRequest, lambda: client.call_tool("demo", "add", "no JSON"))
    assert error.field_violations[0].field == "call.arguments_json", error.field_violations
    raises(ValueError, lambda: client.call_tool("demo", "add", {"a": float("nan")}))
    raises(DeadlineExceeded, lambda: client.call_tool("demo", "hang", options=CallOptions(timeout=0.2)))


def calls_can_be_followed_left_and_cancelled(client):
    with client.stream_call("demo", "slow") as events:
        kinds = [type(event).__name__ for event in events]
    assert kinds == ["CallStarted", "Progress", "Progress", "Progress", "CallResult"], kinds
    call_id = client.start_call("demo", "hang")
    assert [call.id for call in client.list_calls()] == [call_id]
    assert not client.wait_call(call_id, timeout=0.1).ended
    client.cancel_call(call_id)
    ended = client.wait_call(call_id, timeout=20)
    assert ended.ended and isinstance(ended.error, Cancelled), ended
    raises(Cancelled, ended.result)
    raises(AlreadyResolved, lambda: client.cancel_call(call_id))
    once = CallOptions(request_id="once")
    first = client.call_tool("demo", "add", {"a": 1, "b": 1}, options=once)
    again = client.call_tool("demo", "add", {"a": 1, "b": 1}, options=once)
    assert first.call_id == again.call_id == client.get_call(request_id="once").id


def models_are_served(client):
    for shape in ("openai-responses", "openai-chat", "anthropic", "gemini"):
        tools = client.list_model_tools(shape, ["demo"])
        names = [(tool.get("function") or tool)["name"] for tool in tools]
        assert "tool_demo_add" in names, names
    arguments = {"a": 2, "b": 9007199254740993}
    text = '{"a": 2, "b": 9007199254740993}'
    name = "tool_demo_add"
    answer = client.call_from_model({"type": "function_call", "call_id": "c1", "name": name, "arguments": text})
    expected = {"type": "function_call_output", "call_id": "c1", "output": "the sum is 9007199254740995"}
    assert answer.message == expected, answer
    function = {"name": name, "arguments": text}
    answer = client.call_from_model({"type": "function", "id": "c2", "function": function})
    assert answer.message == {"role": "tool", "tool_call_id": "c2", "content": "the sum is 9007199254740995"}
    answer = client.call_from_model({"type": "tool_use", "id": "c3", "name": name, "input": arguments})
    assert answer.message["content"] == [{"type": "text", "text": "the sum is 9007199254740995"}]
    assert answer.message["is_error"] is False
    answer = client.call_from_model({"functionCall": {"name": name, "args": arguments}})
    expected = {"name": name, "response": {"output": {"sum": 9007199254740995}}}
    assert answer.message == {"functionResponse": expected}, answer

    picture = client.call_from_model({"type": "tool_use", "id": "p", "name": "tool_demo_picture", "input": {}})
    source = {"type": "base64", "media_type": "image/png", "data": "AAEC"}
    assert picture.message["content"][1] == {"type": "image", "source": source}
    picture = client.call_from_model({"type": "function_call", "call_id": "p", "name": "tool_demo_picture"})
    assert picture.message["output"][1] == {"type": "input_image", "image_url": "data:image/png;base64,AAEC"}

    failed = client.call_from_model({"type": "tool_use", "id": "x", "name": name, "input": {"a": -1}})
    assert failed.message["is_error"] and failed.result.is_error
    failed = client.call_from_model({"type": "function_call", "call_id": "x", "name": name, "arguments": "{"})
    assert failed.error.reason == "INVALID_FIELD" and failed.message["output"].startswith("Error: ")
    failed = client.call_from_model({"name": "tool_demo_none", "args": {}})
    assert "TOOL_NOT_FOUND" in failed.message["functionResponse"]["response"]["error"], failed
    raises(ValueError, lambda: read_model_call({"type": "something"}))


def updates_can_be_waited_for(client):
    with client.updates() as updates:
        seen = [updates.next_within(10) for _ in range(2)]
        assert [type(update.event).__name__ for update in seen][0] == "Server", seen
        while updates.next_within(0.3) is not None:
            pass
        done = threading.Event()

        def read():
            for _ in updates:
                pass
            done.set()

        reader = threading.Thread(target=read)
        reader.start()
        updates.close()
        assert done.wait(10), "a stream that is closed ends its reader"
        reader.join()


def a_synchronous_app_answers(client):
    asked_in = []

    def form(question):
        asked_in.append(threading.current_thread().name)
        # A handler may make requests itself.
        assert client.list_questions()[0].id == question.id
        return {"name": "Ada"}

    with client.answer_questions(Handlers(form=form)):
        assert client.call_tool("demo", "ask").text == 'accept: {"name":"Ada"}'
    assert asked_in and asked_in[0] != "mcp-sidecar"


async def questions_stay_pending_where_a_handler_fails():
    client = await AsyncClient.connect()
    reported = asyncio.Queue()

    async def fails(question):
        raise RuntimeError("nobody is at home")

    async def is_wrong(question):
        return {"name": "A", "age": -1}

    async def leaves(question):
        return None

    async with client:
        call_id = await client.start_call("demo", "ask")
        for handler, expected in ((fails, RuntimeError), (is_wrong, InvalidRequest)):
            handlers = Handlers(form=handler, on_error=lambda question, error: reported.put_nowait((question, error)))
            async with client.answer_questions(handlers):
                question, error = await asyncio.wait_for(reported.get(), 10)
                assert isinstance(error, expected), error
            assert [open.id for open in await client.list_questions()] == [question.id]
        fields = sorted(violation.field for violation in error.field_violations)
        assert fields == ["content_json.age", "content_json.name"], fields
        async with client.answer_questions(Handlers(form=leaves)):
            pass
        (question,) = await client.list_questions()
        await client.respond(question, Accept('{"name":"Ada"}'))
        call = await client.wait_call(call_id, timeout=20)
        assert call.result().text == 'accept: {"name":"Ada"}', call
        try:
            await client.respond(question, True)
        except SidecarError as error:
            assert isinstance(error, AlreadyResolved) or error.reason == "INVALID_FIELD", error


async def no_calls(client):
    while await client.list_calls():
        await asyncio.sleep(0.01)


async def what_is_cancelled_is_cancelled_at_the_server():
    client = await AsyncClient.connect()
    async with client, client.updates(kinds=[proto.UPDATE_KIND_CALL]) as updates:
        waiting = asyncio.ensure_future(client.call_tool("demo", "hang"))
        while not await client.list_calls():
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.wait_for(no_calls(client), 10)
        # A wait for an update that is given up loses nothing.
        seen = []
        for _ in range(3):
            try:
                seen.append(await asyncio.wait_for(updates.__anext__(), 0.05))
            except asyncio.TimeoutError:
                pass
        assert not any(isinstance(update.event, Reset) for update in seen)
        progress = []
        result = await client.call_tool("demo", "slow", on_progress=lambda step: progress.append(step.progress))
        assert isinstance(result, CallResult) and progress == [1.0, 2.0, 3.0], progress


def a_child_of_a_fork_connects_anew(client):
    child = os.fork()
    if child == 0:
        try:
            raises(RuntimeError, client.list_servers)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


the_search_for_the_socket()
with Client.connect() as shared:
    other_stubs_are_left_alone(shared)
    errors_say_everything(shared)
    calls_can_be_followed_left_and_cancelled(shared)
    models_are_served(shared)
    updates_can_be_waited_for(shared)
    a_synchronous_app_answers(shared)
    a_child_of_a_fork_connects_anew(shared)
asyncio.run(questions_stay_pending_where_a_handler_fails())
asyncio.run(what_is_cancelled_is_cancelled_at_the_server())
print("all promises kept")
