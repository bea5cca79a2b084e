"""``chancy redis stream``, and its commands ``send`` and ``sendmany``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from chancy.errors import ChancyError, ConfigurationError, InvalidArguments
from chancy.plugin.commands import Seconds, as_json
from chancy.plugin.runtime import CommandLine
from chancy.plugins.redis.streams.cli.administration import lag, members, remove, reset, resume
from chancy.plugins.redis.streams.cli.arguments import STREAM, STREAMS, declared, run
from chancy.plugins.redis.streams.cli.jsonl import Lines
from chancy.plugins.redis.streams.encoding.record_coding import RecordCoding
from chancy.plugins.redis.streams.producing.stream import PATIENCE_S, Stream
from chancy.plugins.redis.streams.streams import Streams

if TYPE_CHECKING:
    from rich.progress import Progress


def stream_commands(streams: Streams) -> click.Group:
    """Return the command group ``stream`` for the streams that an application declares."""

    @click.group("stream")
    @click.pass_context
    def group(context: click.Context) -> None:
        """Send to streams, and inspect and administer their processors.

        Pass the --app that declares the streams. These commands use only Redis.

        \b
        Example:
          chancy redis stream lag --app shop.jobs:chancy
        """
        context.meta[STREAMS] = streams

    for command in (send, sendmany, reset, lag, members, resume, remove):
        group.add_command(command)
    return group


def _maker(stream: Stream[Any]) -> Callable[[bytes], Any]:
    """Return a parser of records in JSON that also checks that they can be sent."""
    coding = stream.coding
    if not isinstance(coding, RecordCoding):
        raise ConfigurationError(
            f"the stream {stream.name} has a custom coding, which does not read JSON"
        )

    def make(text: bytes) -> Any:
        record = coding.check_json(text)
        stream.route.partition(record, stream.partitions)
        return record

    return make


@click.command()
@STREAM
@click.argument("value", nargs=-1, required=True)
@as_json
@click.pass_obj
def send(line: CommandLine, stream: str, value: tuple[str, ...], json_: bool) -> None:
    """Send records, each a JSON object, and print their ids.

    The records of one partition are sent together or not at all. If a record is not valid, nothing
    is sent and the error names it.

    \b
    Example:
      chancy redis stream send orders '{"order_id": 7, "amount": 12.5}'
    """
    target = declared(stream)
    make = _maker(target)
    records: list[Any] = []
    for number, text in enumerate(value, 1):
        try:
            records.append(make(text.encode()))
        except InvalidArguments as error:
            which = f"value {number} of {len(value)}: " if len(value) > 1 else ""
            raise InvalidArguments(f"{which}{error}") from None
    ids = run(target, lambda: target.send(*records))
    if json_:
        line.script({"ids": ids})
    else:
        for id in ids:
            line.line(id)


@click.command()
@STREAM
@click.argument("file", type=click.File("rb"))
@click.option(
    "--from-line",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Skip the lines before this one.",
)
@click.option(
    "--timeout",
    type=Seconds(),
    default=PATIENCE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for room in a full partition.",
)
@click.option("--no-check", is_flag=True, help="Send without checking the whole file first.")
@as_json
@click.pass_obj
def sendmany(
    line: CommandLine,
    /,
    stream: str,
    file: BinaryIO,
    from_line: int,
    timeout: float,
    no_check: bool,
    json_: bool,
) -> None:
    """Send the records of a file with one JSON object per line; - is the standard input.

    A file is checked completely before anything is sent; the standard input cannot be. If sending
    fails, the output names the line to continue from.

    \b
    Example:
      chancy redis stream sendmany orders orders.jsonl
      zcat orders.jsonl.gz | chancy redis stream sendmany orders -
    """
    target = declared(stream)
    make = _maker(target)
    sent = 0

    def count(number: int) -> None:
        nonlocal sent
        sent = number
        progress.update(task, completed=lines.read, description=f"{sent:,} sent")

    size = os.fstat(file.fileno()).st_size if file.seekable() else None
    with _progress(size) as progress:
        task = progress.add_task("", total=size)
        if size is not None and not no_check:
            lines = Lines(file, file.name, make, first=from_line)
            for checked, _ in enumerate(lines, 1):
                if checked % 1_000 == 0:
                    shown = f"{checked:,} checked"
                    progress.update(task, completed=lines.read, description=shown)
            file.seek(0)
        lines = Lines(file, file.name, make, first=from_line)
        try:
            run(target, lambda: target.send_many(lines, timeout_s=timeout, progress=count))
        except ChancyError:
            following = lines.line_of(sent + 1)
            click.echo(
                f"chancy: {sent:,} records were sent"
                + (f"; continue with --from-line {following}" if following else ""),
                err=True,
            )
            raise
    if json_:
        line.script({"sent": sent})
    else:
        line.line(f"{sent:,} sent")


def _progress(size: int | None) -> Progress:
    """A bar of the bytes of a file that were read; shown only if stderr is a terminal.

    :param size: size of the file in bytes; None: unknown.
    """
    # Imported here because it takes 50 ms.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %" if size else "{task.completed:,.0f} bytes"),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
