import pytest

from mainstem.serve.build import Build
from mainstem.serve.config import ViewConfig
from mainstem.serve.targets import Target
from mainstem.serve.view import NoSuchVersion, View


def view_with(*versions, names=("t",)):
    config = ViewConfig("sql", list(names))
    view = View("v", config)
    for version in versions:
        target = Target({"t": f"t.v{version}"}, {"t": version})
        view.builds[f"v@{version}"] = Build("v", config, f"v@{version}", target)
    view.current = next(iter(view.builds.values()), None)
    return view


def test_before_the_catalog_is_read_nothing_can_be_said():
    view = view_with()
    assert (view.topics, view.position, view.versions, view.is_ready, view.columns) == ([], {}, {}, False, {})
    assert view.chosen(None) is None
    assert view.chosen("2") is None
    assert view.told() == view.why == "the catalog is not read yet"


def test_the_current_version_is_asked_unless_another_is_named():
    view = view_with("2", "1", "3")
    view.moving = view.builds["v@3"]
    assert view.chosen(None) is view.chosen("2") is view.builds["v@2"]
    assert view.chosen("1") is view.builds["v@1"]
    assert (view.topics, view.versions) == (["t.v2"], {"t": "2"})
    for version in ("3", "4"):  # one that is to come has perhaps not what was there
        with pytest.raises(NoSuchVersion, match=f"found '{version}'") as caught:
            view.chosen(version)
        assert caught.value.hint == "it has: 2, 1"
