"""Settings of subjects, which the registry's client has no call for."""

import urllib.parse

import httpx

from mainstem.registry import Registry


def take_any_schema(registry: Registry, subject: str) -> None:
    """From now on no version of `subject` need be compatible with others."""
    url = f"{registry.url}/config/{urllib.parse.quote(subject, safe='')}"
    httpx.put(url, json={"compatibility": "NONE"}).raise_for_status()
