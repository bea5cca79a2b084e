"""``manage.py chancy``: the commands of chancy, on the application of the project."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, NoReturn

import click
from django.core.management.base import BaseCommand, CommandError, CommandParser

#: The application of the project, as commands import it.
APPLICATION = "chancy.django:app"
_VARIABLE = "CHANCY_APP"


class Command(BaseCommand):
    help = "Runs a command of chancy, such as `chancy queue list`, on the project's application."
    #: Words of chancy's command line before those that are given.
    before: tuple[str, ...] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        # Django has applied --settings and --pythonpath; all other options are chancy's.
        own = CommandParser(add_help=False, allow_abbrev=False)
        own.add_argument("--settings")
        own.add_argument("--pythonpath")
        options, words = own.parse_known_args(argv[2:])
        # The path of the project comes behind that of the option.
        self.run(words, sys.path[: 2 if options.pythonpath else 1])

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("words", nargs=argparse.REMAINDER)

    def handle(self, *_: object, **options: Any) -> None:
        """For ``call_command``, in the calling process."""
        from chancy.cli.main import cli

        words = [*self.before, *options["words"]]
        given = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = given or APPLICATION
        try:
            cli(words, prog_name="manage.py chancy", standalone_mode=False)
        except click.ClickException as error:
            raise CommandError(error.format_message(), returncode=error.exit_code) from None
        except SystemExit as end:
            if end.code:
                raise CommandError("the command failed", returncode=int(end.code)) from None
        finally:
            if given is None:
                del os.environ[_VARIABLE]

    def run(self, words: list[str], path: list[str]) -> NoReturn:
        """Run the program, which ends the process.

        :param path: the first entries of ``sys.path``, which worker processes need, too.
        """
        from chancy.cli.main import main

        # For worker processes, too.
        os.environ.setdefault(_VARIABLE, APPLICATION)
        # Worker processes do not run manage.py, so they need the path of the project.
        path = [os.path.abspath(entry or ".") for entry in path]
        inherited = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [inherited])])
        sys.argv = ["chancy", *self.before, *words]
        main()
