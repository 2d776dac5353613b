"""Twenty-three tools that do nothing, so that a prompt is as long as one with 25 real tools is.

They stand in for what an agent usually has. `HOLDFAST_TOOLS__MODULES=bench.standin_tools` adds them.
"""

import msgspec

from holdfast.core.errors import ToolFailed
from holdfast.core.protocols import ToolContext, ToolSpec

LEAST_BYTES = 350  # of JSON that a model is sent for each; a smaller stand-in would flatter the figures


class StandinTool(msgspec.Struct, frozen=True):
    spec: ToolSpec
    toolset: str = "standin"
    concurrent: bool = True

    def available(self) -> bool:
        return True

    async def run(self, context: ToolContext, arguments: str) -> str:
        raise ToolFailed(f"{self.spec.name} is a stand-in and does nothing.")


def _tool(name: str, description: str, **parameters: str) -> StandinTool:
    """A parameter is given as `type: what it is`; the first one is required."""
    properties = {}
    for parameter, text in parameters.items():
        kind, _, meaning = text.partition(": ")
        properties[parameter] = {"type": kind, "description": meaning}
    schema = {"type": "object", "properties": properties, "required": [next(iter(parameters))]}
    spec = ToolSpec(name, description, msgspec.Raw(msgspec.json.encode(schema)))
    if (size := len(msgspec.json.encode(spec))) < LEAST_BYTES:
        raise ValueError(f"the stand-in {name} takes {size} bytes; it must take {LEAST_BYTES}")
    return StandinTool(spec)


TOOLS = (
    _tool(
        "terminal",
        "Run a command in this session's shell, which keeps its folder.",
        command="string: The command line, as typed.",
        timeout="integer: Seconds before it is stopped.",
        background="boolean: Let it run on.",
    ),
    _tool(
        "process",
        "List, read, write to or end processes in the background.",
        action="string: One of list, read, write, wait, end.",
        id="string: Which process, as list names it.",
        input="string: What to write to it.",
    ),
    _tool(
        "write_file",
        "Write a text file, replacing what was there before.",
        path="string: Where, relative to the session's folder.",
        content="string: The new content of the file.",
        append="boolean: Add to the end instead.",
    ),
    _tool(
        "edit_file",
        "Replace a passage that occurs in a text file exactly once.",
        path="string: Which file, relative to the folder.",
        old="string: The passage as it stands there now.",
        new="string: What is to stand there.",
    ),
    _tool(
        "search_files",
        "Find lines in files that match a regular expression.",
        pattern="string: The expression to look for.",
        glob="string: Only files with such names, as *.py.",
        limit="integer: How many matches at most.",
    ),
    _tool(
        "delete_file",
        "Delete a file or an empty folder, for good.",
        path="string: What to delete, relative to the folder.",
        missing_ok="boolean: Say nothing when there is none.",
        dry_run="boolean: Only tell what would go.",
    ),
    _tool(
        "web_search",
        "Search the web; titles, addresses and extracts come back.",
        query="string: What to look for, in plain words.",
        count="integer: How many results to return.",
        since="string: Only newer pages than this.",
    ),
    _tool(
        "web_read",
        "Fetch a web page as readable text with its links numbered.",
        url="string: The full address of the page.",
        offset="integer: At which character to start.",
        limit="integer: How many characters to return.",
    ),
    _tool(
        "browser_open",
        "Open a page in the browser and return its outline.",
        url="string: The full address of the page to open.",
        new_tab="boolean: Keep the current page open too.",
        wait_for="string: Text that must be there.",
    ),
    _tool(
        "browser_click",
        "Click on an element of the page and return what changed.",
        ref="string: The element, as the outline names it.",
        button="string: One of left, middle or right.",
        double="boolean: Click on it twice.",
    ),
    _tool(
        "browser_type",
        "Type text into a field of the page, as a person would.",
        ref="string: The field, as the outline names it.",
        text="string: What to type into it, key by key.",
        submit="boolean: Press enter afterwards.",
    ),
    _tool(
        "browser_read",
        "Return the page's outline or text as it is now.",
        part="string: One of outline, text, links or console.",
        ref="string: Only what is inside this element.",
        limit="integer: How many characters to return.",
    ),
    _tool(
        "browser_screenshot",
        "Look at a picture of the page and answer a question.",
        question="string: What you would like to know.",
        ref="string: Only this element, not the page.",
        full="boolean: The page beyond the window.",
    ),
    _tool(
        "memory_save",
        "Remember a fact about the user or the work from now on.",
        fact="string: What to remember, in one sentence.",
        topic="string: A word under which to find it.",
        replaces="string: The fact it corrects.",
    ),
    _tool(
        "memory_search",
        "Recall facts that were saved before, best match first.",
        query="string: What you would like to know.",
        topic="string: Only facts saved under this word.",
        limit="integer: How many facts at most.",
    ),
    _tool(
        "history_search",
        "Search this chat's past conversations for a passage.",
        query="string: Words that the passage contains.",
        since="string: Only conversations after this date.",
        limit="integer: How many passages.",
    ),
    _tool(
        "schedule_job",
        "Let a task run later, once or again and again.",
        task="string: What is to be done, as you would ask it.",
        when="string: A time, or a cron expression.",
        zone="string: The time zone of that, by name.",
    ),
    _tool(
        "list_jobs",
        "List, pause, resume or delete this chat's scheduled jobs.",
        action="string: One of list, pause, resume, delete.",
        job="string: Which one, as list names them.",
        runs="integer: How many past runs to show.",
    ),
    _tool(
        "delegate",
        "Give a self-contained task to another agent for a report.",
        task="string: Everything it has to know and do.",
        tools="string: The toolsets it may use, by comma.",
        model="string: Another model than yours.",
    ),
    _tool(
        "ask_user",
        "Ask the user what you need to know before you go on.",
        question="string: One question, in a sentence or two.",
        choices="string: Possible answers, one a line.",
        default="string: What to assume without one.",
    ),
    _tool(
        "send_message",
        "Send a message to another chat of this user.",
        text="string: What to send, in simple Markdown.",
        chat="string: Where to, as channel and name or id.",
        file="string: A file of this session to attach.",
    ),
    _tool(
        "read_image",
        "Look at a picture in the folder and answer a question.",
        path="string: Which picture, relative to the folder.",
        question="string: What you would like to know.",
        detail="string: One of low, high or auto.",
    ),
    _tool(
        "todo",
        "Keep a list of a long task's steps and tick off the done ones.",
        action="string: One of show, add, tick, drop or clear.",
        step="string: The step's text, or its number.",
        after="integer: The step it comes after.",
    ),
)
