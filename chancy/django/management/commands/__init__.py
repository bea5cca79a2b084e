"""The commands of ``manage.py``, a module each."""
