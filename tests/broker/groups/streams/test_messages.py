from mainstem.broker.groups.streams.messages import JOIN, LEAVE, Heartbeat, HeartbeatAnswer


def test_what_is_left_out_has_not_changed():
    request = Heartbeat(member_id="m", epoch=JOIN)
    assert (request.topology, request.reported, request.process_id, request.rebalance_timeout_ms) == (None,) * 3 + (-1,)
    assert HeartbeatAnswer("m", LEAVE).tasks is None
