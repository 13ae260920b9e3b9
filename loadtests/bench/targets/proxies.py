"""`pilotlight node` behind a proxy, for comparison with our gateway in the same place, until SIGTERM.

    python -m loadtests.bench.targets.proxies nginx --port 8080 --model-dir FOLDER

The node listens on a unix socket, and the proxy keeps connections to it. Every proxy has one process or one
thread for requests, writes no access log, and has its configuration and all its files in a temporary folder.
`forwarder` is a bare one in Python, which does nothing but forward: the least that a hop over HTTP costs.
"""

from __future__ import annotations

import argparse
import getpass
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from loadtests.bench.targets.processes import exit_on_sigterm, run_process

_NODE = [sys.executable, "-c", "from serving.cli import main; main()", "node"]
_START_SECONDS = 60.0

_NGINX = """\
{user}
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000000;
  client_max_body_size 64m;
  client_body_buffer_size 4m;
  upstream node {{
    server unix:{socket};
    keepalive 512;
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{
      proxy_pass http://node;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }}
  }}
}}
"""

_HAPROXY = """\
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend clients
  bind 127.0.0.1:{port}
  default_backend nodes
backend nodes
  server node unix@{socket}
"""


def nginx_command(folder: Path, port: int, socket: Path) -> list[str]:
    # As root nginx would run its worker as another user, who cannot open the socket.
    user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""
    file = folder / "nginx.conf"
    file.write_text(_NGINX.format(user=user, folder=folder, port=port, socket=socket))
    return [_find_program("nginx"), "-p", str(folder), "-c", str(file), "-e", "stderr"]


def haproxy_command(folder: Path, port: int, socket: Path) -> list[str]:
    file = folder / "haproxy.cfg"
    file.write_text(_HAPROXY.format(port=port, socket=socket))
    return [_find_program("haproxy"), "-db", "-f", str(file)]


def forwarder_command(_: Path, port: int, socket: Path) -> list[str]:
    return [sys.executable, "-m", "loadtests.bench.targets.forwarder", str(port), str(socket)]


PROXY_COMMANDS: dict[str, Callable[[Path, int, Path], list[str]]] = {
    "nginx": nginx_command,
    "haproxy": haproxy_command,
    "forwarder": forwarder_command,
}


def main() -> int:
    """Serve until SIGTERM; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench.targets.proxies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("proxy", choices=list(PROXY_COMMANDS), help="what stands in front of the node")
    parser.add_argument("--port", type=int, required=True, help="port to listen on")
    parser.add_argument("--model-dir", type=Path, required=True, help="folder of the model")
    options, more = parser.parse_known_args()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="pilotlight-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        socket = folder / "node.sock"
        command = PROXY_COMMANDS[options.proxy](folder, options.port, socket)
        node = [*_NODE, "--uds", str(socket), "--model-dir", str(options.model_dir), *more]
        stack.enter_context(run_process(node))
        _wait_for_socket(socket)
        return stack.enter_context(run_process(command)).wait()


def _wait_for_socket(socket: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while not socket.exists():
        if time.monotonic() > end:
            raise SystemExit("the node did not start")
        time.sleep(0.02)


def _find_program(program: str) -> str:
    """The path of a program; proxies are often in folders that only root has in PATH."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin:/sbin")
    if path is None:
        raise SystemExit(f"{program} is not installed")
    return path


if __name__ == "__main__":
    sys.exit(main())
