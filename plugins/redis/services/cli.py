"""``chancy redis service``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import click

from chancy.errors import BrokerUnavailable, InvalidArguments
from chancy.plugin.commands import as_json
from chancy.plugin.runtime import CommandLine
from chancy.plugins.redis.services.base import Listing, ServiceReport, ServiceState
from chancy.plugins.redis.services.client import NoService, ServiceRuns, ServiceStore
from chancy.plugins.redis.services.services import Services
from chancy.plugins.redis.services.values import data_of

T = TypeVar("T")

#: Where the commands find the services.
_SERVICES = "chancy.redis.services"
#: The exit code when the answer is no.
_NO = 1

_ID = click.argument("id")


def service_commands(services: Services) -> click.Group:
    """The group ``service`` over the services of an application."""

    @click.group("service")
    @click.pass_context
    def group(context: click.Context) -> None:
        """Start, stop and look at services. Only Redis is spoken to.

        \b
        Example:
          chancy redis service list --app shop.jobs:chancy
        """
        context.meta[_SERVICES] = services

    for one in (start, stop, reload, restart, remove, get, set_, list_):
        group.add_command(one)
    return group


def _run(work: Callable[[ServiceStore], T]) -> T:
    """Exits 1 where the answer is no."""
    services: Services = click.get_current_context().meta[_SERVICES]
    try:
        return work(services.blocking)
    except (NoService, ServiceRuns) as error:
        click.echo(f"chancy: {error}", err=True)
        sys.exit(_NO)
    except BrokerUnavailable as error:
        raise BrokerUnavailable(
            f"{error} Is it running, and the url of the RedisPlugin its own? `chancy redis doctor` "
            "tells more"
        ) from error
    finally:
        services.close()


def _data(text: str) -> dict[str, Any]:
    try:
        return data_of(text)
    except InvalidArguments as error:
        raise click.UsageError(f"{error}: give one like '{{\"pace\": 2}}'") from None


@click.command()
@click.argument("name")
@click.argument("data", default="{}")
@click.option("--id", help="Of your own; a new one unless given.")
@click.option("--keep", is_flag=True, help="Keep it after its end.")
@as_json
@click.pass_obj
def start(line: CommandLine, name: str, data: str, id: str | None, keep: bool, json_: bool) -> None:
    """Let a service wait for a worker, with DATA, a JSON object. Prints its id.

    One that waits gets the new data; exits 1 if it runs.

    \b
    Example:
      chancy redis service start feed '{"pace": 2}' --id feed-7
    """
    given = _data(data)
    found = _run(lambda store: store.begin(name, given, id=id, cleanup=not keep))
    if json_:
        line.script({"id": found})
    else:
        line.line(found)


def _print_state(line: CommandLine, was: ServiceState | None, json_: bool) -> None:
    if json_:
        line.script({"was": was})
    else:
        line.line("there was none" if was is None else f"was {was.value}")


@click.command()
@_ID
@as_json
@click.pass_obj
def stop(line: CommandLine, id: str, json_: bool) -> None:
    """Have a service stopped; it can be restarted. Prints the state that it was in.

    Its worker does that in its own time: `get` tells when it has. Exits 1 if there is none.

    \b
    Example:
      chancy redis service stop feed-7
    """
    _print_state(line, _run(lambda store: store.stop(id)), json_)


@click.command()
@_ID
@as_json
@click.pass_obj
def reload(line: CommandLine, id: str, json_: bool) -> None:
    """Have a running service begin anew with the data that it has now.

    \b
    Example:
      chancy redis service set feed-7 '{"pace": 3}'
      chancy redis service reload feed-7
    """
    _print_state(line, _run(lambda store: store.reload(id)), json_)


@click.command()
@_ID
@click.option(
    "--if",
    "states",
    multiple=True,
    type=click.Choice([one.value for one in ServiceState]),
    help="Only in this state; may be repeated.",
)
@as_json
@click.pass_obj
def restart(line: CommandLine, id: str, states: tuple[str, ...], json_: bool) -> None:
    """Let a service run again, in any worker. Exits 1 if it is in none of the states asked for.

    \b
    Example:
      chancy redis service restart feed-7 --if STOPPED --if EXCEPTION
    """
    if not states:
        _print_state(line, _run(lambda store: store.restart(id)), json_)
        return
    done = _run(lambda store: store.restart_if(id, states))
    if json_:
        line.script({"restarted": done})
    else:
        line.line("restarted" if done else f"left as it is: it is not {' or '.join(states)}")
    if not done:
        sys.exit(_NO)


@click.command()
@_ID
@as_json
@click.pass_obj
def remove(line: CommandLine, id: str, json_: bool) -> None:
    """Forget all about a service; one that runs is stopped first.

    \b
    Example:
      chancy redis service remove feed-7
    """
    _print_state(line, _run(lambda store: store.remove(id)), json_)


@click.command()
@_ID
@click.pass_obj
def get(line: CommandLine, id: str) -> None:
    """Print what is known of a service, as JSON. Exits 1 if there is none.

    \b
    Example:
      chancy redis service get feed-7
    """
    found = _run(lambda store: store.get(id))
    if found is None:
        line.script({"error": f"there is no service {id}"})
        sys.exit(_NO)
    line.script(asdict(found))


@click.command("set")
@_ID
@click.argument("data")
@click.pass_obj
def set_(line: CommandLine, id: str, data: str) -> None:
    """Set some of the data of a service, by a JSON object. A running one needs a reload to see it.

    \b
    Example:
      chancy redis service set feed-7 '{"pace": 3}'
    """
    given = _data(data)
    _run(lambda store: store.set(id, **given))
    line.line(f"set {', '.join(json.dumps(name) for name in given)}")


@click.command("list")
@as_json
@click.pass_obj
def list_(line: CommandLine, json_: bool) -> None:
    """List services: those that wait, run, are stopped or kept, and those to be forgotten.

    \b
    Example:
      chancy redis service list
    """
    found, reports = _run(_read_all)
    if json_:
        line.script(asdict(found))
        return
    line.table(
        ("id", "name", "state", "owner", "local"),
        [
            (one.id, one.name, one.state.value, one.owner or "", "yes" if one.local else "")
            for one in reports
        ],
    )


def _read_all(store: ServiceStore) -> tuple[Listing, list[ServiceReport]]:
    found = store.list()
    ids = dict.fromkeys((*found.new, *found.active, *found.ended))
    return found, [report for id in ids if (report := store.get(id)) is not None]
