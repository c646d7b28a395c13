"""Logs: one line per event on stderr; the event is a constant, the facts are keys."""

import contextlib
import logging
import sys
from typing import cast

import structlog


class Lines(structlog.PrintLogger):
    """Prints lines, and drops those that cannot be printed:
    a full disk or a closed pipe must not end what is told of.
    """

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = fatal = failure = err = error = critical = exception = msg


def configure(process: str, *, level: str = "info", as_json: bool | None = None) -> None:
    """Set up logging for this process, once, at its start.

    Args:
        process: bound to every line, e.g. `log`, `gateway`, `connect`.
        level: the least severe level that is printed.
        as_json: JSON lines for programs; None prints them where stderr is not a terminal.
    """
    as_json = not sys.stderr.isatty() if as_json is None else as_json
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_: Lines(sys.stderr),  # as it is now: tests and tools replace it
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(process=process)


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """A logger; call it as `log.info("segment_rolled", topic=..., base_offset=...)`."""
    return cast("structlog.typing.FilteringBoundLogger", structlog.get_logger())
