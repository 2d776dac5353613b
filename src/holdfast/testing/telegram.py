"""Telegram on this machine: a real HTTP server that behaves as the Bot API does, and misbehaves as told.

    async with open_bot_api() as api:
        settings = TelegramSettings(Secret(api.token), api.url, allow=(str(ANNA.id),))
        …
        api.say("hello")                                     # Anna writes to the bot
        await api.until(lambda: api.heard() == ["Hello!"])   # and has got an answer

It knows the methods that Holdfast uses, for private chats. A bot can't write to people who never wrote to it.
"""

import socket
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import msgspec
from aiohttp import web

LONGEST_MESSAGE = 4096
LONGEST_POLL = 50
MOST_UPDATES = 100


class Person(msgspec.Struct, frozen=True):
    """Someone with Telegram on their phone. The private chat with them has their id."""

    id: int
    first_name: str
    username: str = ""


ANNA = Person(1001, "Anna", "Anna_K")
BEN = Person(1002, "Ben")


class Call(msgspec.Struct, frozen=True):
    """A request that came, and what was made of it; the status is 0 when nothing was answered."""

    method: str
    parameters: dict[str, str]
    at: float
    status: int


class Sent(msgspec.Struct, frozen=True):
    """A message that a person got from the bot."""

    chat: int
    text: str
    at: float


class Refusal(Exception):
    """The Bot API says no, in its own shape."""

    def __init__(self, status: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.status = status
        body = {"ok": False, "error_code": status, "description": description}
        self.body = msgspec.json.encode(body | ({"parameters": parameters} if parameters else {}))
        self.content_type = "application/json"


class Trouble(msgspec.Struct, frozen=True):
    """What happens to a request. Without a refusal it is carried out, in spite of all."""

    refusal: Refusal | None = None
    wait: float = 0.0
    hangs_up: bool = False
    """The connection ends without a reply."""


def bad_gateway() -> Trouble:
    """A page of the server in front of the Bot API, which is down."""
    page = Refusal(502, "Bad Gateway")
    page.body = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>nginx</body>\r\n</html>\r\n"
    page.content_type = "text/html"
    return Trouble(page)


def flood(seconds: int) -> Trouble:
    return Trouble(Refusal(429, f"Too Many Requests: retry after {seconds}", retry_after=seconds))


def unauthorized() -> Trouble:
    """The token was revoked."""
    return Trouble(Refusal(401, "Unauthorized"))


def refuses(status: int, description: str) -> Trouble:
    return Trouble(Refusal(status, description))


def slow(seconds: float) -> Trouble:
    """Done, but late."""
    return Trouble(wait=seconds)


def lost_reply() -> Trouble:
    """Done, but whoever asked never hears of it."""
    return Trouble(hangs_up=True)


def hangs_up() -> Trouble:
    """Not done, and no word about it."""
    return Trouble(Refusal(500, "Internal Server Error"), hangs_up=True)


class BotApi:
    """One bot's Telegram: the people who write to it, and what they got."""

    def __init__(self, token: str, port: int) -> None:
        self.token = token
        self.url = f"http://127.0.0.1:{port}"
        self.bot = {"id": int(token.partition(":")[0]), "is_bot": True, "first_name": "Bot", "username": "test_bot"}
        self.calls: list[Call] = []
        self.sent: list[Sent] = []
        self.blocked: set[int] = set()
        """People who want to hear nothing of the bot any more."""
        self.webhook = ""
        self._port = port
        self._known: set[int] = set()
        self._updates: deque[dict[str, Any]] = deque()
        self._said = 0
        self._poll = anyio.Event()
        self._changed = anyio.Event()
        self._next: defaultdict[str, deque[Trouble]] = defaultdict(deque)
        self._lasting: dict[str, Trouble] = {}
        self._runner: web.AppRunner | None = None
        self._methods = {
            "getme": self._get_me,
            "getupdates": self._get_updates,
            "sendmessage": self._send_message,
            "sendchataction": self._send_chat_action,
            "deletewebhook": self._delete_webhook,
        }

    def __repr__(self) -> str:
        return f"<BotApi {self.url}: {self._said} updates, {self.unconfirmed} unconfirmed, {len(self.sent)} sent>"

    # ── people ──────────────────────────────────────────────────────────────────────────────────

    def say(self, text: str, person: Person = ANNA) -> int:
        """Someone writes to the bot; the update's id."""
        return self.post(person, text=text)

    def post(self, person: Person = ANNA, *, chat: dict[str, Any] | None = None, **content: Any) -> int:
        """Someone sends the bot whatever it is, in private unless there is a `chat`."""
        self._said += 1
        self._known.add(person.id)
        private = {"id": person.id, "type": "private", "first_name": person.first_name}
        sender = {"id": person.id, "is_bot": False, "first_name": person.first_name}
        if person.username:
            sender["username"] = person.username
        message = {"message_id": self._said, "date": int(time.time()), "chat": chat or private, "from": sender}
        update_id = 700_000_000 + self._said
        self._updates.append({"update_id": update_id, "message": message | content})
        self._ring()
        return update_id

    def heard(self, person: Person = ANNA) -> list[str]:
        """What someone got from the bot, in order."""
        return [sent.text for sent in self.sent if sent.chat == person.id]

    @property
    def unconfirmed(self) -> int:
        """Updates that Telegram still keeps for the bot."""
        return len(self._updates)

    def made(self, method: str) -> list[Call]:
        """The calls of a method so far."""
        return [call for call in self.calls if call.method == method.lower()]

    async def until(self, condition: Callable[[], bool], within: float = 30.0) -> None:
        """Wait until something has happened, here or elsewhere; raises `TimeoutError` when it never does."""
        with anyio.fail_after(within):
            while not condition():
                with anyio.move_on_after(0.01):  # what happens elsewhere rings no bell
                    await self._changed.wait()

    # ── trouble ─────────────────────────────────────────────────────────────────────────────────

    def will(self, method: str, *troubles: Trouble) -> None:
        """The next calls of a method meet with these, one each."""
        self._next[method.lower()].extend(troubles)

    @contextmanager
    def failing(self, trouble: Trouble, *methods: str) -> Iterator[None]:
        """Inside the block, all calls meet with it, or those of some methods."""
        names = [method.lower() for method in methods] or list(self._methods)
        self._lasting.update(dict.fromkeys(names, trouble))
        if "getupdates" in names:
            self._poll.set()  # who waits for updates notices at once
            self._ring()
        try:
            yield
        finally:
            for name in names:
                del self._lasting[name]

    @asynccontextmanager
    async def refusing(self) -> AsyncIterator[None]:
        """Inside the block, nobody listens: open connections end, and new ones are refused."""
        await self._hang_up()
        try:
            yield
        finally:
            await self._listen()

    # ── the server ──────────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> None:
        application = web.Application()
        application.router.add_route("*", "/bot{token}/{method}", self._answer)
        # A client that goes ends its request, as it does at Telegram.
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.001, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_port=True).start()

    async def _hang_up(self) -> None:
        if self._runner:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        method = request.match_info["method"].lower()
        parameters = {name: str(value) for name, value in {**request.query, **await request.post()}.items()}
        trouble = self._trouble(method)
        status = 0
        try:
            await anyio.sleep(trouble.wait)
            result = await self._carry_out(method, request.match_info["token"], parameters, trouble)
            body, content_type, status = msgspec.json.encode({"ok": True, "result": result}), "application/json", 200
        except Refusal as refusal:
            body, content_type, status = refusal.body, refusal.content_type, refusal.status
        finally:
            status = 0 if trouble.hangs_up else status
            self.calls.append(Call(method, parameters, time.monotonic(), status))
            self._ring()
        if trouble.hangs_up and request.transport:
            request.transport.abort()
        return web.Response(status=status or 500, body=body, content_type=content_type)

    def _trouble(self, method: str) -> Trouble:
        waiting = self._next[method]
        return waiting.popleft() if waiting else self._lasting.get(method, Trouble())

    async def _carry_out(self, method: str, token: str, parameters: dict[str, str], trouble: Trouble) -> Any:
        if trouble.refusal:
            raise trouble.refusal
        if token != self.token:
            raise Refusal(401, "Unauthorized")
        if method not in self._methods:
            raise Refusal(404, "Not Found")
        return await self._methods[method](parameters)

    def _ring(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # ── the methods ─────────────────────────────────────────────────────────────────────────────

    async def _get_me(self, _: dict[str, str]) -> Any:
        return self.bot

    async def _get_updates(self, parameters: dict[str, str]) -> Any:
        if self.webhook:
            raise Refusal(
                409,
                "Conflict: can't use getUpdates method while webhook is active; "
                "use deleteWebhook to delete the webhook first",
            )
        self._poll.set()  # there is one poll at a time, and the newer one wins
        self._ring()
        mine = self._poll = anyio.Event()
        offset = int(parameters.get("offset", 0))
        while self._updates and self._updates[0]["update_id"] < offset:
            self._updates.popleft()
        limit = min(int(parameters.get("limit", MOST_UPDATES)), MOST_UPDATES)
        with anyio.move_on_after(min(int(parameters.get("timeout", 0)), LONGEST_POLL)):
            while not self._updates and not mine.is_set():
                await self._changed.wait()
        if mine.is_set() and (trouble := self._lasting.get("getupdates")) and trouble.refusal:
            raise trouble.refusal
        if mine.is_set():
            raise Refusal(
                409, "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
            )
        return list(self._updates)[:limit]

    async def _send_message(self, parameters: dict[str, str]) -> Any:
        chat, text = int(parameters["chat_id"]), parameters.get("text", "").strip()
        if not text:
            raise Refusal(400, "Bad Request: message text is empty")
        if len(text.encode("utf-16-le")) // 2 > LONGEST_MESSAGE:
            raise Refusal(400, "Bad Request: message is too long")
        self._check_reachable(chat)
        self.sent.append(Sent(chat, text, time.monotonic()))
        message_id = 1_000_000 + len(self.sent)
        return {
            "message_id": message_id,
            "date": int(time.time()),
            "chat": {"id": chat, "type": "private"},
            "from": self.bot,
            "text": text,
        }

    async def _send_chat_action(self, parameters: dict[str, str]) -> Any:
        self._check_reachable(int(parameters["chat_id"]))
        return True

    def _check_reachable(self, chat: int) -> None:
        if chat not in self._known:
            raise Refusal(400, "Bad Request: chat not found")
        if chat in self.blocked:
            raise Refusal(403, "Forbidden: bot was blocked by the user")

    async def _delete_webhook(self, _: dict[str, str]) -> Any:
        self.webhook = ""
        return True


@asynccontextmanager
async def open_bot_api(token: str = "123456:a-token-for-tests") -> AsyncIterator[BotApi]:
    """A Bot API for one bot on 127.0.0.1, at `api.url`."""
    with socket.socket() as reserved:  # holds the port, without listening, for as long as the server may come back
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        api = BotApi(token, reserved.getsockname()[1])
        await api._listen()
        try:
            yield api
        finally:
            await api._hang_up()
