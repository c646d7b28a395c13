from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.groups.modern.partitions import each
from mainstem.broker.groups.streams.assignor import TaskMember, assign_sticky
from mainstem.broker.groups.streams.configured import ConfiguredSubtopology
from mainstem.broker.groups.streams.tasks import Tasks
from mainstem.broker.groups.streams.topology import InternalTopic


def parts(**tasks):
    """Of these numbers of tasks; those with a capital letter have state."""
    return {
        name: ConfiguredSubtopology(count, (), (), (), (InternalTopic("c", count),) if name[0].isupper() else ())
        for name, count in tasks.items()
    }


def processes(**members):
    """Process: its members."""
    return {member: TaskMember(process) for process, names in members.items() for member in names}


def again(members, made):
    """The members with what they were assigned."""
    return {name: TaskMember(member.process_id, made.get(name, member.target)) for name, member in members.items()}


def numbers(made):
    return {name: len(list(each(tasks.active))) for name, tasks in made.items()}


def test_nobody_gets_nothing():
    assert assign_sticky({}, parts(a=3), 0) == {}
    assert assign_sticky(processes(p="m"), {}, 1) == {"m": Tasks()}


def test_everybody_gets_as_many():
    made = assign_sticky(processes(p="ab", q="cd"), parts(s=4, T=4), 0)
    assert numbers(made) == dict.fromkeys("abcd", 2)
    assert all(not tasks.standby and not tasks.warmup for tasks in made.values())


def test_tasks_stay_where_they_were():
    members = processes(p="a")
    made = assign_sticky(members, parts(s=6), 0)
    members |= processes(q="b")
    then = assign_sticky(again(members, made), parts(s=6), 0)
    assert numbers(then) == {"a": 3, "b": 3}
    assert set(each(then["a"].active)) < set(each(made["a"].active))
    assert assign_sticky(again(members, then), parts(s=6), 0) == then


def test_a_task_goes_where_its_state_is():
    members = processes(p="a", q="b", r="c")
    made = assign_sticky(members, parts(S=3), 1)
    (moved,) = each(made["a"].active)
    (heir,) = (name for name in "bc" if moved in set(each(made[name].standby)))
    del members["a"]
    then = assign_sticky(again(members, made), parts(S=3), 1)
    assert moved in set(each(then[heir].active))


def test_standbys_are_for_state_and_in_other_processes():
    made = assign_sticky(processes(p="ab", q="cd"), parts(s=4, T=4), 1)
    assert numbers(made) == dict.fromkeys("abcd", 2)
    standbys = [task for tasks in made.values() for task in each(tasks.standby)]
    assert sorted(standbys) == [("T", number) for number in range(4)]
    assert assign_sticky(processes(p="ab"), parts(T=4), 1)["a"].standby == {}


MEMBERS = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from("pqrs"), min_size=1)
PARTS = st.dictionaries(st.sampled_from(("s", "t", "U", "V")), st.integers(1, 6), max_size=4).map(lambda d: parts(**d))


@given(st.lists(st.tuples(MEMBERS, PARTS, st.integers(0, 2)), min_size=1, max_size=4))
def test_every_task_is_active_once_and_stands_by_as_often_as_it_can(steps):
    made = {}
    for members, subtopologies, standbys in steps:
        named = {name: TaskMember(process, made.get(name, Tasks())) for name, process in members.items()}
        made = assign_sticky(named, subtopologies, standbys)
        assert made.keys() == members.keys()
        active = Counter(task for tasks in made.values() for task in each(tasks.active))
        everything = {(name, n) for name, part in subtopologies.items() for n in range(part.tasks)}
        assert active == Counter(everything)
        assert max(numbers(made).values()) <= -(-len(everything) // len(members))
        has = Counter(
            (members[name], task) for name, tasks in made.items() for kind in tasks.kinds for task in each(kind)
        )
        assert set(has.values()) <= {1}, "a process has a task once"
        copies = Counter(task for tasks in made.values() for task in each(tasks.standby))
        most = min(standbys, len(set(members.values())) - 1)
        assert copies == Counter({task: most for task in everything if task[0].isupper() and most})


@given(MEMBERS, PARTS, st.integers(0, 2))
def test_active_tasks_stay_when_nothing_has_changed(members, subtopologies, standbys):
    named = {name: TaskMember(process) for name, process in members.items()}
    made = assign_sticky(named, subtopologies, standbys)
    then = assign_sticky(again(named, made), subtopologies, standbys)
    assert {name: tasks.active for name, tasks in then.items()} == {name: tasks.active for name, tasks in made.items()}
