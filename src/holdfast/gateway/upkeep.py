"""What has to be done now and then, beside the work: ending what has expired, forgetting what is over."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import structlog

from holdfast.core.errors import StoreError
from holdfast.core.keys import SessionId
from holdfast.gateway.expiry import NEVER, expire

if TYPE_CHECKING:
    from holdfast.gateway.accept import Gateway

log = structlog.get_logger(__name__)

EXPIRE_EVERY = 60.0
FORGET_EVERY = 600.0
PAUSE = 0.02


async def expire_regularly(gateway: "Gateway") -> None:
    while True:
        await anyio.sleep(EXPIRE_EVERY)
        try:
            await expire(gateway)
        except StoreError as error:
            log.warning("conversations that have expired stay open for now", cause=str(error))


async def forget_regularly(gateway: "Gateway", folders: Path) -> None:
    retention = Retention(gateway, folders)
    while True:
        await anyio.sleep(FORGET_EVERY)
        try:
            await retention.apply()
        except StoreError as error:
            log.warning("what is over is kept for now", cause=str(error))


class Retention:
    """Forgets what is over, as the settings say, in small steps."""

    def __init__(self, gateway: "Gateway", folders: Path) -> None:
        self._gateway = gateway
        self._store = gateway.store
        self._folders = folders
        self._emptied = (NEVER, "")
        """Up to here, in the order of their ends, conversations have no folder any more."""

    async def apply(self) -> None:
        settings, now = self._gateway.settings.retention, self._gateway.clock.now()
        await self._forget_mail(now - settings.mail)
        if settings.outputs:
            await self._remove_folders(now - settings.outputs)
        if settings.conversations:
            await self._forget_conversations(now - settings.conversations)
        while await self._store.shrink():
            await _let_others_work()

    async def _forget_mail(self, before: float) -> None:
        after: int | None = 0
        while after is not None:
            after = await self._store.prune_mail(before, after=after)
            await _let_others_work()

    async def _remove_folders(self, before: float) -> None:
        while rows := await self._store.ended(before, after=self._emptied):
            for row in rows:
                await self._remove_folder(row.id)
            self._emptied = (rows[-1].ended or 0.0, rows[-1].id)

    async def _forget_conversations(self, before: float) -> None:
        while rows := await self._store.ended(before):
            for row in rows:
                if not await self._store.prune_session(row.id):  # nobody can resume it any more
                    await self._remove_folder(row.id)  # while its row is there, to find it again after a crash
                    while not await self._store.prune_session(row.id):
                        await _let_others_work()
            log.info("conversations that ended long ago were forgotten", conversations=len(rows))

    async def _remove_folder(self, session: SessionId) -> None:
        folder = self._folders / session
        try:
            await anyio.to_thread.run_sync(_remove, folder)
        except OSError as error:
            log.warning("a conversation's folder can't be removed", folder=str(folder), cause=str(error))


async def _let_others_work() -> None:
    """Between two small steps."""
    await anyio.sleep(PAUSE)


def _remove(folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)
