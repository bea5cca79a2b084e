"""The settings of the project. The DSN is in CHANCY_DSN, for Django and for chancy."""

import os

from psycopg.conninfo import conninfo_to_dict

found = conninfo_to_dict(os.environ["CHANCY_DSN"])

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": found.get("dbname", ""),
        "USER": found.get("user", ""),
        "PASSWORD": found.get("password", ""),
        "HOST": found.get("host", ""),
        "PORT": found.get("port", ""),
    }
}
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
SECRET_KEY = os.environ.get("SECRET_KEY", "for a machine of your own")
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
