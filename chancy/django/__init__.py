"""Django: the application of chancy from Django's settings, on Django's connections.

Add ``"chancy.django"`` to ``INSTALLED_APPS``, and describe the application in ``CHANCY``.
"""

from chancy.django.current import app as app
from chancy.django.settings import database_dsn as database_dsn

__all__ = ["app", "database_dsn"]
