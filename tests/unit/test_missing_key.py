"""A key is named where the handler's code spells it out, and nowhere else: it could be a claim."""

from collections.abc import Callable
from typing import Any

import pytest

from credhook.worker.attempt.missing_key import missing_key
from credhook.worker.attempt.retry import GiveUp, after_handler, cause

CLAIMS = {"country": "DE", "note": "two words"}


class Rates(dict[str, int]):
    def __missing__(self, key: str) -> int:
        raise KeyError(key)


class NoSuchClaim(KeyError): ...


def spelled_out(person: Any) -> Any:
    return person["givenName"]


def spelled_out_deep_within(person: Any) -> Any:
    return [str(person["country"]), {"a": person}["a"]["org.iso.18013.5.1:given_name"]]


def looked_up_by_a_claim(person: Any) -> Any:
    return {"FR": 1}[person["country"]]


def looked_up_by_a_claim_that_is_a_constant_elsewhere(person: Any) -> Any:
    country = person["country"]
    if country == "DE":
        return {"FR": 1}[country]
    return None


def looked_up_by_a_claim_beside_the_same_constant(person: Any) -> Any:
    return "DE" + str({"FR": 1}[person["country"]])


def looked_up_by_a_variable_of_that_name(person: Any) -> Any:
    DE = person["country"]  # noqa: N806  That is the point.
    return {"FR": 1}[DE]


def raised_with_a_claim(person: Any) -> Any:
    raise KeyError(person["country"])


def raised_by_a_mapping_of_its_own(person: Any) -> Any:
    return Rates()[person["country"]]


def taken_out_by_a_claim(person: Any) -> Any:
    return {"DE": 1, "FR": 2}.pop(person["note"])


def sentence(person: Any) -> Any:
    return person["Jane Doe, born 1990"]


def number(person: Any) -> Any:
    return person[1990]


def of_another_class(person: Any) -> Any:
    raise NoSuchClaim("givenName")


def error_of(function: Callable[[Any], Any]) -> Exception:
    with pytest.raises(KeyError) as raised:
        function(CLAIMS)
    return raised.value


@pytest.mark.parametrize(
    ("function", "key"),
    [(spelled_out, "givenName"), (spelled_out_deep_within, "org.iso.18013.5.1:given_name")],
)
def test_a_key_that_the_code_spells_out_is_named(function: Callable[[Any], Any], key: str) -> None:
    error = error_of(function)
    assert cause(error) == f"KeyError {key!r}"
    decision = after_handler(error, 12, max_attempts=12)
    assert isinstance(decision, GiveUp)
    assert decision.reason == cause(error)


@pytest.mark.parametrize(
    "function",
    [
        looked_up_by_a_claim,
        looked_up_by_a_claim_that_is_a_constant_elsewhere,
        looked_up_by_a_claim_beside_the_same_constant,
        looked_up_by_a_variable_of_that_name,
        raised_with_a_claim,
        raised_by_a_mapping_of_its_own,
        taken_out_by_a_claim,
        sentence,
        number,
        of_another_class,
    ],
)
def test_no_other_key_is(function: Callable[[Any], Any]) -> None:
    error = error_of(function)
    assert missing_key(error) is None
    assert cause(error) == type(error).__name__


def test_an_error_that_was_never_raised_has_no_key() -> None:
    assert missing_key(KeyError("givenName")) is None
