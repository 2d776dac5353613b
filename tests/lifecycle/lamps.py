"""Tools that come and go: what a conversation began with has to stay the same all the same."""

from itertools import combinations

import anyio

from holdfast.core.keys import ChatKey
from holdfast.core.protocols import ToolContext
from holdfast.testing.gateways import Bench
from holdfast.tools.catalogue import KEPT_SETS
from holdfast.tools.function import FunctionTool


class Lamps:
    """Five tools, each of which is available while it is lit."""

    NAMES = ("red", "green", "blue", "white", "black")

    def __init__(self, *lit: str) -> None:
        self.lit = set(lit)
        self.broken = False
        """Whether none can even say if it is lit."""
        self.tools = [self._lamp(name) for name in self.NAMES]

    def _lamp(self, name: str) -> FunctionTool:
        async def shine(context: ToolContext) -> str:
            """Shine."""
            return name

        def probe() -> bool:
            if self.broken:
                raise OSError("no current")
            return name in self.lit

        shine.__name__ = name
        return FunctionTool(shine, toolset="lamps", concurrent=True, available=probe)

    async def show_others(self, bench: Bench) -> None:
        """Begin as many conversations with other sets of tools as the catalogue keeps."""
        pairs = list(combinations(self.NAMES, 2))[:KEPT_SETS]
        for number, pair in enumerate(pairs):
            self.lit = set(pair)
            await bench.say("hello", ChatKey("test", f"another {number}"))
        await anyio.sleep(1)  # those over the limit have left
