from mainstem.broker.groups.classic.messages import JoinAnswer, SyncAnswer
from mainstem.wire.errors import Code


def test_an_answer_without_more_is_a_refusal_with_nothing_in_it():
    refused = JoinAnswer(error=Code.unknown_member_id, member_id="m")
    assert (refused.generation, refused.leader, refused.members) == (-1, "", ())
    assert SyncAnswer(error=Code.unknown_member_id).assignment == b""
