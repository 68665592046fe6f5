"""How a producer finds brokers: in ZooKeeper, or at addresses that it was given."""

from typing import Any

from folkmoot.coordination.connector import connector
from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.network.bootstrap import Bootstrap
from folkmoot.producers.config import ProducerConfig


def discovery_of(config: ProducerConfig[Any, Any]) -> ZooKeeperDiscovery | Bootstrap:
    """What gives addresses of brokers when it is called; to be opened before, and closed."""
    if config.bootstrap:
        return Bootstrap(config.bootstrap, config.client_id, config.request_timeout)
    connect = connector(config.zookeeper)
    return ZooKeeperDiscovery(connect, config.session_timeout, config.listener)
