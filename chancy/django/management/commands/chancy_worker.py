"""``manage.py chancy_worker``: a worker of the project's application."""

from __future__ import annotations

from chancy.django.management.commands.chancy import Command as ChancyCommand


class WorkerCommand(ChancyCommand):
    help = "Runs workers; takes the options of `chancy worker`, such as --queues a,b."
    before = ("worker",)


#: The name that Django looks for.
Command = WorkerCommand
