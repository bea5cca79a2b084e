"""The ``chancy`` program: its commands, each imported on first use, and their exit codes."""

from __future__ import annotations

import errno
import importlib
import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

import click

from chancy.cli.exits import PIPE, code_of, complain
from chancy.plugin.commands import OFFER, refuse
from chancy.text import nearest

#: The location and the help line of each command, so that `chancy --help` imports none of them.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "bench": ("chancy.cli.bench:bench", "Print the sizes for a planned load."),
    "demo": (
        "chancy.cli.demo.command:demo",
        "Index Python's standard library on a private server.",
    ),
    "doctor": ("chancy.cli.doctor:doctor", "Check the database and the workers for problems."),
    "job": ("chancy.cli.jobs:job", "List, show, explain, retry, cancel and move jobs."),
    "migrate": ("chancy.cli.migrate:migrate", "Create, upgrade and check the tables."),
    "plugins": ("chancy.cli.plugins:plugins", "List default, installed and used plugins."),
    "push": ("chancy.cli.push:push", "Push a job."),
    "queue": ("chancy.cli.queues:queue", "List, declare, pause, resume and delete queues."),
    "top": ("chancy.cli.top:top", "Show what queues, workers and functions do, live."),
    "worker": ("chancy.cli.worker:worker", "Run workers; list them; check their health."),
}


#: The commands of the default plugins, and their help lines.
DEFAULT: Mapping[str, str] = {
    "cron": "List, add, pause, run and remove cron entries.",
    "dead": "List, show, replay and purge dead letters.",
    "limits": "Show partitions of queues with rules; let blocked or paused ones go on.",
    "prune": "Prune the history once.",
    "workflow": "List, show, cancel, retry, signal and export workflows.",
}

#: The variables of the environment that chancy reads. Docs: docs/reference/settings.md.
VARIABLES = (
    "CHANCY_ALLOW",
    "CHANCY_APP",
    "CHANCY_CONCURRENCY",
    "CHANCY_DASHBOARD_PASSWORD",
    "CHANCY_DASHBOARD_ROLE",
    "CHANCY_DASHBOARD_USER",
    "CHANCY_DRIVER",
    "CHANCY_DSN",
    "CHANCY_ENCRYPTION_KEYS",
    "CHANCY_IMPORTS",
    "CHANCY_LISTEN_DSN",
    "CHANCY_LOG_FORMAT",
    "CHANCY_LOG_LEVEL",
    "CHANCY_METRICS",
    "CHANCY_PLUGINS",
    "CHANCY_PROCESSES",
    "CHANCY_PROCESSORS",
    "CHANCY_QUEUES",
    "CHANCY_SCHEMA",
    "CHANCY_UNKNOWN_AFTER",
)
#: Set by a supervisor in its worker processes.
_NUMBER = "CHANCY_WORKER_NUMBER"
# Those that Kubernetes sets for each service, such as one with the name chancy-dashboard.
_SERVICE = re.compile(r"(CHANCY(?:_\w+?)?)_(?:SERVICE_(?:HOST|PORT.*)|PORT(?:_\d+_.*)?)")

#: The commands of chancy's optional plugins, each with the identifier of its plugin.
ELSEWHERE: Mapping[str, str] = {
    "audit": "chancy.dashboard",
    "batch": "chancy.batches",
    "dashboard": "chancy.dashboard",
    "encryption": "chancy.encryption",
    "job logs": "chancy.job_logs",
    "redis": "chancy.redis",
}

#: Errors of a write to stdout: a full disk or quota, a file too large, a terminal that is gone.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

#: The key of a context's ``meta`` that has the command line after the program.
WORDS = "chancy.words"


def _offer(*args: Any) -> Any:
    from chancy.cli import shell_completion

    return shell_completion.ids(*args)


class Commands(click.Group):
    """The root command. It turns chancy's errors into one line on stderr and an exit code."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except BrokenPipeError:  # of the help
            _end_by_pipe()

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*COMMANDS, *DEFAULT])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Jobs and applications are importable from the current directory, as with `python -m`.
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
        # Plugin commands depend on --app, which follows the name of the command.
        ctx.meta[WORDS] = tuple(args)
        ctx.meta[OFFER] = _offer
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.UsageError:
            if args[0].startswith("-"):
                raise
            raise click.UsageError(unknown(args[0]), ctx) from None
        if command is not None and name in ("worker", "dashboard"):
            from chancy.cli import settings

            ctx.default_map = {name: settings.options_of(name, command.params)}
        return name, command, rest

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            from chancy.cli import extensions

            try:
                return extensions.find(cmd_name, words=ctx.meta.get(WORDS, ()), taken=COMMANDS)
            except (Exception, SystemExit):
                # A completion may print nothing: the shell would show it in the middle of the line.
                if ctx.resilient_parsing:
                    return click.Command(cmd_name)
                raise
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            lines = {name: line for name, (_, line) in COMMANDS.items()} | dict(DEFAULT)
            formatter.write_dl(sorted(lines.items()))

    def invoke(self, ctx: click.Context) -> Any:
        _warn_of_variables()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            complain("interrupted")
            sys.exit(130)
        except BrokenPipeError:  # click would exit with 1
            _end_by_pipe()
        except Exception as error:
            code = code_of(error)
            if code is None:
                raise
            complain(str(error))
            sys.exit(code)


def _warn_of_variables() -> None:
    """Warn of variables that chancy does not read: most of them are misspelled."""
    if _NUMBER in os.environ:  # the supervisor has warned
        return
    for name in sorted(os.environ):
        if name.startswith("CHANCY_") and name not in VARIABLES and not _is_foreign(name):
            known = [one.removeprefix("CHANCY_") for one in VARIABLES]
            near = nearest(name.removeprefix("CHANCY_"), known)
            hint = f": did you mean CHANCY_{near}?" if near else ""
            complain(f"the variable {name} is not one of chancy's and has no effect{hint}")


def _is_foreign(name: str) -> bool:
    """Whether streams read a variable, or Kubernetes has set it for a service."""
    service = _SERVICE.fullmatch(name)
    return name.startswith("CHANCY_STREAMS_") or (
        service is not None and f"{service[1]}_SERVICE_HOST" in os.environ
    )


def unknown(name: str) -> str:
    """The error message for an unknown command."""
    message = f"No such command {name!r}."
    if plugin := ELSEWHERE.get(name):
        return (
            f"{message} The plugin {plugin} provides it: pass the --app of an application that "
            f"uses this plugin, or set CHANCY_PLUGINS={plugin}."
        )
    near = nearest(name, [*COMMANDS, *DEFAULT, *ELSEWHERE])
    return f"{message} Did you mean {near!r}?" if near else message


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    package_name="chancy-queue", prog_name="chancy", help="Show the version and exit."
)
def cli() -> None:
    """A job queue on Postgres.

    Settings come from options, then from the environment (CHANCY_APP, CHANCY_DSN,
    CHANCY_SCHEMA, CHANCY_LISTEN_DSN, CHANCY_DRIVER, CHANCY_IMPORTS, CHANCY_ALLOW,
    CHANCY_PLUGINS), then from [tool.chancy] in the pyproject.toml of the current directory or
    the nearest parent that has one. The current directory is importable. Plugins may add
    commands: pass --app to use those of an application.

    \b
    Exit codes:
      0    success
      1    negative result: a job failed, the tables are behind, no healthy worker
      2    usage or configuration error
      3    the tables are missing or at another version
      4    the database cannot be reached, or refuses for now: its disk is full;
         or Redis where the command needs it
      5    the policy Halt(exit=True) of a stream stopped the worker
      130  interrupted (SIGINT)
      141  the reader of the output closed its pipe
      143  terminated (SIGTERM)

    \b
    Example:
      chancy migrate upgrade --dsn postgresql://localhost/shop
      chancy worker --app shop.jobs:chancy
    """


class _Terminated(SystemExit):
    """Raised by SIGTERM."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated(128 + number)


def _end_by_signals() -> None:
    """Exit at SIGTERM: the first process of a container ignores it without a handler."""
    ignore = sys.unraisablehook

    def end(unraisable: sys.UnraisableHookArgs) -> None:
        # Python ignores what a handler raises in a callback, such as those of importlib's locks.
        if isinstance(unraisable.exc_value, _Terminated):
            os._exit(128 + signal.SIGTERM)
        ignore(unraisable)

    sys.unraisablehook = end
    signal.signal(signal.SIGTERM, _terminate)


def main() -> NoReturn:
    """Run the program."""
    # A supervisor's worker process never is the first of a container.
    if _NUMBER not in os.environ and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        _end_by_signals()
    try:
        cli(prog_name="chancy")
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _give_up_output(error)
    raise AssertionError("click did not exit")


def _discard_output() -> None:
    """Write no more to stdout: Python would flush its buffer at exit, and fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_by_pipe() -> NoReturn:
    """Exit because the reader of stdout has closed it."""
    _discard_output()
    sys.exit(PIPE)


def _give_up_output(error: OSError) -> NoReturn:
    """Exit because stdout cannot be written."""
    _discard_output()
    refuse(f"the output cannot be written: {error.strerror}")
