"""The composition root: settings become scopes. The only place that names concrete parts."""

import asyncio
import gc
import importlib
import os
import random
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

import anyio
import msgspec
import structlog
from msgspec.structs import replace

from holdfast import __version__
from holdfast.agent.agent import ModelConfig, credential_digest
from holdfast.api.server import open_listener, open_server
from holdfast.api.surface import Reload, Surface
from holdfast.core import failpoints
from holdfast.core.clock import Clock, Ids, SystemClock
from holdfast.core.errors import SettingsError
from holdfast.core.ledger import Ledger
from holdfast.core.protocols import Channel, Model, OpenChannel
from holdfast.core.scopes import Keeper, plain_errors
from holdfast.core.settings import ChannelSettings, Places, Settings, load_settings
from holdfast.gateway import open_gateway
from holdfast.gateway.descriptors import open_descriptors
from holdfast.logs import open_logs
from holdfast.models.home import Home, open_home
from holdfast.models.providers import ModelChoice, ask_for_models, choose_model
from holdfast.models.transports import Transports, open_transports
from holdfast.reloading import Reloading
from holdfast.storage import open_store
from holdfast.storage.folder import keep_token, open_folder
from holdfast.tools.catalogue import Catalogue, Source

log = structlog.get_logger(__name__)

T = TypeVar("T")

DRAIN = 20.0
"""How long running turns may take to come to their end when the gateway is told to stop."""
CHANNEL_GRACE = 5.0
"""How long a channel may take to close."""


class Running(msgspec.Struct, frozen=True):
    """A gateway that is up: what a person wants to know of it, and how to have it read its settings again."""

    base_url: str
    token: str
    model: str
    provider: str
    why: str
    places: Places
    reload: Reload
    version: str = __version__

    @property
    def link(self) -> str:
        """The web chat. The token is in the fragment, which browsers send to nobody."""
        return f"{self.base_url}/#token={self.token}"


@asynccontextmanager
async def open_app(
    settings: Settings,
    places: Places,
    *,
    port: int | None = None,
    hurry: asyncio.Event | None = None,
    ledger: Ledger | None = None,
    reread: Callable[[], Settings] | None = None,
) -> AsyncIterator[Running]:
    """The whole gateway, from its data folder to its web server; leaving the block closes it, inside out.

    Running turns may then come to their end, unless `hurry` is set. `reread` gives the settings as they are by
    then; without it they stay the same.
    """
    if port is not None:
        settings = replace(settings, server=replace(settings.server, port=port))
    ledger = Ledger() if ledger is None else ledger
    clock, chance = SystemClock(), random.Random()
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
            open_home() as home,
            _open_channels(settings.channels, ledger, clock) as channels,
            open_gateway(
                settings=settings,
                store=store,
                model=_model_config(choice, transports, home),
                catalogue=Catalogue.of(tool_sources(settings)),
                channels=channels,
                sessions_folder=places.sessions,
                clock=clock,
                chance=chance,
                at_end=[entry.load() for entry in entry_points(group="holdfast.at_end")],
            ) as gateway,
        ):
            reload = Reloading(settings, reread or (lambda: settings), gateway.change).reload
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
                reload=reload,
            )
            async with open_server(surface, listener) as address:
                announce(address.url)
                yield Running(address.url, token, choice.name, choice.provider, choice.why, places, reload)
                await gateway.drain(DRAIN, hurry)


async def serve(environ: Mapping[str, str], ledger: Ledger, *, on_ready: Callable[[Running], None]) -> None:
    """Run the gateway until SIGTERM, SIGINT or the end of its terminal; SIGHUP has it read its settings again."""
    failpoints.arm_from_environment()
    settings, places = load_settings(environ)
    hurry, hangs_up = asyncio.Event(), _ends_with_its_terminal()
    with (
        open_logs(settings.log, sys.stderr, folder=places.data, ledger=ledger, colours="NO_COLOR" not in environ),
        anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals,
        plain_errors(),
    ):
        _raise_descriptor_limit()
        async with anyio.create_task_group() as group:
            async with open_app(
                settings, places, hurry=hurry, ledger=ledger, reread=lambda: load_settings(environ)[0]
            ) as running:
                _tune_collector()
                on_ready(running)
                async for number in signals:
                    if number != signal.SIGHUP or (hangs_up and not _on_a_terminal()):
                        break
                    group.start_soon(_reload, running.reload)
                log.info("stopping; the same again hurries", signal=signal.Signals(number).name)
                group.start_soon(_hurry, signals, hurry)
            group.cancel_scope.cancel()


async def _hurry(signals: AsyncIterator[signal.Signals], hurry: asyncio.Event) -> None:
    async for number in signals:
        if number != signal.SIGHUP:
            break
    log.warning("in a hurry: running turns are cut short, and taken up at the next start")
    hurry.set()


async def _reload(reload: Reload) -> None:
    try:
        await reload()
    except SettingsError:
        pass  # it is in the log
    except Exception:  # the edge of a signal: the gateway goes on
        log.exception("reading the settings again broke")


def _ends_with_its_terminal() -> bool:
    """Whether a terminal that is closed ends this process; `nohup` sees to it that it doesn't."""
    return _on_a_terminal() and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN


def _on_a_terminal() -> bool:
    try:
        os.close(os.open(os.ctermid(), os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def run(main: Callable[[Ledger], Coroutine[Any, Any, T]]) -> T:
    """Run on the one event loop, uvloop's where it is there. It is the first in the process's ledger."""
    try:
        import uvloop
    except ImportError:
        factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    else:
        factory = uvloop.new_event_loop
    before = open_descriptors() or {}
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_enter_loop(main, before))


async def _enter_loop(main: Callable[[Ledger], Coroutine[Any, Any, T]], before: Collection[int]) -> T:
    """What came since `before` is the loop's own: this is the first thing that runs on it."""
    ledger, own = Ledger(), set(open_descriptors() or {}) - set(before)
    with ledger.enter("event loop", type(asyncio.get_running_loop()).__module__.partition(".")[0], holds=lambda: own):
        return await main(ledger)


def _model_config(choice: ModelChoice, transports: Transports, home: Home) -> ModelConfig:
    opener = _entry_point("holdfast.models", choice.wire)

    def open_model(name: str) -> AbstractAsyncContextManager[Model]:
        return home.open(opener(replace(choice, name=name), transports))

    return ModelConfig(
        provider=choice.provider,
        name=choice.name,
        base_url=choice.base_url,
        wire=choice.wire,
        credential_digest=credential_digest(choice.api_key.reveal()),
        open=open_model,
        alone=choice.wire == "demo",
        reasons=not choice.dialect.with_tools,
    )


@asynccontextmanager
async def _open_channels(settings: ChannelSettings, ledger: Ledger, clock: Clock) -> AsyncIterator[dict[str, Channel]]:
    """The channels that have a token, by name. One that is slow or fails to close holds up nobody else's end."""
    with plain_errors():
        async with anyio.create_task_group() as group, AsyncExitStack() as stack:
            keeper = Keeper(group, CHANNEL_GRACE)
            channels = {}
            for name, own in msgspec.structs.asdict(settings).items():
                if own.token:
                    open_channel: OpenChannel = _entry_point("holdfast.channels", name)
                    opening = keeper.hold(open_channel(own, ledger, clock))
                    channels[name] = await stack.enter_async_context(opening)
            yield channels


def tool_sources(settings: Settings) -> Iterator[Source]:
    """The tools that are installed, Holdfast's own and those of plug-ins, and those of the modules in the settings."""
    for entry in sorted(entry_points(group="holdfast.tools"), key=lambda entry: (_package(entry), entry.name)):
        package = _package(entry)
        try:
            tools = tuple(entry.load())
        except (ImportError, AttributeError) as error:
            raise SettingsError(f"The tools of {package} can't be loaded: {error}; update or uninstall it.") from None
        yield Source("built-in" if package == "holdfast" else "plug-in", tools, f"{package}/{entry.name}")
    for name in settings.tools.modules:
        try:
            yield Source("module", tuple(importlib.import_module(name).TOOLS), name)
        except (ImportError, AttributeError) as error:
            raise SettingsError(f"[tools] modules: {name} has no tools to load: {error}") from None


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else ""


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
