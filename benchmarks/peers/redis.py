"""Redis Streams: Debian's redis-server.

Settings, and why: an append-only file that is never fsynced (`appendfsync no`), which is the class of
the page cache that all others here are in: what was acknowledged survives the death of the process;
no snapshots, which would fork a copy of it in the middle of a measurement; the file is not rewritten
meanwhile. One stream holds all, since Redis has no partitions and works on one thread.
"""

from benchmarks.peers.base import DebianServer, disk_usage, greeting


class RedisServer(DebianServer):
    system = "redis"
    title = "Redis Streams"
    program = "redis-server"
    packages = ("redis", "hiredis")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self, program: str) -> list[str]:
        return [
            *(program, "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--dir", str(self.data), "--save", "", "--appendonly", "yes"),
            *("--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"),
        ]

    def is_answering(self) -> bool:
        return (greeting(self.port, b"PING\r\n") or b"").startswith(b"+PONG")

    def create_topic(self, topic: str, partitions: int) -> None:
        """A stream comes with its first entry, and has no partitions."""

    def delete_topic(self, topic: str) -> None:
        """All topics: what was deleted still lies in the append-only file, so that begins anew."""
        self.stop()
        for path in self.data.rglob("*"):
            if path.is_file():
                path.unlink()
        self.start()

    def stored_bytes(self, topic: str) -> int:
        """The append-only file, which has all topics since the last one was deleted."""
        return disk_usage(self.data)
