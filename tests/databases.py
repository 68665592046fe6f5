"""A PostgreSQL server for tests, where its programs are installed."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from folkmoot.console.running.children import free_port
from tests.waiting import eventually

PATIENCE = 30.0


def programs() -> Path | None:
    """Where the server's programs are: Debian does not put them on the PATH."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


def why_no_postgresql() -> str | None:
    """Why there is no server to be had here; None if there is one."""
    if programs() is None:
        return "PostgreSQL is not installed"
    if find_spec("psycopg") is None:
        return "psycopg is not installed"
    if os.getuid() == 0 and not any(each.pw_name == "postgres" for each in pwd.getpwall()):
        return "PostgreSQL does not run as root, and there is no user postgres"
    return None


@contextmanager
def postgresql() -> Iterator[str]:
    """A fresh server without any durability; → the address of its database."""
    bin_folder = programs()
    assert bin_folder is not None
    user = "postgres" if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="folkmoot-postgresql-"))  # one that the user may enter
    try:
        if user is not None:
            shutil.chown(folder, user)
        options = ["--auth", "trust", "--username", "postgres", "--no-sync", "--encoding", "UTF8"]
        subprocess.run(
            [bin_folder / "initdb", *options, "--pgdata", folder / "data"],
            user=user,
            cwd=folder,
            check=True,
            capture_output=True,
            timeout=PATIENCE,
        )
        with _running(bin_folder, folder, user) as address:
            yield address
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(bin_folder: Path, folder: Path, user: str | None) -> Iterator[str]:
    port = free_port()
    settings = {
        "port": str(port),
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "fsync": "off",
    }
    words = [str(bin_folder / "postgres"), "-D", str(folder / "data")]
    words += [f"--{name}={value}" for name, value in settings.items()]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(words, user=user, cwd=folder, stdout=log, stderr=log)
    try:

        def is_ready() -> bool:
            assert server.poll() is None, (folder / "log").read_text()
            asked = [str(bin_folder / "pg_isready"), "--host", "127.0.0.1", "--port", str(port)]
            return subprocess.run(asked, capture_output=True, check=False).returncode == 0

        eventually(is_ready, PATIENCE)
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(signal.SIGINT)  # does not wait for clients
        try:
            server.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
