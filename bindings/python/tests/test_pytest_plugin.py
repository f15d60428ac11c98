"""The fixture that refuses, delays, asks for and loses locks on command."""

from __future__ import annotations

import threading
import time

import pytest

import tenure
from tenure.testing import Script


def test_a_refused_lock_is_busy(tenure_script: Script) -> None:
    tenure_script.refuse("maintenance")
    with pytest.raises(tenure.Busy) as busy:
        tenure.lock(tenure_script.address, wait=0).acquire()
    assert busy.value.blocker is not None
    assert busy.value.blocker.holder.purpose == "maintenance"
    tenure_script.allow()
    with tenure.lock(tenure_script.address, wait=0):
        assert tenure_script.held


def test_a_delayed_lock_is_granted_later(tenure_script: Script) -> None:
    began = time.monotonic()
    tenure_script.delay(0.2)
    with tenure.lock(tenure_script.address, wait=30):
        assert time.monotonic() - began >= 0.2


def test_a_lost_lock_is_reported_with_its_cause(tenure_script: Script) -> None:
    guard = tenure.lock(tenure_script.address).acquire()
    assert tenure_script.lose("expired", "the network was cut") == 1
    lost = guard.wait_lost(30)
    assert lost is not None
    assert (lost.cause, lost.what) == ("expired", "the network was cut")
    with pytest.raises(ValueError, match="unknown cause"):
        tenure_script.lose("tired")


def test_a_release_request_has_its_reason(tenure_script: Script) -> None:
    heard = threading.Event()
    guard = tenure.lock(
        tenure_script.address, on_release_request=lambda request: heard.set()
    ).acquire()
    tenure_script.ask("please")
    assert heard.wait(30)
    assert guard.release_request is not None
    assert guard.release_request.reason == "please"
    guard.release()


def test_a_lease_that_is_not_renewed_ends(tenure_script: Script) -> None:
    guard = tenure.lock(tenure_script.address).acquire()
    tenure_script.lease(0.05)
    while guard.valid_for > 0:
        time.sleep(0.005)
    with pytest.raises(tenure.Lost) as lost:
        guard.check()
    assert lost.value.cause == "unconfirmed"
