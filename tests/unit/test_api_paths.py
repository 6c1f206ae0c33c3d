"""What may go into a path."""

import pytest

from credhook.worker.api.wire import path_name, resource_id


@pytest.mark.parametrize(
    "value", ["a", "cmfw0x1", "iss_1", "0b0e6d0c-7a43-4c6c-8a39-6b8a0c6a7a11", "did:web:a.b~c", "...", "a" * 128]
)
def test_ids_of_every_shape_seen_are_accepted(value: str) -> None:
    assert resource_id(value) == value


@pytest.mark.parametrize(
    "value", ["", ".", "..", "a/b", "a\\b", "a b", "a%2f", "a\n", "ä", "a?b", "a#b", "a@b", "\0", "a" * 129]
)
def test_an_id_that_could_leave_its_segment_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="should be 1 to 128"):
        resource_id(value)


@pytest.mark.parametrize("value", ["a@b.example", "a/b", "a+b", "a b", "ä", "日本", "a%2fb", "?#", "...", "x" * 256])
def test_names_of_people_hold_more(value: str) -> None:
    assert path_name(value) == value


@pytest.mark.parametrize(
    "value", ["", ".", "..", "../a", "a/../b", "a/.", "..\\a", "a\nb", "\x7f", "\x85", "\0", "\ud800", "x" * 257]
)
def test_a_name_that_could_climb_or_cannot_travel_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="should"):
        path_name(value)
