"""The pytest fixture ``tenure_script``, found by pytest when the package is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .testing import Script


@pytest.fixture
def tenure_script() -> Iterator[Script]:
    """A lock that the test refuses, delays, asks for and loses on command: :class:`tenure.testing.Script`."""
    with Script() as script:
        yield script
