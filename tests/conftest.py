"""What holds for all tests: none of them fails because the machine was busy while it ran."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
