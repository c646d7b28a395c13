"""The one table of codes names types that exist."""

import importlib
import pkgutil

import pytest

import mainstem
from mainstem.core import CorruptData, MainstemError, Retriable, UserError
from mainstem.wire.errors import CODES, Code, MalformedFrame, RequestError, code_of

ROOMS = ("core", "records", "wire", "log", "broker")


def error_types() -> set[str]:
    names: set[str] = set()
    for room in ROOMS:
        package = importlib.import_module(f"mainstem.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"mainstem.{room}."):
            found = vars(importlib.import_module(module.name)).values()
            names |= {each.__name__ for each in found if isinstance(each, type) and issubclass(each, MainstemError)}
    return names


def test_every_row_names_a_type_of_ours():
    assert mainstem
    assert set(CODES) - error_types() == set()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError(Code.illegal_generation), Code.illegal_generation),
        (MalformedFrame("x"), Code.invalid_request),
        (CorruptData("x"), Code.corrupt_message),
        (UserError("x"), Code.invalid_request),
        (Retriable("x"), Code.coordinator_not_available),
        (MainstemError("x"), Code.unknown_server_error),
        (KeyError("x"), Code.unknown_server_error),
    ],
)
def test_the_code_of_an_error(error, code):
    assert code_of(error) is code


def test_a_subtype_has_the_code_of_its_nearest_parent():
    class OutOfTune(MalformedFrame):
        pass

    assert code_of(OutOfTune("x")) is Code.invalid_request


def test_a_request_error_says_what_its_code_means():
    assert str(RequestError(Code.not_coordinator)) == "not coordinator"
