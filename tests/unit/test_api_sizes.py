"""The bound on a body's values against the values themselves."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from credhook.worker.api.http.exchange import has_more_than, values

DOCUMENTS = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=5),
)


def number(document: Any) -> int:
    inner = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    return 1 + sum(map(number, inner))


@given(DOCUMENTS)
def test_there_are_never_more_values_than_the_bytes_say(document: Any) -> None:
    assert values(json.dumps(document).encode()) >= number(document)


def test_a_long_text_counts_as_one_unless_it_has_brackets_and_commas() -> None:
    assert values(json.dumps({"photo": "a" * 1_000_000}).encode()) == 2
    assert values(json.dumps({"text": "[{,"}).encode()) == 5


def test_a_body_has_more_only_if_its_bytes_and_its_values_are_more() -> None:
    for most, expected in ((2, True), (3, True), (4, False)):
        assert has_more_than(most, b"[1,2,3]") is (values(b"[1,2,3]") > most) is expected
    assert not has_more_than(3, b'"' + b"a" * 100 + b'"')
