"""The tokens of clusters in the store: digests, rotation, revocation, uses."""

import pytest

from jobsight.errors import JobsightError
from jobsight.model import SECOND
from jobsight.store.store import Store
from jobsight.store.tokens import Tokens, digest_of
from jobsight.store.write.validation import BatchError


@pytest.fixture
def tokens(store: Store) -> Tokens:
    return Tokens(store.database)


def test_only_the_digest_is_kept(tokens: Tokens, store: Store) -> None:
    _, token = tokens.add("alpha", "label")
    with store.database.write() as transaction:
        (row,) = transaction.execute("SELECT * FROM tokens").fetchall()
    assert digest_of(token) in [bytes(v) for v in row if isinstance(v, (bytes, memoryview))]
    assert not any(token in str(value) for value in row)


def test_a_second_rotation_never_gives_a_token_a_longer_life(tokens: Tokens) -> None:
    number, _ = tokens.add("alpha")
    tokens.rotate(number, grace=60 * SECOND)
    first = tokens.list()[0].expires
    tokens.rotate(number, grace=3600 * SECOND)
    assert tokens.list()[0].expires == first


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda tokens: tokens.revoke(7), "there is no token 7"),
        (lambda tokens: tokens.rotate(7, 0), "there is no token 7"),
        (lambda tokens: tokens.revoke(tokens.add("a", expires=1)[0]), "expired on 1970-01-01"),
    ],
)
def test_what_cannot_be_done_is_said(tokens: Tokens, action: object, words: str) -> None:
    with pytest.raises(JobsightError, match=words):
        action(tokens)  # type: ignore[operator]


@pytest.mark.parametrize("cluster", ["", "a\nb", "x" * 256])
def test_names_of_clusters_are_checked(tokens: Tokens, cluster: str) -> None:
    with pytest.raises(BatchError, match="name of the cluster"):
        tokens.add(cluster)
    assert tokens.list() == []


def test_the_life_of_a_token(tokens: Tokens) -> None:
    number, first = tokens.add("alpha", "nodes")
    old, new, second = tokens.rotate(number, grace=3600 * SECOND)
    assert (old.id, old.expires, new) == (1, None, 2)
    found = tokens.by_digest()
    assert [found[digest_of(token)].id for token in (first, second)] == [1, 2]
    assert all(token.refusal(token.created) is None for token in found.values())
    assert found[digest_of(first)].refusal(2**62) is not None
    assert found[digest_of(second)].refusal(2**62) is None
    assert tokens.revoke(1).revoked is not None
    assert tokens.find(digest_of(first)) == tokens.list("alpha")[0]
    assert tokens.find(digest_of("another")) is None
    assert tokens.list("beta") == []


def test_an_older_use_does_not_overwrite_a_newer_one(tokens: Tokens) -> None:
    tokens.add("alpha")
    for used in (7, 9, 5):
        tokens.record_use({1: used, 99: used})
    assert [token.used for token in tokens.list()] == [9]
