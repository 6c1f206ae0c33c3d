"""The settings of the Django project, from the environment."""

import os

INSTALLED_APPS = ["members"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["MEMBERS_DATABASE"]}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
