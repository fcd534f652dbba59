"""Errors a user can act on. Everything else that escapes is a bug."""


class UserError(Exception):
    """Bad input or configuration: printed as one sentence, exit code 2, never a traceback.

    The message names the file (and line) at fault and what to do about it.
    """


class MissingExtra(UserError):
    """An optional dependency is absent."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part: pip install 'agentic-data-analysis[{extra}]'")
