from mainstem.serve.saved import NAME, Kept, Saved, load, save
from mainstem.serve.targets import Target


def test_it_comes_back_as_it_was_for_the_same_log(tmp_path):
    kept = Kept("delays@2", {"delays": "delays.v2"}, {"delays": "2"})
    saved = Saved("log", 41, {"delays": [kept]})
    save(tmp_path / "node", saved)
    assert load(tmp_path / "node", "log") == saved
    assert kept.target == Target({"delays": "delays.v2"}, {"delays": "2"})
    assert load(tmp_path / "node", "other") == Saved("other")


def test_what_is_missing_or_unreadable_says_nothing(tmp_path):
    assert load(tmp_path, "log") == Saved("log")
    (tmp_path / NAME).write_bytes(b"{")
    assert load(tmp_path, "log") == Saved("log")
