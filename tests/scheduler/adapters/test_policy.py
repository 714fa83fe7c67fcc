"""Reservations, QOS, associations and shares, in slurmrestd's form and in that of the commands."""

from collections.abc import Sequence

import pytest

from jobsight.model import SECOND
from jobsight.scheduler.adapters.policy import (
    AssociationInfo,
    ReservationInfo,
    mark_reserved,
    parse_columns,
    parse_scontrol,
    read_associations,
    read_coordinators,
    read_qos,
    read_reservations,
)
from jobsight.scheduler.records import AdaptError, NodeInfo, Problem
from jobsight.scheduler.sources.text import query_policy

START = 1794720000


def set_to(number: float) -> dict[str, object]:
    return {"set": True, "infinite": False, "number": number}


def test_slurmrestds_form() -> None:
    problems: list[Problem] = []
    document = {
        "name": "course", "start_time": set_to(START), "end_time": set_to(START + 60),
        "node_list": "cn[1-2]", "partition": "main", "users": "anna,anna,bob",
        "accounts": "", "flags": ["FLEX"], "tres": "cpu=8",
    }  # fmt: skip
    (course,) = read_reservations([document], "c", problems)
    assert (course.start, course.end) == (START * SECOND, (START + 60) * SECOND)
    assert (course.nodes, course.users, course.accounts) == (("cn1", "cn2"), ("anna", "bob"), ())
    per_user = [{"type": "cpu", "name": "", "count": 64}]
    limits = {
        "max": {"wall_clock": {"per": {"job": set_to(60)}}, "tres": {"per": {"user": per_user}}}
    }
    document = {"name": "long", "priority": set_to(5), "usage_factor": set_to(0.5)}
    (qos,) = read_qos([document | {"limits": limits}], "c", problems)
    assert (qos.priority, qos.usage_factor, qos.time_limit) == (5, 0.5, 3600 * SECOND)
    assert qos.tres_per_user == {"cpu": 64}
    document = {"account": "physics", "user": "anna", "partition": "", "parent_account": ""}
    more = {"shares_raw": 3, "qos": ["normal", "long"]}
    (user,) = read_associations([document | more], "c", problems)
    assert (user.name, user.shares, user.qos) == ("physics/anna", 3, ("normal", "long"))
    assert problems == []


def test_the_commands_form() -> None:
    replies = {
        "scontrol": f"ReservationName=m StartTime={START} EndTime={START + 60} Duration=00:01:00 "
        "Nodes=cn1 Users=(null) Accounts=physics Flags=MAINT,SPEC_NODES TRES=cpu=2\n",
        "qos": "normal|0|1.000000|||\nlong|5|0.5|DenyOnLimit|1-00:00:00|cpu=64\n",
        "associations": "physics||||1|normal\nphysics|anna|||parent|normal,long\n"
        "optics|||physics|1|normal\n",
        "account": "physics|anna,bob\noptics|carol\nempty|\n",
        "sshare": " physics||0.5|0.25|\n physics|anna|0.5|0.1|0.75\n",
    }

    def run(command: Sequence[str], timeout: float, *, given: bytes = b"") -> list[bytes]:
        key = next(word for word in command if word in replies)
        return [replies[key].encode()]

    policy = query_policy("c", run, 5)
    (maintenance,) = policy.reservations
    assert (maintenance.users, maintenance.accounts) == ((), ("physics",))
    assert maintenance.tres == {"cpu": 2}
    assert [(qos.name, qos.time_limit) for qos in policy.qos] == [
        ("normal", None), ("long", 86400 * SECOND),
    ]  # fmt: skip
    whole, anna, _ = policy.associations
    assert (whole.shares, whole.usage_share, whole.fair_share) == (1, 0.25, None)
    assert (anna.shares, anna.share, anna.fair_share) == (None, 0.5, 0.75)
    # Who coordinates an account coordinates those below it.
    assert policy.coordinators is not None
    assert [(found.account, found.user) for found in policy.coordinators] == [
        ("optics", "anna"), ("optics", "bob"), ("optics", "carol"),
        ("physics", "anna"), ("physics", "bob"),
    ]  # fmt: skip
    assert policy.problems == []


@pytest.mark.parametrize(
    "coordinators",
    [["anna"], [{"name": "anna", "direct": 1}], [{"name": "anna"}], "anna", [{"name": "anna"}, {}]],
)
def test_coordinators_in_the_forms_of_slurmrestd(coordinators: object) -> None:
    problems: list[Problem] = []
    (found,) = read_coordinators(
        [{"name": "physics", "coordinators": coordinators}, {"name": "x", "coordinators": []}],
        [AssociationInfo(cluster="c", account="physics", parent="physics")],
        problems,
    )
    assert (found.account, found.user) == ("physics", "anna")
    assert problems == []


def test_what_is_no_answer_is_an_error() -> None:
    assert parse_scontrol("No reservations in the system\n") == []
    with pytest.raises(AdaptError, match="is not a reservation"):
        parse_scontrol("slurm_load_reservations error")
    with pytest.raises(AdaptError, match="gave 2 fields, expected 3"):
        parse_columns("a|b", ["x", "y", "z"], "sacctmgr")


def test_nodes_know_what_holds_them() -> None:
    nodes = [NodeInfo(cluster="c", name="a"), NodeInfo(cluster="c", name="b", reservation="said")]
    nodes.append(NodeInfo(cluster="c", name="later"))
    mark_reserved(nodes, [
        ReservationInfo(cluster="c", name="now", start=1, end=9, nodes=("a", "b")),
        ReservationInfo(cluster="c", name="then", start=9, end=12, nodes=("later",)),
    ], now=5)  # fmt: skip
    assert [node.reservation for node in nodes] == ["now", "said", None]
