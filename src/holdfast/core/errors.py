"""Every error that Holdfast raises on purpose. Each is named after what its receiver should do.

HoldfastError
├── SettingsError            fix the settings; the message is one line for the operator
├── StoreError               the store can't go on
│   ├── StoreFull            free disk space
│   ├── StoreReadOnly        make the folder writable
│   ├── StoreCorrupt         restore a backup
│   ├── StoreLocked          stop the other process
│   └── StoreTooNew          upgrade Holdfast
├── AlreadyRunning           another gateway owns this data folder
├── ModelError               the model did not answer
│   ├── RetryModel           ask the same model again, after a while
│   ├── FallBack             ask another model
│   ├── AskUser              only a person can mend it: a key, credit, a shorter conversation
│   └── GiveUp               nobody can mend it by asking again
├── ToolFailed               a tool could not do it; the model is told and decides
├── TryLater                 too much at once; the sender is told when to come back
│   └── Stopping             the gateway leaves; a channel keeps the message for the next one
├── DuplicateMail            one id, two different messages
└── NotFound                 there is no such thing

The message of an error that a user may see is one plain sentence without a key, a path or a stack.
"""


class HoldfastError(Exception):
    """Something went wrong."""


class SettingsError(HoldfastError):
    """The settings are wrong."""


class StoreError(HoldfastError):
    """The store can't go on."""


class StoreFull(StoreError):
    """The disk is full."""


class StoreReadOnly(StoreError):
    """The store can't be written to."""


class StoreCorrupt(StoreError):
    """The store's file is damaged."""


class StoreLocked(StoreError):
    """Another process holds the store."""


class StoreTooNew(StoreError):
    """The store was written by a newer Holdfast."""


class AlreadyRunning(HoldfastError):
    """Another gateway owns this data folder."""


class ModelError(HoldfastError):
    """The model did not answer. `code` is for programs, the message for people, `detail` for the log."""

    code = "model_error"

    def __init__(self, message: str, *, code: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.code = code or type(self).code
        self.detail = detail


class RetryModel(ModelError):
    """Ask the same model again. `after` is what the provider asked for, in seconds."""

    code = "model_unavailable"

    def __init__(self, message: str, *, after: float | None = None, code: str = "", detail: str = "") -> None:
        super().__init__(message, code=code, detail=detail)
        self.after = after


class FallBack(ModelError):
    """Ask another model."""

    code = "model_rejected"


class AskUser(ModelError):
    """Only a person can mend it."""

    code = "model_needs_attention"


class GiveUp(ModelError):
    """Asking again won't help."""

    code = "model_failed"


class ToolFailed(HoldfastError):
    """A tool could not do what it was asked; the message is the model's result."""


class TryLater(HoldfastError):
    """There is too much at once. `after` says in how many seconds to come back."""

    def __init__(self, message: str, *, after: float = 1.0) -> None:
        super().__init__(message)
        self.after = after


class Stopping(TryLater):
    """The gateway is stopping; its next start takes the message."""

    def __init__(self, message: str = "The gateway is stopping; try again in a moment.", *, after: float = 5.0) -> None:
        super().__init__(message, after=after)


class DuplicateMail(HoldfastError):
    """This id was used before, for another message."""


class NotFound(HoldfastError):
    """There is no such thing."""
