"""The ASGI application: from a path to its endpoint, and from whatever happens there to an answer."""

import asyncio
import re
from collections.abc import Mapping, Sequence

import msgspec
import structlog

from holdfast.api import errors, sse
from holdfast.api.assets import load_assets
from holdfast.api.auth import Doorkeeper
from holdfast.api.errors import HungUp, Refusal
from holdfast.api.exchange import Exchange, Receive, Scope, Send, Shared
from holdfast.api.metrics import Metrics
from holdfast.api.operation import Operation
from holdfast.api.operations import OPERATIONS
from holdfast.api.patience import Patience
from holdfast.api.replies import Date, Header, Reply, Stream
from holdfast.api.surface import Surface
from holdfast.core.errors import HoldfastError, Stopping

log = structlog.get_logger(__name__)

_NOBODY_HEARD = 499
"""What is counted when the client was gone before there was an answer."""


class Application:
    """Routes requests. Knows which ones are open, so that they can be let go of."""

    def __init__(self, surface: Surface, operations: Sequence[Operation] = OPERATIONS) -> None:
        self._surface = surface
        self._shared = Shared(
            surface,
            Metrics(surface),
            for_answers=Patience(surface.settings.server.request_timeout),
            for_news=Patience(sse.KEEP_ALIVE_EVERY),
        )
        self._doorkeeper = Doorkeeper(surface.token)
        self._date = Date()
        self._open: set[Exchange] = set()
        self._leaving = False
        self._exact: dict[str, dict[str, Operation]] = {}
        self._templates: dict[str, tuple[re.Pattern[str], dict[str, Operation]]] = {}
        for operation in operations:
            self._add(operation)
        load_assets()

    def __repr__(self) -> str:
        return f"<Application: {len(self._open)} open requests{', leaving' if self._leaving else ''}>"

    def _add(self, operation: Operation) -> None:
        path = operation.path
        if "{" not in path:
            methods = self._exact.setdefault(path, {})
        else:
            form = re.sub(r"\\{\w+\\\*\\}", "(.+)", re.escape(path))
            form = re.sub(r"\\{\w+\\}", "([^/]+)", form)
            methods = self._templates.setdefault(path, (re.compile(form, re.DOTALL), {}))[1]
        methods[operation.method] = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation, values = self._find(scope["method"], scope["path"])
        exchange = Exchange(self._shared, scope, receive, send, values)
        self._open.add(exchange)
        try:
            async with exchange:
                reply = await self._answer(operation, exchange)
                await exchange.write(reply, self._date.header(self._surface.clock.now()))
        except HungUp:
            pass
        except asyncio.CancelledError:
            if not self._leaving:
                raise
        finally:
            self._open.discard(exchange)
            self._shared.metrics.count_request(operation.path, exchange.status or _NOBODY_HEARD)

    async def _answer(self, operation: Operation, exchange: Exchange) -> Reply | Stream:
        try:
            if self._leaving:
                raise Stopping
            if not operation.is_open:
                self._doorkeeper.check(exchange.headers)
            return await operation.endpoint(exchange)
        except HungUp:
            raise
        except HoldfastError as error:
            return errors.reply(errors.refusal(error))
        except Exception:  # the edge of a request: the others go on
            log.exception("a request broke", route=operation.path)
            return errors.reply(Refusal(500, errors.BROKE, code="internal_error"))

    def leave(self) -> None:
        """Let every open request go with an answer to that effect, and take no more."""
        self._leaving = True
        for exchange in list(self._open):
            exchange.end(Stopping())
        self._shared.for_answers.run_out()
        self._shared.for_news.run_out()

    # ── finding the operation ───────────────────────────────────────────────────────────────────

    def _find(self, method: str, path: str) -> tuple[Operation, tuple[str, ...]]:
        values: tuple[str, ...] = ()
        methods = self._exact.get(path)
        if methods is None:
            methods, values = self._by_template(path)
        if methods is None:
            return _NOWHERE, ()
        operation = methods.get("GET" if method == "HEAD" else method)
        return (operation, values) if operation else (_not_allowed(methods), ())

    def _by_template(self, path: str) -> tuple[dict[str, Operation] | None, tuple[str, ...]]:
        for form, methods in self._templates.values():
            if found := form.fullmatch(path):
                return methods, found.groups()
        return None, ()


async def _nowhere(_: Exchange) -> Reply:
    raise Refusal(404, "There is nothing at this address; /openapi.json lists what there is.", code="not_found")


_NOWHERE = Operation(method="", path="(nowhere)", endpoint=_nowhere, tag="", summary="", replies={}, is_open=True)


def _not_allowed(methods: Mapping[str, Operation]) -> Operation:
    """What stands at an address for a method that it does not have."""
    known = next(iter(methods.values()))
    allowed = ", ".join(sorted({*methods, *(("HEAD",) if "GET" in methods else ())}))
    header: Header = (b"allow", allowed.encode())

    async def refuse(_: Exchange) -> Reply:
        raise Refusal(405, f"This address takes {allowed}.", code="method_not_allowed", headers=(header,))

    return msgspec.structs.replace(known, endpoint=refuse, is_open=True)
