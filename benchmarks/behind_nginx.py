"""nginx with the configuration of the repository, as a child process on 127.0.0.1."""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SHIPPED = Path(__file__).parents[1] / "deploy" / "nginx.conf"
_MAIN = """daemon off;
worker_processes 1;
{user}
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {shipped}
}}
"""


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def configuration(folder: Path, port: int, services: Sequence[int], limits: bool = True) -> str:
    """Return the shipped configuration for these ports, without TLS, and if asked for without limits."""
    text = SHIPPED.read_text()
    text = re.sub(r"(?m)^ *ssl_certificate.*\n", "", text).replace("443 ssl", f"127.0.0.1:{port}")
    servers = "".join(f"server 127.0.0.1:{one} max_fails=1 fail_timeout=2s;\n" for one in services)
    text = re.sub(r"(?m)(^ *server 127\..*\n)+", servers, text)
    if not limits:
        text = re.sub(r"(?m)^ *limit_(req|conn) .*\n", "", text)
    # Workers that root starts are nobody's unless told, and could not write into the folder.
    user = "user root;" if os.getuid() == 0 else ""
    return _MAIN.format(folder=folder, shipped=text, user=user)


@contextmanager
def nginx(folder: Path, services: Sequence[int], limits: bool = True) -> Iterator[str]:
    """Start nginx in front of services at these ports; gives its URL. `limits` are those for each address."""
    port = free_port()
    (folder / "nginx.conf").write_text(configuration(folder, port, services, limits))
    with subprocess.Popen(_command(folder), stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(200):
                if process.poll() is not None:
                    raise SystemExit(f"nginx ends: {(folder / 'error.log').read_text()}")
                with socket.socket() as asking:
                    if asking.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def take_out(folder: Path, service: int) -> None:
    """Have nginx ask a service no more: mark it as down in the configuration, and reload that."""
    file, line = folder / "nginx.conf", f"server 127.0.0.1:{service} "
    file.write_text(file.read_text().replace(line, f"{line}down "))
    subprocess.run([*_command(folder), "-s", "reload"], check=True, capture_output=True)


def _command(folder: Path) -> list[str]:
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        raise SystemExit("first: apt-get install nginx-light")
    return [program, "-p", str(folder), "-c", str(folder / "nginx.conf")]
