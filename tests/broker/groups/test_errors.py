from mainstem.broker.groups import errors
from mainstem.wire.errors import Code, code_of


def test_each_error_has_its_code():
    codes = {
        kind.__name__: code_of(kind("g", "because"))
        for kind in (
            errors.UnknownMember,
            errors.FencedInstance,
            errors.IllegalGeneration,
            errors.RebalanceInProgress,
            errors.InconsistentProtocol,
            errors.GroupNotEmpty,
            errors.UnknownGroup,
        )
    }
    assert codes == {
        "UnknownMember": Code.unknown_member_id,
        "FencedInstance": Code.fenced_instance_id,
        "IllegalGeneration": Code.illegal_generation,
        "RebalanceInProgress": Code.rebalance_in_progress,
        "InconsistentProtocol": Code.inconsistent_group_protocol,
        "GroupNotEmpty": Code.non_empty_group,
        "UnknownGroup": Code.group_id_not_found,
    }


def test_the_message_names_the_group():
    assert str(errors.UnknownMember("shop", "gone")) == "group shop: gone"
