"""The same examples on every machine, and no clock in a test."""
from hypothesis import settings

settings.register_profile("ltf_nb", deadline=None, derandomize=True)
settings.load_profile("ltf_nb")
