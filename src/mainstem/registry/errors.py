"""What the registry refuses, with Confluent's error codes: clients switch on the code, people read the line.

    RegistryError                      `status` is the HTTP status, `code` the five digits of the API
    ├── InvalidSchema                  42201: the text is not a schema
    ├── IncompatibleSchema             409: readers or old data would break; `reasons` says where and why
    ├── NotFound                       404xx: no such subject, version, schema, setting
    ├── NotPermitted                   422xx: the request contradicts the mode, a reference or the rules
    └── StoreUnavailable (Retriable)   50001: the log did not take or give back a record in time

The codes: https://docs.confluent.io/platform/current/schema-registry/develop/api.html#errors
"""

from mainstem.core.errors import Retriable, UserError


class RegistryError(UserError):
    """A request to the registry that cannot be answered with what was asked for."""

    status = 422
    code = 422

    def __init__(self, message: str, *, code: int | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        if code is not None:
            self.code = code


class InvalidSchema(RegistryError):
    """The text is not a schema; `pointer` is the place in it (a JSON pointer)."""

    code = 42201

    def __init__(self, message: str, *, pointer: str = "") -> None:
        super().__init__(f"{pointer or '/'}: {message}")
        self.pointer = pointer


class IncompatibleSchema(RegistryError):
    """The schema breaks the subject's compatibility level."""

    status = 409
    code = 409

    def __init__(self, message: str, reasons: list[str], *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reasons = reasons


class NotFound(RegistryError):
    """No such subject (40401), version (40402), schema (40403), or it is (or is not) soft-deleted (40404-40409)."""

    status = 404
    code = 40401


class NotPermitted(RegistryError):
    """The mode forbids it (42205), it is still referenced (42206), or an argument is out of its range (42202-42204)."""

    status = 422
    code = 42205


class StoreUnavailable(Retriable):
    """The log did not acknowledge or give back a record in time: nothing is known to be stored; try again."""

    status = 500
    code = 50001
