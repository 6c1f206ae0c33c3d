"""The bound on a body's values against the values themselves."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from worker.api.sizes import values

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
