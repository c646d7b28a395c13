import msgspec

from mainstem.core.task import TaskState
from mainstem.standalone.tasks import (
    News,
    TasksWriter,
    failed_jobs,
    is_failing,
    jobs_tried_again,
    load_tasks,
    tasks_file,
    whole_tasks,
)

WAITS = TaskState("source fleet", "waiting", 3, "no answer", since_ms=1_000, retry_seconds=8.0)
JOB = TaskState("job enriched@1", "failed", 1, "rolled back", "bring it back")


def test_what_is_saved_is_loaded_while_it_is_the_same_process(tmp_path):
    assert load_tasks(tmp_path, [7], 0) == []
    TasksWriter(tmp_path, 7).save([WAITS])
    assert load_tasks(tmp_path, [None, 7], 0) == [WAITS]
    assert load_tasks(tmp_path, [8], 0) == []
    assert load_tasks(tmp_path, [None], 0) == []
    TasksWriter(tmp_path, 8, "spark-abc").save([JOB])
    assert load_tasks(tmp_path, [7, 8], 0) == [WAITS, JOB]
    tasks_file(tmp_path).write_text("torn")
    assert load_tasks(tmp_path, [7, 8], 0) == [JOB]


def test_a_task_works_again_when_it_has_run_for_a_while():
    again = msgspec.structs.replace(WAITS, state="running", since_ms=2_000)
    assert (again.seen_at(3_000).state, again.seen_at(3_000).error) == ("waiting", "no answer")
    assert (again.seen_at(17_000).state, again.seen_at(17_000).error) == ("running", "")


def test_each_change_is_told_once():
    news = News()
    running = TaskState("source fleet")
    failed = TaskState("source fleet", "failed", 2, "wrong password", "mend it", 0, 60.0, needs_a_person=True)
    tried = msgspec.structs.replace(failed, state="running").seen_at(1_000)
    seen = [running, WAITS, msgspec.structs.replace(WAITS, retry_seconds=0.0), running, failed, tried, failed]
    assert [list(news.of([state])) for state in seen] == [
        [],
        ["source fleet waits: no answer; retry in 8 s"],
        [],
        ["source fleet works again"],
        ["source fleet failed: wrong password (mend it); retry in 60 s"],
        [],
        [],
    ]


def test_what_waits_for_its_input_or_was_down_once_is_not_failing():
    idle = TaskState("job enriched@1", "idle", error="topic crm.customers has no schema yet")
    twice = msgspec.structs.replace(WAITS, failures=2)
    assert [is_failing(each) for each in (TaskState("a"), idle, twice, WAITS, JOB)] == [False, False, False, True, True]
    assert list(News().of([idle])) == []
    assert list(News().of([twice])) == []


def test_a_source_that_finds_nothing_is_told():
    news = News()
    idle = TaskState("source site", "idle", error="/var/acess.log is not there yet", needs_a_person=True)
    assert list(news.of([idle])) == ["source site waits: /var/acess.log is not there yet"]
    assert list(news.of([TaskState("source site")])) == ["source site goes on"]
    assert not is_failing(idle)


def test_of_what_has_parts_the_worst_counts():
    table = TaskState("sink lake: table a", "waiting", error="no column")
    worse = TaskState("sink lake: table b", "failed", error="no disk")
    index = TaskState("view planes@web, of planes.v2", error="")
    found = whole_tasks([TaskState("sink lake"), table, worse, TaskState("job a@1"), index])
    assert {name: (task.name, task.state, task.error) for name, task in found.items()} == {
        "sink lake": ("sink lake", "failed", "table b: no disk"),
        "job a@1": ("job a@1", "running", ""),
        "view planes@web": ("view planes@web", "running", ""),
    }


def test_of_jobs_that_do_not_run_it_is_told_why():
    tried = TaskState("job joined@2", "waiting", 1, "ValueError: 4", retry_seconds=8.0)
    tasks = [WAITS, JOB, tried, TaskState("job fine@1")]
    assert (list(failed_jobs(tasks)), jobs_tried_again(tasks)) == (["enriched@1"], {"joined@2": "ValueError: 4"})
