"""What the admin client of this process asks its log: for tests that count requests, which no load changes."""

from typing import Any

import pytest

from mainstem.client import topics


class Counting:
    """An admin client that notes the name of every call."""

    def __init__(self, client: Any, calls: list[str]) -> None:
        self._client, self._calls = client, calls

    def __getattr__(self, name: str) -> Any:
        self._calls.append(name)
        return getattr(self._client, name)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of all admin clients from now on, in a list that grows."""
    calls: list[str] = []
    admin = topics.admin
    monkeypatch.setattr(topics, "admin", lambda connection: Counting(admin(connection), calls))
    return calls
