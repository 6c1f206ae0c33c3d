"""The table of members."""

from django.db import models


class Member(models.Model):  # type: ignore[misc]  # Django ships no types.
    """A person whose issuance was completed."""

    issuance = models.CharField(max_length=64, unique=True)

    def __str__(self) -> str:
        return str(self.issuance)
