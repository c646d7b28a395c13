"""Leader epochs as clients check them (KIP-320): the one node leads all, and its epoch rises at unclean starts."""

from mainstem.log import PartitionLog
from mainstem.wire.errors import Code, RequestError


def check_leader_epoch(partition_log: PartitionLog, epoch: int) -> None:
    """Compare what a client believes with what is; -1 says that it does not know.

    Raises:
        RequestError: FENCED_LEADER_EPOCH if the client's epoch is past, UNKNOWN_LEADER_EPOCH if it is to come.
    """
    if epoch in (-1, partition_log.leader_epoch):
        return
    code = Code.fenced_leader_epoch if epoch < partition_log.leader_epoch else Code.unknown_leader_epoch
    raise RequestError(
        code, f"{partition_log.topic_partition}: leader epoch {epoch}, expected {partition_log.leader_epoch}"
    )
