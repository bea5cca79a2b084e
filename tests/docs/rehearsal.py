"""Runs the examples of pages in the order in which a reader would, with the database in CHANCY_DSN.

A block that begins with the name of a file becomes that file, and a Python one is imported. The
other Python blocks share one namespace and one event loop. Commands run in a shell, and print
what the page shows, where ``…`` stands for anything. Of the SQL what says ``run`` is run.

``python -m tests.docs.rehearsal`` reads requests, see `Forks`, and runs each page in a process that
is forked from one that has imported chancy, its commands and its plugins: a process that starts
anew takes a second of CPU time for that. So are the commands of a page.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import importlib
import inspect
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from chancy import Chancy
from chancy.cli.main import COMMANDS, main
from tests.docs.pages import Block, Page
from tests.support.sql import ask, count

Perform = Callable[[list[str]], object]

#: Commands that are run; others are the reader's own business.
_RUN = ("chancy ", "python ", "pytest ")
#: Characters that a shell understands, besides quotes.
_OF_THE_SHELL = frozenset("$`|&;<>(){}*?~")
_DSN = re.compile(r"postgresql://[^\"'\s]*")
_PATIENCE_S = 60.0
#: Seconds for one page, all of its commands and programs: far above what a busy machine needs.
PAGE_S = 240
#: Blocks that are not run: for the reader alone, or code of another library on a page that
#: describes the move from it.
LEFT_OUT = frozenset({"no-run", "other"})


class Forks:
    """Asks for processes that are forked from one that has imported what they need.

    :param send: sends a line to that process, which runs `serve`.
    :param replies: the lines that it answers with.
    """

    def __init__(self, send: Callable[[str], object], replies: IO[str]) -> None:
        self._send = send
        self._replies = replies

    def run(self, words: list[str], environment: Mapping[str, str], output: Path) -> int:
        """Run a process with these words, in the folder of its output, to its end.

        :returns: its exit code.
        """
        self._send(json.dumps([words, dict(environment), str(output.absolute())]) + "\n")
        reply = self._replies.readline()
        assert reply, "the process that forks has ended"
        return int(reply)


def serve(requests: Iterable[str], reply: Callable[[str], object], perform: Perform) -> None:
    """In the process that forks: handle requests until their end."""
    for request in requests:
        words, environment, output = json.loads(request)
        pid = os.fork()
        if pid == 0:
            os.environ.clear()
            os.environ.update(environment)
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for number, opened in enumerate((os.open(os.devnull, os.O_RDONLY), file, file)):
                os.dup2(opened, number)
            os.chdir(Path(output).parent)
            perform(words)
            sys.exit()
        _, status = os.waitpid(pid, 0)
        reply(f"{os.waitstatus_to_exitcode(status)}\n")


class CommandLine:
    """Runs ``chancy`` in forks of this process, without a trace of the page.

    Make it before the page is run.
    """

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._ours.close()
            with theirs, theirs.makefile() as requests:
                serve(requests, lambda line: theirs.sendall(line.encode()), self._main)
            os._exit(0)
        theirs.close()
        self._ours.settimeout(_PATIENCE_S)
        self._replies = self._ours.makefile()
        self._forks = Forks(lambda line: self._ours.sendall(line.encode()), self._replies)

    def run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        """Run ``chancy`` with these words to its end, with this process's environment."""
        output = Path(".chancy-output")
        code = self._forks.run(words, os.environ, output)
        return subprocess.CompletedProcess(words, code, output.read_text(encoding="utf-8"))

    def close(self) -> None:
        self._replies.close()
        self._ours.close()
        os.waitpid(self._pid, 0)

    @staticmethod
    def _main(words: list[str]) -> None:
        sys.argv[:] = ["chancy", *words]
        main()


class Rehearsal:
    """One page, its files in the current directory."""

    def __init__(self, page: Page, dsn: str, chancy: CommandLine) -> None:
        self._page = page
        self._dsn = dsn
        self._chancy = chancy
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._runner = asyncio.Runner()
        self.done = 0

    def run(self) -> None:
        """Run every block; raises what the first one raises that does not work."""
        with self._runner:
            for block in self._page.blocks:
                if block.words & LEFT_OUT:
                    continue
                began = time.monotonic()
                self._perform(block)
                sys.stderr.write(f"{block} took {time.monotonic() - began:.1f} s\n")

    def _perform(self, block: Block) -> None:
        if block.file is not None:
            path = Path(block.file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        match block.language:
            case "console":
                self._type(block)
            case "sql" if "run" in block.words:
                ask(self._dsn, block.text)
            case "python" if is_worker(block):
                self._stop_by_signal(block)
            case "python" if "script" in block.words:
                self._call([sys.executable, str(block.file)], block, said="\n")
            case "python" if block.file is not None:
                self._import(block.file)
            case "python":
                self._execute(block)
            case _:
                return
        self.done += 1

    def _execute(self, block: Block) -> None:
        """Run a block here. Its lines have the numbers that they have in the page."""
        tree = ast.parse(block.text, str(block.page))
        ast.increment_lineno(tree, block.line - 1)
        code = compile(tree, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        made = eval(code, self._names)
        if inspect.iscoroutine(made):
            self._runner.run(made)

    def _import(self, file: str) -> None:
        name = file.removesuffix(".py").replace("/", ".")
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        importlib.import_module(name)

    def _stop_by_signal(self, block: Block) -> None:
        """Run a worker as a program, let it empty its queues, and stop it by SIGTERM."""
        text = _DSN.sub(self._dsn, block.text)
        program = Path(block.file or "program.py")
        program.write_text(text, encoding="utf-8")
        with subprocess.Popen([sys.executable, str(program)]) as process:
            deadline = time.monotonic() + _PATIENCE_S
            while not self._at_rest(process.pid):
                assert process.poll() is None, f"{block} ended by itself, with {process.poll()}"
                assert time.monotonic() < deadline, f"{block} does not empty its queues"
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            assert process.wait(_PATIENCE_S) == 0, f"{block} exited with {process.returncode}"

    def _at_rest(self, pid: int) -> bool:
        """Whether a worker of this process is registered, and no job is unfinished."""
        registered = "chancy.workers where pid = %s and queues <> '{}'"
        return count(self._dsn, registered, [pid]) > 0 and count(self._dsn) == 0

    def _type(self, block: Block) -> None:
        for command, output in commands(block):
            if command.startswith(_RUN):
                said = self._call(["bash", "-c", command], block)
                assert matches(said, output), (
                    f"{block}: $ {command}\nprinted\n{said}\nthe page shows\n{output}"
                )

    def _call(self, command: list[str], block: Block, *, said: str = "") -> str:
        """Run a command to its end; returns what it printed."""
        expected = next((int(word[5:]) for word in block.words if word.startswith("exit=")), 0)
        line, _, file = command[-1].partition(" > ")
        words = shlex.split(line)
        unquoted = re.sub("'[^']*'", "", line + file)
        if words[0] == "chancy" and not _OF_THE_SHELL & set(unquoted):
            done = self._chancy.run(words[1:])
            if file and done.returncode == expected:
                Path(file).write_text(done.stdout, encoding="utf-8")
                return ""
        else:
            done = subprocess.run(
                command,
                input=said,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=_PATIENCE_S,
            )
        assert done.returncode == expected, (
            f"{block}: {command[-1]} exited with {done.returncode}:\n{done.stdout}"
        )
        return done.stdout


def is_worker(block: Block) -> bool:
    """Whether a block is a program that runs a worker until it is told to stop."""
    return "wait_for_shutdown()" in block.text and "asyncio.run(" in block.text


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown below it."""
    found: list[tuple[str, str]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found:
            command, output = found[-1]
            if command.endswith("\\"):
                found[-1] = (f"{command[:-1].rstrip()} {line.strip()}", output)
            else:
                found[-1] = (command, f"{output}{line}\n")
    return [(command.partition("  #")[0].strip(), output) for command, output in found]


def matches(said: str, shown: str) -> bool:
    """Whether an output has the lines that a page shows, in their order.

    ``…`` stands for anything in its line, alone for any lines; spaces count once, empty
    lines not.
    """
    if not shown.strip():
        return True
    lines = [" ".join(line.split()) for line in shown.splitlines() if line.strip()]
    parts = [
        r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n"
        for line in lines
    ]
    there = "".join(" ".join(line.split()) + "\n" for line in said.splitlines() if line.strip())
    return re.fullmatch("".join(parts), there) is not None


def perform(words: list[str]) -> None:
    """Run one page in the current directory; it is killed if it takes too long."""
    (page,) = words
    signal.alarm(PAGE_S)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    chancy = CommandLine()
    sys.path.insert(0, os.getcwd())
    rehearsal = Rehearsal(Page(Path(page)), os.environ["CHANCY_DSN"], chancy)
    rehearsal.run()
    chancy.close()
    sys.stdout.write(f"{rehearsal.done} blocks done\n")


if __name__ == "__main__":
    # What commands import when they are run: those of the default plugins, and of migrations.
    Chancy("postgresql://localhost").hooks.components  # noqa: B018
    for module in (
        *(place.partition(":")[0] for place, _ in COMMANDS.values()),
        "alembic.command",
        "alembic.config",
        "chancy.worker.worker",
        "pydantic.main",
        "pydantic.types",
    ):
        importlib.import_module(module)
    # A process that ends would walk all of it.
    gc.freeze()
    serve(sys.stdin, lambda line: os.write(1, line.encode()), perform)
