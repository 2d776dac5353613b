"""The source keeps the rules of `guards`. An exception to a rule is listed here with its reason."""

from pathlib import Path
from textwrap import indent

import pytest

import holdfast

from .guards import INSTEAD, Allowed, Violation, violations

SOURCE = Path(holdfast.__file__).parent

ALLOWED = [
    Allowed("task", "api/exchange.py", "one listener per request, ended with it; a task group costs six times as much"),
    Allowed("task", "testing/", "checks wait in tasks of their own; the leak fixture sees to their end"),
    Allowed("thread", "logs.py", "writes the log out, so that nobody waits for whoever reads it; outlives the loop"),
    Allowed("thread", "storage/lanes.py", "the store's writer and readers: a database call blocks"),
    Allowed("thread", "testing/virtual.py", "hands on what code under test asks for, and stops the clock for it"),
    Allowed("loop", "app.py", "the one place where the one loop is made"),
    Allowed("loop", "cli/", "a command is a process of its own"),
    Allowed("loop", "testing/", "tests run on loops that the fixture watches and on virtual time"),
    Allowed("process", "testing/processes.py", "gateways of which a test wants to see how they die"),
    Allowed("clock", "core/clock.py", "the one place where time comes from"),
    Allowed("clock", "cli/", "a command lives for a moment, and shows a person the time by the wall"),
    Allowed("clock", "models/failures.py", "a provider that sends a date and no clock of its own means the wall's"),
    Allowed("clock", "testing/", "waits for real processes, in real time"),
    Allowed("environment", "cli/", "read at the start, then passed on as settings"),
    Allowed("environment", "app.py", "read at the start, then passed on as settings"),
    Allowed("environment", "core/failpoints.py", "how a test arms a process that it starts"),
    Allowed("environment", "testing/", "prepares the environment of the processes that tests start"),
    Allowed(
        "table", "gateway/accept.py", "the directory of awake chats; an entry lives as long as its host", "self.awake"
    ),
    Allowed("table", "gateway/residents.py", "the order of residents; an entry lives as long as its seat"),
    Allowed(
        "table", "gateway/expiry.py", "what the settings say of single chats: read-only", "self.of_chats: Mapping["
    ),
    Allowed("global", "core/failpoints.py", "points register as modules are read; a test arms the whole process"),
    Allowed(
        "verb", "gateway/accept.py", "a person's wish that a turn ends; its own block does the rest", "Gateway.stop"
    ),
    Allowed("verb", "gateway/sessions.py", "the same, as the turn hears it", "Turn.stop"),
    Allowed("verb", "cli/dialogue.py", "the same, as a person says it", "Dialogue.stop"),
    Allowed("verb", "gateway/chats.py", "one less who needs the chat awake; nothing is closed", "AwakeChat.release"),
    Allowed("verb", "testing/processes.py", "what a service manager does to a process", "GatewayProcess."),
    Allowed("verb", "testing/virtual.py", "asyncio's own name for it", "VirtualLoop.shutdown_default_executor"),
    Allowed("turn", "gateway/turns.py", "the one place where a turn begins and ends"),
]


@pytest.fixture(scope="module")
def found() -> list[Violation]:
    return [
        violation
        for file in sorted(SOURCE.rglob("*.py"))
        for violation in violations(file.read_text(encoding="utf-8"), file.relative_to(SOURCE).as_posix())
    ]


def is_allowed(violation: Violation) -> bool:
    return any(allowed.covers(violation) for allowed in ALLOWED)


@pytest.mark.parametrize("rule", INSTEAD)
@pytest.mark.proves("invariant 7", "case 47")
def test_the_source_keeps_the_rule(found: list[Violation], rule: str) -> None:
    broken = [str(each) for each in found if each.rule == rule and not is_allowed(each)]
    assert not broken, "\n" + "\n".join(broken)


def test_every_exception_is_still_needed(found: list[Violation]) -> None:
    idle = [allowed for allowed in ALLOWED if not any(map(allowed.covers, found))]
    assert not idle


# ── the guard itself ────────────────────────────────────────────────────────────────────────────


PLANTED = {
    "task": [
        "import asyncio\nasyncio.create_task(f())",
        "from asyncio import ensure_future as later\nlater(f())",
        "import asyncio\nasyncio.get_running_loop().create_task(f())",
        "import asyncio\nasync def f(): await asyncio.gather(g(), g())",
        "import asyncio\nasync def f(): await asyncio.shield(g())",
        "import asyncio\nasyncio.run_coroutine_threadsafe(f(), loop)",
    ],
    "thread": [
        "import threading\nthreading.Thread(target=f)",
        "from threading import Thread\nclass Worker(Thread): ...",
        "import asyncio\nasyncio.get_running_loop().run_in_executor(None, f)",
        "import asyncio\nasyncio.to_thread(f)",
        "from anyio import from_thread\nfrom_thread.start_blocking_portal()",
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(4)",
    ],
    "loop": [
        "import asyncio\ndef f(): asyncio.run(g())",
        "import asyncio\nloop = asyncio.new_event_loop()",
        "def f(loop): loop.run_until_complete(g())",
        "import anyio as io\nio.run(f)",
    ],
    "process": [
        "import subprocess\nsubprocess.run(['ls'])",
        "from subprocess import Popen\nchild = Popen(['ls'])",
        "import asyncio\nasync def f(): await asyncio.create_subprocess_exec('ls')",
        "import anyio\nasync def f(ledger):\n    ledger.enter('browser', 'x')\n    await anyio.open_process('ls')",
        "import os\nos.system('ls')",
        "from multiprocessing import Process\nProcess(target=f)",
    ],
    "timer": [
        "import asyncio\nasyncio.get_running_loop().call_later(1, f)",
        "def f(loop):\n    loop.call_at(1, g)",
    ],
    "finalizer": [
        "class Pool:\n    def __del__(self): ...",
        "import atexit\natexit.register(f)",
        "import weakref\nweakref.finalize(thing, f)",
        "import threading\nthreading.excepthook = f",
    ],
    "clock": [
        "import time\nnow = time.time()",
        "from time import sleep\nsleep(1)",
        "import time\nclass Row:\n    made = field(default_factory=time.time)",
        "import datetime as dt\ndt.datetime.now(dt.UTC)",
        "from datetime import datetime\ndatetime.now()",
        "import random\nrandom.choice([1])",
        "from random import random\nrandom()",
        "import uuid\nuuid.uuid4()",
    ],
    "print": ["print('hello')"],
    "environment": [
        "import os\nos.environ['HOME']",
        "from os import environ\nenviron.get('HOME')",
        "import os\nos.getenv('HOME')",
    ],
    "table": [
        # by the type
        "class A:\n    def __init__(self): self.x: dict[SessionId, int] = {}",
        "class A:\n    def __init__(self): self.x: 'OrderedDict[ChatKey, float]' = OrderedDict()",
        "class A:\n    def __init__(self): self.x: set[Session] = set()",
        "class A:\n    def __init__(self): self.x: dict[str, list[AwakeChat]] = {}",
        "class A:\n    def __init__(self): self.x: WeakKeyDictionary[Session, int] | None = None",
        "class A:\n    def __init__(self): self.x: None | dict[SessionId, int] = None",
        "class A:\n    def __init__(self): self.x: Pair[str, set[ChatKey]] = Pair()",
        "class A:\n    def f(self, session): self.x: Any = {session.id: 1}",
        "class A:\n    x: dict[tuple[SessionId, str], int]",
        "SEEN: Counter[keys.SessionId] = Counter()",
        # by what is put into it
        "class A:\n    def f(self, session): self._locks[session.id] = 1",
        "class A:\n    def f(self, key: ChatKey): self._by_chat[key] = 1",
        "class A:\n    def f(self, chat): self._waiting.setdefault(str(chat.key), []).append(1)",
        "class A:\n    def f(self, incoming): self._last[incoming.chat].append(1)",
        "class A:\n    def f(self, name, session): self._tables[name][session.id] = 1",
        "class A:\n    def f(self, sid: str): self._seen.add(sid)",
        "class A:\n    def f(self, session): self._order.append(session.id)",
        "class A:\n    def f(self, session): self._notes[f'{session.id}/note'] = 1",
        "class A:\n    def f(self, session): self._x[session.row.id, 'a'] += 1",
        "class A:\n    def f(self, session):\n        name = session.id\n        del self._x[name]",
        "class A:\n    def f(self, session):\n        table = self._table\n        table[session.id] = 1",
        "class A:\n    def f(self, session):\n        a = self._x\n        b = a\n        b.add(session.id)",
        "class A:\n    def f(self, chats): self._by_key = {chat.key: chat for chat in chats}",
        "class A:\n    def f(self, chats): self._known = set(chat.key for chat in chats)",
        "class A:\n    def f(self, session): self._x = self._x | {session}",
        "class A:\n    def f(self, session): self._x = {session} | self._x",
        "class A:\n    def f(self, session): self._x['of ' + session.id] = 1",
        "class A:\n    def f(self, session): self._x[session.id + '!'] = 1",
        "class A:\n    def f(self, name): self._x[SessionId(name)] = 1",
        "class A:\n    def f(self, name): self._x[ChatKey.parse(name)] = 1",
        "class A:\n    def f(self, session): self._x.update({session.id: 1})",
        "class A:\n    def f(self, session): self._x |= {session}",
        "class Session:\n    def f(self, gateway): gateway.table[self.id] = self",
        "import heapq\nclass A:\n    def f(self, session): heapq.heappush(self._heap, (1, session.id))",
        "def open_x():\n    seen = {}\n    def note(session): seen[session.id] = 1\n    return note",
        # by what is remembered
        "import functools\n@functools.cache\ndef f(session: SessionId): ...",
        "from functools import lru_cache as kept\n@kept(maxsize=8)\ndef f(where: 'ChatKey'): ...",
        "from functools import lru_cache\nclass A:\n    @lru_cache\n    def f(self, chat): ...",
    ],
    "global": [
        "SEEN = {}\ndef f(name): SEEN[name] = 1",
        "from collections import deque\nrecent: deque[str] = deque()\ndef f(): recent.append('x')",
        "names = set()\ndef f():\n    names.discard('x')",
        "count = 0\ndef f():\n    global count\n    count += 1",
        "class A:\n    cache = []\n    def f(self): self.cache.append(1)",
        "class A:\n    cache: dict[str, int] = {}\n    @classmethod\n    def f(cls): cls.cache['a'] = 1",
    ],
    "verb": [
        "class Pool:\n    async def aclose(self): ...",
        "class Pool:\n    def close(self): ...",
        "class Pool:\n    async def shutdown(self, wait: float): ...",
        "class Pool:\n    def cleanup_idle(self): ...",
        "class Terminal:\n    async def terminate(self): ...",
        "async def stop_all(things): ...",
    ],
    "turn": [
        "def f(chat): chat.turn = None",
        "class A:\n    def f(self): self.turn = None",
        "def f(chat): del chat.turn",
        "def f(chat): chat.turn, chat.busy = None, False",
        "def f(chat): chat.turn.stop_reason = ''",
        "def f(turn): turn.words.clear()",
        "def f(running: Turn): running.last_event += 1",
        "def f(chat):\n    now = chat.turn\n    now.words[:] = []",
        "def f(chat): chat.turn._scope.cancel()",
        "def f(chat): setattr(chat, 'turn', None)",
        "def f(turn): delattr(turn, 'started')",
        "def f(turn): vars(turn).clear()",
        "def f(chat): (now := chat.turn).words.clear()",
        "def f():\n    now = Turn()\n    now.words.clear()",
        "class A:\n    def __init__(self, chat): chat.turn = None",
        "class A:\n    def __init__(self): self.chat.turn = None",
    ],
    "except": [
        "try: ...\nexcept: pass",
        "try: ...\nexcept Exception: return_value = None",
        "try: ...\nexcept (ValueError, BaseException) as error: pass",
    ],
    "function": [
        "def f():\n" + "    pass\n" * 80,
        "class C:\n    async def f(self):\n" + "        pass\n" * 80,
    ],
    "file": ["\n" * 501],
}


def test_every_rule_has_something_planted() -> None:
    assert PLANTED.keys() == INSTEAD.keys()


@pytest.mark.parametrize(("rule", "source"), [(rule, source) for rule, each in PLANTED.items() for source in each])
def test_a_planted_violation_is_found(rule: str, source: str) -> None:
    found = list(violations(source, "planted.py"))
    assert [violation.rule for violation in found] == [rule]
    assert INSTEAD[rule] in str(found[0]), "it says what to do instead"


@pytest.mark.parametrize(
    ("file", "rule", "source"),
    [
        ("gateway/accept.py", "table", "def f(self, session): self._seen[session.id] = 1"),
        ("gateway/accept.py", "table", "def f(self): self.last: dict[ChatKey, float] = {}"),
        ("gateway/accept.py", "turn", "def f(self, key): self.awake.get(key).turn = None"),
        ("gateway/hosting.py", "turn", "def f(self, chat): chat.turn = None"),
        ("gateway/hosting.py", "table", "def f(self, session): self._agents.setdefault(session.id, 1)"),
        ("gateway/expiry.py", "table", "def f(self, chat): self._due[chat.key] = 1"),
        ("gateway/residents.py", "verb", "async def close(self): ..."),
        ("gateway/sessions.py", "verb", "async def aclose(self): ..."),
        ("gateway/chats.py", "turn", "def f(self): self.turn = None"),
        ("storage/lanes.py", "finalizer", "def __del__(self): ..."),
        ("models/transports.py", "timer", "def f(self, loop): loop.call_later(1, self.f)"),
        ("api/exchange.py", "global", "def f(self):\n    global last\n    last = self"),
    ],
)
def test_the_exceptions_cover_no_more_than_they_should(file: str, rule: str, source: str) -> None:
    """Planted into the real file, in a class at its end."""
    text = (SOURCE / file).read_text(encoding="utf-8") + "\n\nclass Planted:\n" + indent(source, "    ")
    assert [each.rule for each in violations(text, file) if not is_allowed(each)] == [rule]


@pytest.mark.parametrize(
    "source",
    [
        "async def f():\n    async with create_task_group() as group:\n        group.start_soon(f)",
        "import asyncio\nasync def f(future): await asyncio.shield(future)",
        "import asyncio\nTask = asyncio.Task[None]\ndef f(task: asyncio.Task[None]): task.cancel()",
        "import threading\nlock = threading.Lock()\ndef f(thread: threading.Thread) -> threading.Thread: ...",
        "import anyio\nasync def f(ledger):\n    with ledger.enter('process', 'ls'): await anyio.run_process('ls')",
        "class A:\n    def f(self, loop): self._timer = loop.call_later(1, self.g)",
        "from weakref import WeakSet\nclass A:\n    def __init__(self): self._open: WeakSet[Socket] = WeakSet()",
        "import random\ndef f(chance: random.Random): return random.Random(1), chance.choice([1])",
        "from datetime import UTC, datetime\ndatetime.fromtimestamp(clock.now(), UTC)",
        "import time\ntime.strftime('%H', time.gmtime(0))",
        "class Console:\n    def print(self): ...\nconsole.print()",
        # What belongs to its owner, is local, or is not kept by session.
        "class Session:\n    def own(self, name):\n        self._owned: dict[str, A]\n        self._owned[name] = 1",
        "def f(rows):\n    found: dict[ChatKey, int] = {}\n    for row in rows: found[row.chat] = 1\n    return found",
        "def f(chats):\n    found = {chat.key: chat for chat in chats}\n    return found",
        "def f(chats):\n    seen = set()\n    for chat in chats: seen.add(chat.key)\n    return seen",
        "def f(chat):\n    a, b = set(), {}\n    a |= {chat}\n    b.update({chat.key: 1})\n    return a, b",
        "import heapq\nclass A:\n    def f(self, size): heapq.heappush(self._sizes, size)",
        "import heapq\ndef f(chats):\n    heap = []\n    for chat in chats: heapq.heappush(heap, chat.key)",
        "class A:\n    def f(self, chat): return self._deliveries[chat.key.channel], self.rows()[chat.key]",
        "class A:\n    def __init__(self): self._do: dict[str, Callable[[Session], None]] = {}",
        "class A:\n    def f(self, session): self.session, self.id = session, session.id",
        "class A:\n    def f(self, chat): self.count += 1\n    def g(self, chat): self.sizes[len(chat)] = 1",
        "class A:\n    def __init__(self): self.a: 'dict[str, int]' = {}\n    b: dict[str, 'Mail']",
        "class A:\n    async def f(self, session): await self._store.append(session.id, 1)",
        "class A:\n    def f(self, session: ClientSession): self._pools.add(session)",
        "class A:\n    def f(self, session): self.lines.append(f'session {session.id}')",
        "def f(session: SessionId) -> list[SessionRow]: ...",
        "from functools import cache\n@cache\ndef f(name: str): ...",
        "NAMES = {'a': 1}\nMORE = []\nMORE.append(2)\ndef f(): return NAMES['a'], MORE[0]",
        "catalogue = Catalogue()\ndef f(): catalogue.update('x')",
        "class A:\n    def f(self, text): self._digest.update(text)",
        "names = []\ndef f():\n    names = []\n    names.append(1)",
        "class A:\n    kinds = {'a': 1}\n    def __init__(self): self.kinds = {}\n    def f(self): self.kinds['b'] = 2",
        "class Reply(Struct):\n    headers: dict[str, str] = {}\n    def f(self): self.headers['a'] = 'b'",
        # What ends with its block, and a turn that is only looked at.
        "@asynccontextmanager\nasync def open_pool():\n    try: yield\n    finally: await pool.close()",
        "class A:\n    def _close(self): ...\n    def finish(self): ...\n    def closed(self): ...",
        "def f():\n    def stop(): ...\n    return stop",
        "class AwakeChat:\n    def __init__(self): self.turn: Turn | None = None",
        "def f(chat):\n    if chat.turn and not chat.turn.stop_reason: chat.turn.stop('stall')",
        "def f(chat):\n    turn = chat.turn\n    return turn.mail, turn.words[0], turn.started",
        "def f(turn):\n    describe(turn), f()(turn), vars()\n    return getattr(turn, 'started')",
        "class Turn:\n    def show(self, event): self.words.append(event.text)",
        "try: ...\nexcept ValueError: pass",
        "try: ...\nexcept Exception: log.exception('broke')",
        "try: ...\nexcept BaseException:\n    undo()\n    raise",
        "try: ...\nexcept Exception as error: future.set_exception(error)",
        "def f():\n" + "    pass\n" * 79,
        "\n" * 500,
    ],
)
def test_what_is_right_passes(source: str) -> None:
    assert not list(violations(source, "planted.py"))
