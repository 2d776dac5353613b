"""The composition root: settings become scopes. The only place that names concrete parts."""

import asyncio
import gc
import importlib
import logging
import os
import random
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from importlib.metadata import entry_points
from typing import Any, TextIO, TypeVar, cast

import anyio
import msgspec
import structlog
from msgspec.structs import replace
from structlog.tracebacks import ExceptionDictTransformer

from holdfast import __version__
from holdfast.agent.agent import ModelConfig, credential_digest
from holdfast.api.server import open_listener, open_server
from holdfast.api.surface import Surface
from holdfast.core import failpoints
from holdfast.core.clock import Clock, Ids, SystemClock
from holdfast.core.errors import SettingsError
from holdfast.core.ledger import Ledger
from holdfast.core.protocols import Channel, Model, OpenChannel, Tool
from holdfast.core.scopes import plain_errors
from holdfast.core.settings import ChannelSettings, LogSettings, Places, Settings
from holdfast.gateway import open_gateway
from holdfast.models.providers import ModelChoice, ask_for_models, choose_model
from holdfast.models.transports import Transports, open_transports
from holdfast.storage import open_store
from holdfast.storage.folder import keep_token, open_folder
from holdfast.tools.catalogue import Catalogue

log = structlog.get_logger(__name__)

T = TypeVar("T")

DRAIN = 20.0
"""How long running turns may take to come to their end when the gateway is told to stop."""


class Running(msgspec.Struct, frozen=True):
    """A gateway that is up: what a person wants to know of it."""

    base_url: str
    token: str
    model: str
    provider: str
    why: str
    places: Places
    version: str = __version__

    @property
    def link(self) -> str:
        """The web chat. The token is in the fragment, which browsers send to nobody."""
        return f"{self.base_url}/#token={self.token}"


@asynccontextmanager
async def open_app(
    settings: Settings, places: Places, *, port: int | None = None, hurry: asyncio.Event | None = None
) -> AsyncIterator[Running]:
    """The whole gateway, from its data folder to its web server; leaving the block closes it, inside out.

    Running turns may then come to their end, unless `hurry` is set.
    """
    if port is not None:
        settings = replace(settings, server=replace(settings.server, port=port))
    ledger, clock, chance = Ledger(), SystemClock(), random.Random()
    with (
        open_folder(places.data, places.lock, ledger) as announce,
        open_listener(settings.server) as listener,  # before any work is taken up: the port may be in use
    ):
        token = settings.server.token.reveal() or keep_token(places.token)
        choice = await choose_model(settings.model, os.environ, ask_for_models)
        choice = replace(choice, timeouts=replace(choice.timeouts, silence=settings.model.idle_timeout))
        async with (
            open_store(places.database, durability=settings.store.durability, ledger=ledger, clock=clock) as store,
            open_transports(ledger) as transports,
            _open_channels(settings.channels, ledger, clock) as channels,
            open_gateway(
                settings=settings,
                store=store,
                model=_model_config(choice, transports),
                tools=Catalogue(_tools(settings)).choose(settings.tools.toolsets),
                channels=channels,
                sessions_folder=places.sessions,
                clock=clock,
                chance=chance,
            ) as gateway,
        ):
            surface = Surface(
                gateway=gateway,
                settings=settings,
                token=token,
                ledger=ledger,
                clock=clock,
                ids=Ids(clock, chance),
                model_why=choice.why,
                version=__version__,
                started=clock.now(),
            )
            async with open_server(surface, listener) as address:
                announce(address.url)
                yield Running(address.url, token, choice.name, choice.provider, choice.why, places)
                await gateway.drain(DRAIN, hurry)


async def serve(settings: Settings, places: Places, *, on_ready: Callable[[Running], None]) -> None:
    """Run the gateway until SIGTERM or SIGINT."""
    failpoints.arm_from_environment()
    configure_logs(settings.log, sys.stderr)
    _raise_descriptor_limit()
    hurry = asyncio.Event()
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals, plain_errors():
        async with anyio.create_task_group() as group:
            async with open_app(settings, places, hurry=hurry) as running:
                _tune_collector()
                on_ready(running)
                number = await anext(signals)
                log.info("stopping; the same again hurries", signal=signal.Signals(number).name)
                group.start_soon(_hurry, signals, hurry)
            group.cancel_scope.cancel()


async def _hurry(signals: AsyncIterator[signal.Signals], hurry: asyncio.Event) -> None:
    await anext(signals)
    log.warning("in a hurry: running turns are cut short, and taken up at the next start")
    hurry.set()


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run on the one event loop, uvloop's where it is there."""
    try:
        import uvloop
    except ImportError:
        factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())


class LogStream:
    """A text stream whose failures cost a line and never the gateway: a full disk, a reader that left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def configure_logs(settings: LogSettings, stream: TextIO) -> None:
    """One line an event: for people on a terminal, JSON for programs."""
    as_json = settings.format == "json" or (settings.format == "auto" and not stream.isatty())
    render: list[Any] = (
        # Without the values of variables: they may be keys, and people's words.
        [
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(),
        ]
        if as_json
        else [
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty() and "NO_COLOR" not in os.environ,
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(settings.level),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, LogStream(stream))),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=cast(TextIO, LogStream(stream)))


def _model_config(choice: ModelChoice, transports: Transports) -> ModelConfig:
    opener = _entry_point("holdfast.models", choice.wire)

    def open_model() -> AbstractAsyncContextManager[Model]:
        model: AbstractAsyncContextManager[Model] = opener(choice, transports)
        return model

    return ModelConfig(
        provider=choice.provider,
        name=choice.name,
        base_url=choice.base_url,
        wire=choice.wire,
        credential_digest=credential_digest(choice.api_key.reveal()),
        open=open_model,
    )


@asynccontextmanager
async def _open_channels(settings: ChannelSettings, ledger: Ledger, clock: Clock) -> AsyncIterator[dict[str, Channel]]:
    """The channels that have a token, by name."""
    async with AsyncExitStack() as stack:
        channels = {}
        for name, own in msgspec.structs.asdict(settings).items():
            if own.token:
                open_channel: OpenChannel = _entry_point("holdfast.channels", name)
                channels[name] = await stack.enter_async_context(open_channel(own, ledger, clock))
        yield channels


def _tools(settings: Settings) -> Iterable[Tool]:
    """Installed tools first, then those of the modules in the settings: the first of a name wins."""
    for entry in sorted(entry_points(group="holdfast.tools"), key=lambda entry: entry.name):
        yield from entry.load()
    for name in settings.tools.modules:
        try:
            yield from importlib.import_module(name).TOOLS
        except (ImportError, AttributeError) as error:
            raise SettingsError(f"[tools] modules: {name} has no tools to load: {error}") from None


def _entry_point(group: str, name: str) -> Any:
    found = list(entry_points(group=group, name=name))
    if not found:
        raise SettingsError(f"No installed package provides {name!r} in {group}; install the one that does.")
    return found[0].load()


def _tune_collector() -> None:
    """Look for cycles rarely, and never in what was there at the start: a turn leaves hardly any.

    With the defaults the collector took a fifth of a busy gateway's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # macOS says "unlimited" and does not mean it
            log.debug("the limit of descriptors stays as it is", soft=soft, cause=str(error))
