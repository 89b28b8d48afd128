"""A process that has everything loaded and forks once per command, so that the commands of a page start at once.

``python -m tests.docs.warm SOCKET`` serves; :class:`Warm` starts it and puts a ``jointensor`` and a ``python`` into a
folder, which send their arguments to it. Loading PyTorch for every command of every page would take minutes.
"""

from __future__ import annotations

import array
import importlib
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

LOADED = (
    "jointensor.cli.options", "jointensor.cli.screen", "jointensor.data.generate", "jointensor.estimator",
    "jointensor.runs.pipeline", "jointensor.runs.compare", "jointensor.runs.select",
    "jointensor.runs.report", "jointensor.reproduce.experiments", "jointensor.kernels.numba_kriging",
    "jointensor.kernels.numba_rows", "jointensor.testing", "matplotlib.pyplot",
    "torch._dynamo",  # what PyTorch loads with the first optimiser, for more than a second
)  # fmt: skip
"""Modules that are loaded before the first command. Nothing is computed: threads would not survive a fork."""

CLIENT = """#!{python} -IS
import json, os, socket, sys
if {name!r} == "python" and (len(sys.argv) < 2 or sys.argv[1] in ("-m", "-c")):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect({path!r})
order = dict(name={name!r}, arguments=sys.argv[1:], folder=os.getcwd(), environment=dict(os.environ))
socket.send_fds(server, [json.dumps(order).encode() + b"\\n"], [0, 1, 2])
server.shutdown(socket.SHUT_WR)
sys.exit(int(server.recv(16) or b"70"))
"""


class Warm:
    """The server, and the environment in which its commands are found first."""

    def __init__(self, folder: Path) -> None:
        path = folder / "socket"
        bin_ = folder / "bin"
        bin_.mkdir()
        for name in ("jointensor", "python"):
            script = bin_ / name
            script.write_text(CLIENT.format(python=sys.executable, path=str(path), name=name), encoding="utf-8")
            script.chmod(0o755)
        own = {
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "MPLBACKEND": "agg",
            "NO_COLOR": "1",
            "COLUMNS": "80",
        }
        own |= {"PYTHONUTF8": "1", "TZ": "UTC"}
        rest = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, **own, "PATH": f"{bin_}:{rest}"}
        command = [sys.executable, "-m", "tests.docs.warm", str(path)]
        root = Path(__file__).resolve().parents[2]
        self.server = subprocess.Popen(
            command, cwd=root, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == "ready\n"

    def run(self, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """What a command prints, on stdout and stderr together, as on a screen."""
        return subprocess.run(
            command, cwd=folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            encoding="utf-8", check=False,
        )  # fmt: skip

    def close(self) -> None:
        """End the server."""
        self.server.communicate()


def serve(path: str) -> None:
    """Fork for every order that comes in, until stdin is closed."""
    for name in LOADED:
        importlib.import_module(name)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        if sys.stdin in select.select([listening, sys.stdin], [], [])[0]:
            return  # whoever started this is gone
        client, _ = listening.accept()
        with client:
            order, files = _receive(client)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries that are only loaded
                child = os.fork()
            if child == 0:
                _work(order, files)
            for file in files:
                os.close(file)
            client.sendall(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def _receive(client: socket.socket) -> tuple[dict, list[int]]:
    files = array.array("i")
    data, more, _, _ = socket.recv_fds(client, 1 << 16, 3)
    files.extend(more)
    while not data.endswith(b"\n"):
        data += client.recv(1 << 16)
    return json.loads(data), list(files)


def _work(order: dict, files: list[int]) -> None:
    """Do what was asked as a process of its own would, and leave."""
    code = 1
    try:
        for target, file in enumerate(files):
            os.dup2(file, target)
        sys.stdin, sys.stdout, sys.stderr = (  # those of the server were made for files of another kind
            os.fdopen(target, mode, encoding="utf-8", closefd=False) for target, mode in enumerate("rww")
        )
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        code = _call(order["name"], order["arguments"])
    except BaseException:  # noqa: BLE001 - the parent must not get to see it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _call(name: str, arguments: list[str]) -> int:
    try:
        if name == "python":
            sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).resolve().parent)
            warnings.simplefilter("error")
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            from jointensor.cli import main

            sys.argv = [name, *arguments]
            main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    serve(sys.argv[1])
