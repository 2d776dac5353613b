"""When conversations end by themselves: a policy says which time of last use has expired by now."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta, tzinfo
from types import MappingProxyType
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import msgspec
import structlog

from holdfast.core.errors import SettingsError
from holdfast.core.keys import ChatKey
from holdfast.core.settings import ExpirySettings

if TYPE_CHECKING:
    from holdfast.gateway.accept import Gateway

log = structlog.get_logger(__name__)

_FORM = re.compile(r"(?:idle (\d+) ?(s|min|h|d))? ?(?:daily (\d+):(\d+))? ?(force)?")
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
NEVER = float("-inf")


class Policy(msgspec.Struct, frozen=True):
    """Ends a conversation after some time without a message, at an hour of the day, or at the first of both."""

    idle: float | None = None
    daily: time | None = None
    zone: tzinfo | None = None
    """Whose clock shows that hour; None: this machine's."""
    force: bool = False
    """Also while something that it owns still runs."""

    def cutoff(self, now: float) -> float:
        """Who was last used before this has expired."""
        idle = NEVER if self.idle is None else now - self.idle
        return max(idle, NEVER if self.daily is None else self._last(self.daily, now))

    def _last(self, hour: time, now: float) -> float:
        """When it was that hour last."""
        zone = self.zone or datetime.fromtimestamp(now, UTC).astimezone().tzinfo
        today = datetime.fromtimestamp(now, zone).date()
        moment = datetime.combine(today, hour, zone)
        if moment.timestamp() > now:
            moment = datetime.combine(today - timedelta(days=1), hour, zone)
        return moment.timestamp()


class Policies:
    """Which policy a chat has: its own, its channel's, or everyone's."""

    def __init__(self, settings: ExpirySettings) -> None:
        zone = find_zone(settings.zone)
        self.everyone = parse(settings.policy, zone)
        rules = [_rule(rule, zone) for rule in settings.rules]
        self.of_channels: Mapping[str, Policy] = MappingProxyType({w: p for w, p in rules if isinstance(w, str)})
        self.of_chats: Mapping[ChatKey, Policy] = MappingProxyType({w: p for w, p in rules if isinstance(w, ChatKey)})

    def __repr__(self) -> str:
        return f"<Policies: {self.everyone}, {len(self.of_channels)} channels' and {len(self.of_chats)} chats' own>"

    def of_channel(self, channel: str) -> Policy:
        return self.of_channels.get(channel, self.everyone)


def _rule(text: str, zone: tzinfo | None) -> tuple[str | ChatKey, Policy]:
    where, _, rest = text.partition(" ")
    words = rest.split()
    if words[-1][0].isupper():
        zone = find_zone(words.pop())
    return (ChatKey.parse(where) if ":" in where else where), parse(" ".join(words), zone)


def parse(text: str, zone: tzinfo | None = None) -> Policy:
    """The policy that a setting spells; the settings have checked the spelling."""
    found = _FORM.fullmatch(text)
    if found is None:
        return Policy()
    number, unit, hour, minute, force = found.groups()
    return Policy(
        idle=int(number) * _UNITS[unit] if number else None,
        daily=time(int(hour), int(minute)) if hour else None,
        zone=zone,
        force=bool(force),
    )


def find_zone(name: str) -> tzinfo | None:
    if not name:
        return None
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise SettingsError(
            f'[expiry] there is no time zone "{name}" on this machine; '
            "write one such as Europe/Berlin, or install the system's time zone data (tzdata)"
        ) from None


async def expire(gateway: "Gateway") -> int:
    """End the conversations whose time has come; those that are dormant are found by an index. Returns how many."""
    policies, store, now = gateway.policies, gateway.store, gateway.clock.now()
    ended = 0
    for channel in await store.channels():
        policy = policies.of_channel(channel)
        cutoff, page = policy.cutoff(now), (NEVER, "")
        while cutoff > NEVER and (rows := await store.idle(channel, cutoff, after=page)):
            for row in rows:
                if row.chat not in policies.of_chats:
                    ended += await gateway.expire(row, cutoff, force=policy.force)
            page = (rows[-1].last_used, rows[-1].id)
    for chat, policy in policies.of_chats.items():
        found, cutoff = await store.open_session(chat), policy.cutoff(now)
        if found and found.last_used < cutoff:
            ended += await gateway.expire(found, cutoff, force=policy.force)
    return ended
