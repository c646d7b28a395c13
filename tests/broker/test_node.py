"""A directory and its broker are opened and closed together."""

import asyncio
import socket

import pytest

from mainstem.broker.config import BrokerConfig
from mainstem.broker.errors import AddressInUse
from mainstem.broker.node import serving
from mainstem.log import LogConfig, LogDirectoryInUse

ANY_PORT = BrokerConfig(port=0)


def test_a_directory_serves_one_broker_at_a_time_and_again_afterwards(tmp_path):
    async def check() -> None:
        async with serving(tmp_path, ANY_PORT, LogConfig()) as broker:
            cluster_id = broker.topics.cluster_id
            with pytest.raises(LogDirectoryInUse):
                async with serving(tmp_path, ANY_PORT, LogConfig()):
                    pass
        async with serving(tmp_path, ANY_PORT, LogConfig()) as broker:
            assert broker.topics.cluster_id == cluster_id

    asyncio.run(check())


def test_a_broker_that_cannot_listen_lets_go_of_the_directory(tmp_path):
    async def check() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(AddressInUse):
                async with serving(tmp_path, BrokerConfig(port=taken.getsockname()[1]), LogConfig()):
                    pass
        async with serving(tmp_path, ANY_PORT, LogConfig()):
            pass

    asyncio.run(check())
