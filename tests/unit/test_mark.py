"""The ids of a receiver's error objects: different each time, and known to whoever has its key."""

from uuid import UUID

import pytest

from credhook.receiver.mark import Mark


def test_each_id_is_another_and_all_are_uuids() -> None:
    mark = Mark()
    made = {mark.new_id() for _ in range(100)}
    assert len(made) == 100
    assert {UUID(one).version for one in made} == {4}


def test_whoever_has_the_key_knows_whose_they_are() -> None:
    ours, other = Mark(), Mark()
    made = ours.new_id()
    assert Mark(ours.key).made(made)
    assert not other.made(made)


@pytest.mark.parametrize("text", ["", "no id", "6f9619ff-8b86-4d01-b42d-00cf4fc964ff", "0" * 32])
def test_what_is_no_id_of_ours_is_nobodys(text: str) -> None:
    assert not Mark().made(text)


def test_the_key_is_not_shown() -> None:
    mark = Mark()
    assert mark.key not in repr(mark)
