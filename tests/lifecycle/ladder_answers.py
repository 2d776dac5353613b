"""What each command answers to one who comes alone, as the model of the ladder foretells it."""

from holdfast.core.messages import ToolMessage

from .ladder_chats import Chat, Row, Sent, Talk


def foretell(sent: Sent, now: float) -> str:
    chat, rest = sent.chat, sent.rest
    talk = chat.open or (chat.turn.talk if chat.turn else Talk(chat))
    match sent.command:
        case "stop":
            return "Stopped." if chat.turn else "Nothing is running."
        case "new":
            return _new(chat)
        case "model" if rest == talk.model:
            return f"The model is {rest} already."
        case "model":
            return f"From the next message on the model is {rest}. The conversation goes on."
        case "reasoning":
            return f"From the next message on the reasoning effort is {rest}."
        case "undo":
            return _undo(chat, talk, talk.asked[-int(rest or 1) :])
        case "resume":
            last = chat.last_ended
            return f"The earlier conversation goes on: {last.title or last.id}." if last else NOTHING_ENDED
        case _:
            return _status(chat, talk, now)


NOTHING_ENDED = "There is no earlier conversation here."


def _new(chat: Chat) -> str:
    dropped = len(chat.waiting)
    told = f" {dropped} waiting {'message was' if dropped == 1 else 'messages were'} dropped." if dropped else ""
    return "A new conversation begins" + ("; the old one is kept." if chat.open or chat.turn else ".") + told


def _undo(chat: Chat, talk: Talk, asked: list[Row]) -> str:
    if chat.queue:
        return "An answer is on its way; /stop it first, or wait for it."
    if not asked:
        return "There is nothing to undo."
    count = len(asked)
    what = "Your last message and its answer are" if count == 1 else f"Your last {count} messages and their answers are"
    used = any(isinstance(row.message, ToolMessage) and row.seq > asked[0].seq and not row.undone for row in talk.rows)
    return f"{what} undone." + (" What tools did meanwhile can't be undone." if used else "")


def _status(chat: Chat, talk: Talk, now: float) -> str:
    effort = f", reasoning effort {talk.controls.reasoning}" if talk.controls.reasoning else ""
    running = f"running for {now - chat.turn.started:.0f} s" if chat.turn else "nothing runs"
    lines = [f"Model: {talk.model} (scripted){effort}", f"Now: {running}, {len(chat.waiting)} waiting"]
    return "\n".join(lines)
