"""Says where a task or a thread is, in the words of the code that the reader wrote."""

import asyncio
import sys
import sysconfig
import threading
from collections.abc import Iterator
from types import FrameType

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def of_task(task: "asyncio.Task[object]") -> str:
    return f"task {task.get_name()!r} {_place(list(_awaiting(task.get_coro())))}"


def of_thread(thread: threading.Thread) -> str:
    frames = []
    frame = sys._current_frames().get(thread.ident or 0)
    while frame:
        frames.append(frame)
        frame = frame.f_back
    return f"thread {thread.name!r} {_place(frames[::-1])}"


def _awaiting(coroutine: object) -> Iterator[FrameType]:
    """The frames of a suspended coroutine, from the outermost to the one that waits."""
    while coroutine is not None:
        for kind in ("cr", "gi", "ag"):  # a coroutine, a generator, an asynchronous generator
            if frame := getattr(coroutine, f"{kind}_frame", None):
                yield frame
                coroutine = getattr(coroutine, f"{kind}_{'yieldfrom' if kind == 'gi' else 'await'}", None)
                break
        else:
            return


def _place(frames: list[FrameType]) -> str:
    """The innermost place outside of libraries, or else the innermost."""
    own = [frame for frame in frames if not frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen"))]
    for frame in (own or frames)[-1:]:
        return f"in {frame.f_code.co_qualname} at {frame.f_code.co_filename}:{frame.f_lineno}"
    return "in no frame of Python"
