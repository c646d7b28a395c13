import time

from mainstem.core.clock import ManualClock, SystemClock, since_boot


def test_the_manual_clock_moves_only_when_told():
    clock = ManualClock(now_ms=1_000)
    assert (clock.now_ms(), clock.monotonic()) == (1_000, 0.0)
    clock.advance_ms(500)
    assert (clock.now_ms(), clock.monotonic()) == (1_500, 0.5)
    clock.set_back_ms(1_000)
    assert (clock.now_ms(), clock.monotonic()) == (500, 0.5)


def test_the_system_clock_counts_milliseconds():
    clock = SystemClock()
    assert 1_600_000_000_000 < clock.now_ms() < 10_000_000_000_000
    assert clock.monotonic() <= clock.monotonic()


def test_seconds_since_boot_count_the_sleep_too():
    assert since_boot() <= since_boot()
    assert since_boot() >= time.clock_gettime(time.CLOCK_MONOTONIC) - 1
