"""JSON that browsers can read, and a sentence for every failure."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException

from hightide.client.broker_connection import ConnectionFailed
from hightide.console.replies import as_json, failed, of_failure, ok
from hightide.control import NotRunning, Refused
from hightide.wire.errors import ErrorCode, KafkaError


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Inner:
    number: float
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True)
class Outer:
    inner: Inner
    ids: frozenset[int] = frozenset({3, 1, 2})
    data: bytes = b"\x00\xff"
    path: Path = Path("/x")


def test_what_routes_return_becomes_json():
    assert json.loads(as_json({"all": [Outer(Inner(1.5))]})) == {
        "all": [
            {
                "inner": {"number": 1.5, "colour": "red"},
                "ids": [1, 2, 3],
                "data": "00ff",
                "path": "/x",
            }
        ]
    }


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_know_is_null(number):
    given = {"a": number, "b": [number, 1.0], "c": Outer(Inner(number)), "d": (True, None, "x", 7)}
    found = json.loads(as_json(given), parse_constant=pytest.fail)
    assert found["a"] is None
    assert found["b"] == [None, 1.0]
    assert found["c"]["inner"]["number"] is None
    assert found["d"] == [True, None, "x", 7]


def test_text_is_sent_as_it_is():
    assert ok({"text": "größer </script>"}).body.decode() == '{"text":"größer </script>"}'


def test_what_has_no_form_is_an_error_and_not_a_text():
    with pytest.raises(TypeError):
        as_json({"thing": object()})


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no topic x."), 404, "x."),
        (KafkaError(ErrorCode.GROUP_ID_NOT_FOUND), 404, "group"),
        (KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS), 409, "exists"),
        (KafkaError(ErrorCode.NON_EMPTY_GROUP), 409, "members"),
        (KafkaError(ErrorCode.INVALID_CONFIG, "No such setting."), 400, "No such"),
        (KafkaError(ErrorCode.NOT_CONTROLLER), 503, "controller"),
        (KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED), 403, "principal"),
        (ConnectionFailed("localhost:1 cannot be reached."), 503, "localhost:1"),
        (Refused("broker 1 is not running"), 409, "not running"),
        (NotRunning("No up."), 409, "No up"),
        (TimeoutError(), 504, "in time"),
        (ValueError("The number should be one."), 400, "should be one"),
        (OSError(28, "No space left"), 503, "No space"),
        (HTTPException(405), 405, "Not Allowed"),
    ],
)
def test_each_failure_has_a_status_and_a_sentence(error, status, sentence):
    reply = of_failure(error)
    assert reply.status_code == status
    assert sentence in json.loads(bytes(reply.body))["error"]


def test_an_error_of_the_console_shows_no_details(caplog):
    reply = of_failure(KeyError("a secret"))
    assert reply.status_code == 500
    assert b"a secret" not in reply.body
    assert "a request has failed" in caplog.text


def test_a_failure_may_carry_more_for_programs():
    assert json.loads(bytes(failed(403, "No.", code="token").body)) == {
        "error": "No.",
        "code": "token",
    }
