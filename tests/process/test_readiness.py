from mainstem.client.catalog import CURRENT
from mainstem.client.progress import Marker
from mainstem.process.readiness import Look, Pin, lacks


def about(output, *streams, tables=()):
    return {"output": output, "inputs": {each: each for each in (*streams, *tables)}, "tables": list(tables)}


def seen(jobs, read, ends):
    """What is there: versions by `<job>@<version>`, and how far each has read, partition 0 of each topic."""
    catalog, markers = {}, {}
    for key, each in jobs.items():
        job, _, version = key.partition("@")
        entry = catalog.setdefault(f"job:{job}", {"versions": {}, "current": version})
        entry["versions"][version] = each
    for key, topics in read.items():
        job, _, version = key.partition("@")
        markers[key] = Marker(job, version, "", 0, {"s": {topic: {0: end} for topic, end in topics.items()}})
    return Look(catalog, markers, {topic: {0: end} for topic, end in ends.items()})


JOBS = {"sums@1": about("sums", "orders", tables=["rates"]), "sums@2": about("sums.v2", "orders", tables=["rates"])}


def test_a_version_is_ready_once_it_has_read_what_the_current_one_had_when_it_was_asked():
    """Not once its lag is small: what comes meanwhile does not matter."""
    pin = Pin(seen(JOBS, {"sums@1": {"orders": 50}}, {"orders": 60}), "sums", "1")
    assert pin.positions == {"orders": {0: 50}}
    counts = [
        pin.missing(seen(JOBS, {"sums@1": {"orders": 500}, "sums@2": {"orders": at}}, {"orders": 500}), "sums", "2")
        for at in (0, 49, 50, 500)
    ]
    assert counts == [50, 1, 0, 0]
    assert pin.missing(seen(JOBS, {}, {"orders": 500}), "sums", "2") == 50  # it has not begun


def test_a_version_that_reads_another_ones_output_is_measured_by_what_that_is_made_of():
    jobs = JOBS | {"top@1": about("top", "sums"), "top@2": about("top.v2", "sums.v2")}
    pin = Pin(seen(jobs, {"top@1": {"sums": 8}, "sums@1": {"orders": 50}}, {}), "top", "1")
    assert pin.positions == {"sums": {0: 8}, "orders": {0: 50}}
    read = {"sums@2": {"orders": 40}, "top@2": {"sums.v2": 9}}
    assert (
        pin.missing(seen(jobs, read, {"sums.v2": 9}), "top", "2") == 10
    )  # at the end of what has not been written yet
    read["sums@2"] = {"orders": 50}
    assert pin.missing(seen(jobs, read, {"sums.v2": 12}), "top", "2") == 3
    assert pin.missing(seen(jobs, read, {"sums.v2": 99}), "top", "2") == 3  # pinned by now
    read["top@2"] = {"sums.v2": 12}
    assert pin.missing(seen(jobs, read, {"sums.v2": 99}), "top", "2") == 0


def test_what_only_the_other_version_reads_is_pinned_at_its_end():
    jobs = JOBS | {"sums@3": about("sums.v3", "orders", "returns")}
    pin = Pin(seen(jobs, {"sums@1": {"orders": 5}}, {}), "sums", "1")
    assert pin.missing(seen(jobs, {"sums@3": {"orders": 5}}, {"returns": 7}), "sums", "3") == 7
    assert pin.missing(seen(jobs, {"sums@3": {"orders": 5, "returns": 7}}, {"returns": 70}), "sums", "3") == 0


def test_a_version_is_ready_once_it_has_closed_the_windows_that_the_current_one_had():
    """It writes them a batch after it has read their rows: whoever came to it before would miss them."""
    jobs = {key: each | {"windows_by": "at"} for key, each in JOBS.items()}

    def now(heard, jobs=jobs):
        markers = {key: Marker("sums", key[-1], "", 0, {}, event_time=each) for key, each in heard.items()}
        catalog = {"job:sums": {"versions": {key[-1]: each for key, each in jobs.items()}}}
        return Look(catalog, markers, {})

    pin = Pin(now({"sums@1": 9_000}), "sums", "1")
    found = [pin.open_ms(now({"sums@1": 90_000, "sums@2": at}), "sums", "2") for at in (0, 8_000, 9_000, 90_000)]
    assert found == [9_000, 1_000, 0, 0]
    assert pin.open_ms(now({}), "sums", "2") == 9_000
    other = jobs | {"sums@2": jobs["sums@2"] | {"windows_by": "sent"}}
    assert pin.open_ms(now({"sums@2": 0}, other), "sums", "2") == 0  # times of another column say nothing


def test_a_catalog_in_which_jobs_read_themselves_holds_nobody_up():
    jobs = {"a@1": about("a", "b"), "b@1": about("b", "a"), "a@2": about("a.v2", "c"), "b@2": about("c", "a.v2")}
    now = seen(jobs, {"a@1": {"b": 5}}, {})
    assert Pin(now, "a", "1").missing(now, "a", "2") == 0


def test_of_what_is_missing_only_what_is_missing_counts():
    assert lacks({0: 5, 1: 20}, {0: 10, 1: 10, 2: 3}) == 8
    now = Look({"job:a": {"versions": {"1": {}}, "current": ""}, CURRENT: {"jobs": {}}}, {}, {})
    assert (now.current, now.about("a", "1"), now.about("b", "1"), now.writer("t")) == ({"a": ""}, {}, {}, None)


def test_an_output_ends_behind_what_its_last_commit_says_though_the_broker_is_not_done_with_it():
    marker = Marker("a", "1", "", 3, {}, ends={"a": {0: 9, 1: 2}})
    assert Look({}, {"a@1": marker}, {"a": {0: 5, 1: 30}}).end("a") == {0: 9, 1: 30}


def test_windows_that_are_left_are_told_for_people():
    """Of a version that had closed none it was windows of 1,795,341,600 s: all since 1970."""
    jobs = {key: each | {"windows_by": "at"} for key, each in JOBS.items()}

    def now(first, second):
        markers = {f"sums@{version}": Marker("sums", version, "", 0, {}, event_time=at) for version, at in
                   (("1", first), ("2", second))}  # fmt: skip
        return Look({"job:sums": {"versions": {key[-1]: each for key, each in jobs.items()}}}, markers, {})

    at = 1_795_341_600_000
    told = [Pin(now(first, 0), "sums", "1").open_windows(now(first, second), "sums", "2") for first, second in (
        (at, at), (at, at - 90_000), (at, 0), (1 << 53, 0), (1 << 53, at), (0, 0),
    )]  # fmt: skip
    assert told == [
        "",
        "has windows of 90 s to close",
        "has closed no window yet",
        "has closed no window yet",
        "has its last windows to close",
        "",
    ]
