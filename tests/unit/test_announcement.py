"""Which handlers workers differ by."""

from credhook.worker.process.announcement import Difference, difference

DONE, FAILED = ("completed",), ("failed",)


def test_workers_that_have_the_same_do_not_differ() -> None:
    assert difference({"a.f": DONE}, [{"a.f": DONE}, {"a.f": DONE}]) is None
    assert difference({}, []) is None


def test_what_any_other_lacks_is_only_here_and_what_any_other_has_is_only_elsewhere() -> None:
    mine = {"a.f": DONE, "a.g": DONE}
    assert difference(mine, [mine, {"a.f": DONE}, {"a.f": DONE, "a.g": DONE, "a.h": FAILED}]) == Difference(
        ("a.g",), ("a.h",)
    )


def test_a_handler_that_wants_other_types_elsewhere_differs() -> None:
    assert difference({"a.f": DONE}, [{"a.f": FAILED}]) == Difference(("a.f",), ("a.f",))
