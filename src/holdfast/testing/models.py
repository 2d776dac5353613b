"""For those who write models, or test what talks to one: a scriptable model server, and a contract suite.

`open_model_server` runs a real HTTP server on a real socket. It speaks OpenAI's chat completions to the
letter, and misbehaves exactly as told.
"""

import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from socket import create_server
from ssl import SSLContext
from typing import Any, TypeAlias

import anyio
import msgspec
from anyio.abc import ByteStream, Listener, SocketAttribute, SocketListener
from anyio.streams.tls import TLSListener

from holdfast.core.events import Reasoning, Text
from holdfast.core.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from holdfast.core.protocols import Model, ModelAnswer, ModelRequest, ToolSpec
from holdfast.core.scopes import plain_errors
from holdfast.testing.replies import Reply, events, fails, lists, says, whole

# ── the server ──────────────────────────────────────────────────────────────────────────────────


class Received(msgspec.Struct, frozen=True):
    """A request, as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: Any
    """The decoded JSON; None where there is none."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body["messages"])

    @property
    def last(self) -> str:
        """The text of the last message."""
        return str(self.messages[-1].get("content") or "")


Script: TypeAlias = Reply | Callable[[Received], Reply]


def echo(received: Received) -> Reply:
    return says(f"You said: {received.last}")


class ScriptedModelServer:
    """Answers each request with the next reply of its script, and with `otherwise` when that is used up."""

    def __init__(self, script: Sequence[Script], otherwise: Script, models: Sequence[str] | Reply) -> None:
        self._script: deque[Script] = deque(script)
        self.otherwise = otherwise
        self.models = models if isinstance(models, Reply) else lists(*models)
        self.base_url = ""
        self.requests: list[Received] = []
        self.connections = 0
        """Open right now."""
        self.connected = 0
        """Ever opened."""
        self.left = 0
        """Clients that hung up in the middle of an answer."""
        self.stalled = 0
        """Replies that wait for `resume`."""
        self._changed = anyio.Event()
        self._resumed = anyio.Event()

    def __repr__(self) -> str:
        return (
            f"<ScriptedModelServer {self.base_url}: {len(self.requests)} requests, {self.connections} connections, "
            f"{self.left} left early, {len(self._script)} replies to go>"
        )

    def will(self, *script: Script) -> None:
        """Append to the script."""
        self._script.extend(script)

    def resume(self) -> None:
        """Let stalled replies go on."""
        self._resumed.set()
        self._resumed = anyio.Event()

    async def until(self, condition: Callable[["ScriptedModelServer"], bool], within: float = 5.0) -> None:
        """Wait until something has happened here: `await server.until(lambda s: s.left == 1)`."""
        with anyio.fail_after(within):
            while not condition(self):
                await self._changed.wait()

    async def _stall(self) -> None:
        self._note(stalled=1)
        try:
            await self._resumed.wait()
        finally:
            self._note(stalled=-1)

    def _note(self, *, connections: int = 0, connected: int = 0, left: int = 0, stalled: int = 0) -> None:
        self.connections += connections
        self.connected += connected
        self.left += left
        self.stalled += stalled
        self._changed.set()
        self._changed = anyio.Event()

    async def serve(self, stream: ByteStream) -> None:
        """One connection, for as long as the client keeps it."""
        self._note(connections=1, connected=1)
        buffer = bytearray()
        try:
            async with stream:
                while received := await _receive_request(stream, buffer):
                    self.requests.append(received)
                    self._note()
                    if not await self._reply(stream, received, buffer):
                        return
        finally:
            self._note(connections=-1)

    async def _reply(self, stream: ByteStream, received: Received, buffer: bytearray) -> bool:
        """Whether the connection is good for another request."""
        good = gone = False

        async def watch() -> None:
            nonlocal gone
            try:
                while True:
                    buffer.extend(await stream.receive())  # a next request, early
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                gone = True
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            try:
                good = await self._send(stream, self._next(received), received)
            except anyio.BrokenResourceError:
                gone = True
            group.cancel_scope.cancel()
        if gone and not good:
            self._note(left=1)
        return good and not gone

    def _next(self, received: Received) -> Reply:
        if received.method == "GET" and received.path.endswith("/models"):
            return self.models
        if received.method != "POST" or not received.path.partition("?")[0].endswith("/chat/completions"):
            return fails(404, f"Unknown request URL: {received.method} {received.path}.", code="unknown_url")
        script = self._script.popleft() if self._script else self.otherwise
        return script if isinstance(script, Reply) else script(received)

    async def _send(self, stream: ByteStream, reply: Reply, received: Received) -> bool:
        """Whether the reply was sent to its end."""
        await anyio.sleep(reply.first_wait)
        request = received.body or {}
        wanted = request.get("stream") if reply.event_stream is None else reply.event_stream
        streams = wanted and reply.body is None
        parts = list(events(reply, request)) if streams else [whole(reply, request)]
        headers = {"content-type": "text/event-stream" if streams else "application/json", **reply.headers}
        zipper = zlib.compressobj(wbits=31) if reply.gzip else None
        if zipper:
            headers["content-encoding"] = "gzip"
        if "content-length" not in headers:
            headers["transfer-encoding"] = "chunked"
        await stream.send(_head(reply.status, headers))
        for number, part in enumerate([*_writes(parts, reply), b""]):
            if number == reply.close_after:
                return False
            if number == reply.stall_after:
                await self._stall()
            if not part:
                break  # the end, at which one can stall and hang up too
            if number and reply.pace:
                await anyio.sleep(reply.pace)
            data = zipper.compress(part) + zipper.flush(zlib.Z_SYNC_FLUSH) if zipper else part
            await stream.send(_chunk(data) if "transfer-encoding" in headers else data)
        if "transfer-encoding" not in headers:
            return False  # a length that was made up may be wrong
        await stream.send((_chunk(zipper.flush()) if zipper else b"") + b"0\r\n\r\n")
        return True


@asynccontextmanager
async def open_model_server(
    *script: Script,
    otherwise: Script = echo,
    models: Sequence[str] | Reply = ("scripted",),
    port: int = 0,
    tls: SSLContext | None = None,
) -> AsyncIterator[ScriptedModelServer]:
    """A scripted model server on 127.0.0.1, at `server.base_url`."""
    server = ScriptedModelServer(script, otherwise, models)
    socket = create_server(("127.0.0.1", port), backlog=1024)  # made here, as anyio would look its name up in a thread
    listener: Listener[Any] = await SocketListener.from_socket(socket)
    scheme = "https" if tls else "http"
    server.base_url = f"{scheme}://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/v1"
    async with TLSListener(listener, tls, standard_compatible=False) if tls else listener as listener:
        with plain_errors():
            async with anyio.create_task_group() as group:
                group.start_soon(listener.serve, server.serve)
                yield server
                group.cancel_scope.cancel()


async def _receive_request(stream: ByteStream, buffer: bytearray) -> Received | None:
    """The next request, or None when the client has gone."""
    try:
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            buffer += await stream.receive()
        first, *lines = buffer[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        del buffer[: end + 4]
        length = int(headers.get("content-length", 0))
        while len(buffer) < length:
            buffer += await stream.receive()
    except anyio.EndOfStream:
        return None
    raw = bytes(buffer[:length])
    del buffer[:length]
    method, path, _ = first.split(" ", 2)
    try:
        body = msgspec.json.decode(raw) if raw else None
    except msgspec.DecodeError:
        body = None
    return Received(method, path, headers, raw, body)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _writes(events: list[bytes], reply: Reply) -> Iterator[bytes]:
    if reply.cut:
        whole = b"".join(events)
        return (whole[start : start + reply.cut] for start in range(0, len(whole), reply.cut))
    if reply.pace or reply.stall_after is not None or reply.close_after is not None:
        return iter(events)
    return iter([b"".join(events)])


# ── the contract ────────────────────────────────────────────────────────────────────────────────

_CALL = ToolCall("call_1", "read_file", '{"path":"README.md"}')
_HISTORY: tuple[Message, ...] = (
    SystemMessage("Answer briefly."),
    UserMessage('What does the README say? \u00e9\u6587\U0001f600 <b>"quoted"</b>'),
    AssistantMessage("I'll look.", (_CALL,)),
    ToolMessage("call_1", "read_file", "# Holdfast\n", failed=False),
    AssistantMessage("It names the project."),
)
_TOOL = ToolSpec(
    "read_file",
    "Reads a file.",
    msgspec.Raw(b'{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}'),
)


def ask_for(
    model: Model,
    *messages: Message,
    prompt: str = "",
    tools: Sequence[ToolSpec] = (),
    stream: bool = True,
    reasoning: str = "",
) -> ModelRequest:
    """A request to a model, encoded by it."""
    return ModelRequest(
        model.encode_system(prompt),
        [model.encode_message(message) for message in messages],
        model.encode_tools(tools),
        stream=stream,
        reasoning=reasoning,
    )


async def check_model(
    open_model: Callable[[], AbstractAsyncContextManager[Model]], *, question: str = "Say hello."
) -> None:
    """What every model must keep to. `open_model()` opens one that answers `question` with some text, each time."""
    async with open_model() as model:
        _check_encoding(model)
        streamed, seen = await _asked(model, ask_for(model, UserMessage(question)))
        assert streamed.message.text, "the model gave no text"
        assert seen == streamed.message.text, "the emitted text, joined, must be the answer"
        whole, seen = await _asked(model, ask_for(model, UserMessage(question), stream=False))
        assert whole.message.text, "the model gave no text when not streaming"
        assert seen in ("", whole.message.text), "unstreamed, emit everything or nothing"
        after_history = ask_for(model, *_HISTORY, UserMessage(question), prompt="Be kind.", tools=[_TOOL])
        answer, _ = await _asked(model, after_history)
        assert answer.message.text or answer.message.tool_calls, "a history with tool calls got no answer"
        thoughtful, _ = await _asked(model, ask_for(model, UserMessage(question), reasoning="low"))
        assert thoughtful.message.text, "a model that can't be told how hard to think must answer all the same"
        await _check_side_by_side(model, question)
        await _check_cancelling(model, question)
        again, _ = await _asked(model, ask_for(model, UserMessage(question)))
        assert again.message.text, "after a cancelled request the model must still answer"


def _check_encoding(model: Model) -> None:
    assert model.name, "a model has a name"
    assert model.wire, "a model names its wire"
    for message in _HISTORY:
        encoded = model.encode_message(message)
        assert isinstance(encoded, bytes), "a message is encoded to bytes"
        assert encoded == model.encode_message(message), "the same message is encoded the same way"
    note = "the model was changed"
    assert note.encode() in model.encode_message(UserMessage("Hello.", (note,))), "a message's notes are encoded too"
    assert model.encode_tools([_TOOL]) == model.encode_tools((_TOOL,)), "the same tools are encoded the same way"
    assert model.encode_tools(()) in (b"", b"[]"), "no tools are encoded as none"
    assert model.encode_system("Be kind.") == model.encode_system("Be kind."), "the same prompt likewise"


async def _check_side_by_side(model: Model, question: str) -> None:
    async def ask() -> None:
        answer, seen = await _asked(model, ask_for(model, UserMessage(question)))
        assert seen == answer.message.text, "answers given at the same time must not mix"

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(ask)


async def _check_cancelling(model: Model, question: str) -> None:
    with anyio.fail_after(2), anyio.CancelScope() as scope:
        scope.cancel()
        await _asked(model, ask_for(model, UserMessage(question)))
        raise AssertionError("a cancelled request must not answer")


async def _asked(model: Model, request: ModelRequest) -> tuple[ModelAnswer, str]:
    seen: list[str] = []

    def emit(event: Text | Reasoning) -> None:
        if isinstance(event, Text):
            seen.append(event.text)

    return await model.answer(request, emit), "".join(seen)
