"""NATS JetStream: Debian's nats-server, streams in files.

Settings, and why: its default of flushing (every two minutes, so the page cache), file storage and one
replica, like the others; one stream holds all, its subjects carry the keys.
"""

from benchmarks.peers.base import DebianServer, disk_usage, greeting


class NatsServer(DebianServer):
    system = "nats"
    title = "NATS JetStream"
    program = "nats-server"
    packages = ("nats-py",)

    @property
    def address(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def command(self, program: str) -> list[str]:
        listening = ["--addr", "127.0.0.1", "--port", str(self.port)]
        return [program, *listening, "--jetstream", "--store_dir", str(self.data)]

    def is_answering(self) -> bool:
        return (greeting(self.port) or b"").startswith(b"INFO")

    def create_topic(self, topic: str, partitions: int) -> None:
        """A stream, which has no partitions."""
        self.request("create", topic=topic)

    def delete_topic(self, topic: str) -> None:
        self.request("delete", topic=topic)

    def stored_bytes(self, topic: str) -> int:
        return sum(disk_usage(each) for each in self.directory.rglob(f"streams/{topic}"))
