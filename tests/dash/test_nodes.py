import socket
import threading

import msgspec
import pytest

from mainstem.client.basis import HEADER, parse
from mainstem.dash import nodes as module
from mainstem.dash.nodes import NoAnswer, Nodes, NotThere, TooMuch, UnknownView
from mainstem.serve.config import ServeConfig, ViewConfig
from tests.support.ports import free_port

TABLES = {"answers": ServeConfig({"planes": ViewConfig("key-value", "planes")})}


@pytest.fixture
def server():
    """Takes one connection, and says what a test wants it to; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads = []

        def start(*parts, stay=False):
            def answer():
                taken, _ = listener.accept()
                with taken:
                    taken.recv(1 << 16)
                    for part in parts:
                        taken.sendall(part)
                    if stay:
                        taken.recv(1)  # until the other side goes

            threads.append(threading.Thread(target=answer))
            threads[-1].start()
            return f"127.0.0.1:{listener.getsockname()[1]}"

        yield start
        for thread in threads:
            thread.join()


def at(address, tables=TABLES):
    return Nodes(tables, lambda: {"node:answers": {"address": address}, "node:other": {"address": "127.0.0.1:1"}})


def rows(nodes):
    return nodes.ask("answers", "planes", "rows", "", None, None)


def test_a_view_is_asked_and_its_token_comes_back(views):
    about = views.nodes.about("answers", "planes")
    assert (about.kind, about.key, about.versions) == ("key-value", ["tailnum"], True)
    assert "planes (tailnum, manufacturer, seats)" in views.nodes.about("answers", "flights").tables
    basis = views.fleet.write(views.fleet.planes, ("N900", "CESSNA", 4))
    answer = views.nodes.ask("answers", "planes", "row", "tailnum=N900", None, basis.token)
    assert (answer.status, msgspec.json.decode(answer.body)["row"]["seats"]) == (200, 4)
    assert parse(answer.basis).positions["planes"].items() >= basis.positions["planes"].items()
    sql = msgspec.json.encode({"sql": "SELECT count(*) FROM planes"})
    answer = views.nodes.ask("answers", "flights", "query", "", sql, basis.token)
    assert msgspec.json.decode(answer.body)["rows"] == [[251]]
    assert views.nodes.ask("answers", "planes", "row", "tailnum=none", None, None).status == 404


def test_all_nodes_tell_of_their_views(views):
    assert views.nodes.look()["answers"]["planes"]["ready"] is True


def test_only_nodes_of_the_project_are_asked():
    nodes = at(f"127.0.0.1:{free_port()}")
    for node, view in (("other", "planes"), ("answers", "none"), ("answers", "../health")):
        with pytest.raises(UnknownView, match="no such view"):
            nodes.ask(node, view, "rows", "", None, None)
        with pytest.raises(UnknownView):
            nodes.about(node, view)
    assert list(nodes.look()) == ["answers"]


def test_who_does_not_answer_is_told_in_a_line():
    nodes = at(f"127.0.0.1:{free_port()}")
    with pytest.raises(NotThere, match="Connection refused"):
        rows(nodes)
    assert "Connection refused" in nodes.look()["answers"]
    with pytest.raises(NoAnswer, match="not told the log"):
        rows(Nodes(TABLES, dict))
    assert "not told the log" in Nodes(TABLES, dict).look()["answers"]


def test_a_node_that_moved_is_found_again(server):
    nodes = at(server(b"HTTP/1.1 200 OK\r\nMainstem-Basis: ms1.x\r\nContent-Length: 2\r\n\r\n{}"))
    nodes.see({"node:answers": {"address": f"127.0.0.1:{free_port()}"}})
    answer = rows(nodes)
    assert (answer.body, answer.basis) == (b"{}", "ms1.x")
    assert HEADER == "Mainstem-Basis"


def test_a_redirection_is_not_followed(server):
    answer = rows(at(server(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")))
    assert answer.status == 302


@pytest.mark.parametrize(
    ("said", "stay", "error", "match"),
    [
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"], False, NoAnswer, "ended in the middle"),
        ([b"nonsense\r\n\r\n"], False, NoAnswer, "ended in the middle"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"], True, NoAnswer, "no answer within 0.2 s"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n" + b"x" * 2000], True, TooMuch, "more than"),
    ],
)
def test_answers_are_bounded(server, monkeypatch, said, stay, error, match):
    monkeypatch.setattr(module, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(module, "MOST_ANSWER_BYTES", 1000)
    with pytest.raises(error, match=match):
        rows(at(server(*said, stay=stay)))


def test_closing_ends_what_is_asked(server):
    nodes = at(server(stay=True))
    failed = []

    def ask():
        with pytest.raises(NoAnswer) as found:
            rows(nodes)
        failed.append(str(found.value))

    thread = threading.Thread(target=ask)
    thread.start()
    while not failed:
        nodes.close()
        thread.join(0.05)
    assert "ended in the middle" in failed[0]
