"""What the figures of several producers at once, and of two kinds of producers, are made of."""

import pytest

from bench.harness.exactly_once import added_up, beside


def test_of_two_kinds_of_producers_the_idempotent_one_is_told_of() -> None:
    plain = {
        "mb_per_s": 200.0,
        "client_cpu_s_per_gb": 1.0,
        "broker_cpu_s_per_gb": 2.0,
        "other_cores": 0.3,
    }
    numbered = plain | {"mb_per_s": 50.0, "client_cpu_s_per_gb": 9.0, "other_cores": 0.1}

    sample = beside(plain, numbered)

    assert sample["mb_per_s"] == 50.0
    assert sample["plain_mb_per_s"] == 200.0
    assert sample["of_plain"] == 0.25
    assert sample["client_cpu_s_per_gb"] == 9.0
    assert sample["plain_client_cpu_s_per_gb"] == 1.0
    assert sample["other_cores"] == 0.3


def test_producers_at_once_add_up_but_see_the_same_brokers() -> None:
    one = {
        "seconds": 2.0,
        "transactions": 100.0,
        "records": 10_000.0,
        "bytes": 1_000_000.0,
        "client_cpu_s": 0.5,
        "broker_cpu_s": 1.0,
        "commit_p50_us": 10.0,
        "commit_p99_us": 90.0,
    }
    sample = added_up([one, one | {"transactions": 50.0, "commit_p99_us": 400.0}])

    assert sample["transactions"] == 150.0
    assert sample["client_cpu_s"] == 1.0
    assert sample["broker_cpu_s"] == 1.0
    assert sample["commit_p99_us"] == 400.0
    assert sample["mb_per_s"] == pytest.approx(1.0)
