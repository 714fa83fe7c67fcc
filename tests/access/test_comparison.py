import pytest

from jobsight.access.comparison import may_compare


@pytest.mark.parametrize(
    ("users", "shown"),
    [(0, False), (4, False), (5, True), (["a"] * 9, False), ({"a", "b", "c", "d", "e"}, True)],
)
def test_a_group_has_five_users(users: int | list[str], shown: bool) -> None:
    assert may_compare(users) is shown
