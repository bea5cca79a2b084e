"""What the web server runs: one application of chancy for each of its processes."""

import atexit
import os
from contextlib import ExitStack

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
application = get_wsgi_application()

from shop.jobs import chancy  # noqa: E402  (Django comes first)

opened = ExitStack()
opened.enter_context(chancy)
atexit.register(opened.close)
