"""Time, ids and chance, injected so that a test can replay a run to the byte.

Waiting needs no clock of its own: everything waits on the event loop, and a test that wants virtual
time runs on a virtual loop (`holdfast.testing.virtual`).
"""

import random
import time
from typing import Protocol

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_SHIFTS = range(90, -1, -10)


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since 1970, by the wall."""


class SystemClock:
    def now(self) -> float:
        return time.time()


class Ids:
    """Makes ids that sort by time: 10 characters of milliseconds, 10 of chance."""

    def __init__(self, clock: Clock, chance: random.Random) -> None:
        self._clock = clock
        self._chance = chance

    def new(self) -> str:
        number = (int(self._clock.now() * 1000) << 50) | self._chance.getrandbits(50)
        return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])
