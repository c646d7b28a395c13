"""The table of what is served."""

import pkgutil

from mainstem.broker import handlers
from mainstem.broker.handlers import load_handlers
from mainstem.broker.served import SERVED
from mainstem.wire import codec


def test_each_module_of_handlers_is_served():
    assert {each.name for each in pkgutil.iter_modules(handlers.__path__)} == {each.module for each in SERVED.values()}


def test_each_api_that_is_served_has_its_handler_with_these_versions():
    loaded = load_handlers()
    assert {key: (each.min_version, each.max_version) for key, each in loaded.items()} == {
        key: (each.min_version, each.max_version) for key, each in SERVED.items()
    }


def test_some_can_be_loaded_alone():
    assert set(load_handlers([18, 3])) == {18, 3}


def test_versions_that_are_served_are_versions_that_exist():
    for api_key, entry in SERVED.items():
        known = codec.supported_versions(api_key)
        assert {entry.min_version, entry.max_version, max(entry.advertised, min(known))} <= set(known)
