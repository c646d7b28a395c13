"""`job cutover` returns when the views of lakehouses have followed, or says which have not."""

from pathlib import Path

from mainstem.connect.sinks.delta_views import write_views
from mainstem.core import ManualClock
from mainstem.core.locks import DirectoryLock
from mainstem.process.cutover import Move
from mainstem.standalone.moved_views import moved_views, wait_for_views
from tests.standalone.project import write_project

MOVES = [
    Move("sums", "2", "1", "sums.v2", {"sums.v2": {0: 5}}),
    Move("paid", "2", "1", "paid.v2", {"paid.v2": {0: 0}, "refunds.v2": {0: 4}}, ["refunds.v2"]),
    Move("empty", "2", "1", "empty.v2", {"empty.v2": {0: 0}}),
]


def test_only_views_of_tables_that_there_will_be_are_told(tmp_path):
    places = {"lake": tmp_path / "lake", "tops": tmp_path / "tables"}
    patterns = {"lake": ".*", "tops": "top.*"}

    def seen():
        return [
            (each.lakehouse, Path(each.path), Path(each.table), each.moved)
            for each in moved_views(places, patterns, MOVES)
        ]

    wanted = [
        ("lake", tmp_path / "lake-views" / name, tmp_path / "lake" / f"{name}.v2") for name in ("sums", "refunds")
    ]
    assert seen() == [(*each, False) for each in wanted]
    write_views(tmp_path / "lake", tmp_path / "lake-views", {"sums": "sums.v2", "refunds": "refunds.v2"})
    assert seen() == [(*each, True) for each in wanted]


def test_views_are_waited_for_while_the_project_is_up(tmp_path):
    project, data, clock = write_project(tmp_path / "project"), tmp_path / "data", ManualClock()
    with (project / "mainstem.toml").open("a") as settings:
        settings.write('[sinks.lake]\ntype = "delta"\n')
    assert wait_for_views(project, data, MOVES) == []
    with DirectoryLock(data):
        late = wait_for_views(project, data, MOVES, clock=clock, pause=lambda _: clock.advance_ms(10_000))
        assert [each.moved for each in late] == [False, False]

        def follow(_):
            write_views(data / "tables", data / "views", {"sums": "sums.v2", "refunds": "refunds.v2"})

        found = wait_for_views(project, data, MOVES, clock=clock, pause=follow)
        assert [(each.path, each.moved) for each in found] == [
            (str(data / "views" / name), True) for name in ("sums", "refunds")
        ]
