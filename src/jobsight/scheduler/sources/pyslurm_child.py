#!/usr/bin/env python3
"""Query PySlurm once and print the reply as JSON; runs as a child process.

Some calls of PySlurm crash, and others raise for one record and lose all of them. In a child a
crash costs one query, and a record that raises costs itself. The script runs on any Python from
3.6 on with PySlurm from 22.5 on and imports nothing of jobsight.
"""

import json
import pwd
import sys
import time
from typing import Any, Dict, Iterator, List, Tuple

FORMAT = "jobsight pyslurm 1"

# Seconds of the shortest interval that is queried again after PySlurm raised for a longer one.
MIN_INTERVAL = 600

# Intervals that may fail before any could be read; then PySlurm raises for all of them.
MAX_FAILURES = 8

Answer = Tuple[str, List[Any], List[List[str]]]


def plain(value: Any) -> Any:
    """A value that JSON can represent."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {str(plain(key)): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(entry) for entry in value]
    return str(value)


def as_document(record: Any) -> Dict[str, Any]:
    """A record of the newer interface; to_dict() raises for some of them."""
    if isinstance(record, dict):
        return record
    try:
        return dict(record.to_dict())
    except Exception:
        found = {}
        for name in dir(record):
            if name.startswith("_"):
                continue
            try:
                value = getattr(record, name)
            except Exception:
                continue
            if not callable(value):
                found[name] = value
        return found


def documents(found: Any) -> List[Dict[str, Any]]:
    """The records of a dictionary or a list, depending on the release."""
    entries = list(found.values()) if hasattr(found, "values") else list(found)
    return [as_document(entry) for entry in entries]


def with_user(document: Dict[str, Any]) -> Dict[str, Any]:
    """The older interface has only the user id."""
    if "user_id" in document and not document.get("user_name"):
        try:
            document["user_name"] = pwd.getpwuid(int(document["user_id"])).pw_name
        except (KeyError, ValueError, TypeError):
            pass
    return document


def first_of(pyslurm: Any, *names: str) -> Tuple[str, Any]:
    """The first of the names that this PySlurm has."""
    for name in names:
        found = pyslurm
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not None:
            return name, found
    raise RuntimeError("this PySlurm has none of " + ", ".join(names))


def queue(pyslurm: Any) -> Answer:
    name, maker = first_of(pyslurm, "job", "Jobs")
    found = maker().get() if name == "job" else maker.load()
    return name, [with_user(document) for document in documents(found)], []


def cluster_name(pyslurm: Any) -> Answer:
    name, maker = first_of(pyslurm, "config", "slurmctld.Config")
    found = maker().get() if name == "config" else maker.load()
    # The whole configuration has passwords; only the name leaves this process.
    value = found.get("cluster_name") if isinstance(found, dict) else found.cluster_name
    return name, [value], []


def listed(pyslurm: Any, *names: str) -> Answer:
    name, maker = first_of(pyslurm, *names)
    found = maker().get() if name[0].islower() else maker.load()
    return name, documents(found), []


def accounting(pyslurm: Any, since: int, until: int) -> Answer:
    name, maker = first_of(pyslurm, "slurmdb_jobs", "db.Jobs")
    lost = []  # type: List[List[str]]
    loaded = []  # type: List[int]

    def load(begin: int, end: int) -> List[Dict[str, Any]]:
        if name == "slurmdb_jobs":
            texts = [time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(t)) for t in (begin, end)]
            # It passes them to a function of Slurm, which takes bytes.
            times = [text.encode("ascii") for text in texts]
            return documents(maker().get(starttime=times[0], endtime=times[1]))
        _, make_filter = first_of(pyslurm, "db.JobFilter", "db.JobSearchFilter")
        return documents(maker.load(make_filter(start_time=begin, end_time=end)))

    def pieces(begin: int, end: int) -> Iterator[Dict[str, Any]]:
        if not loaded and len(lost) >= MAX_FAILURES:
            return
        try:
            found = load(begin, end)
            loaded.append(begin)
        except Exception as error:
            if end - begin <= MIN_INTERVAL:
                lost.append(["%d to %d" % (begin, end), repr(error)])
                return
            middle = (begin + end) // 2
            for part in (pieces(begin, middle), pieces(middle, end)):
                for document in part:
                    yield document
            return
        for document in found:
            yield document

    found = list(pieces(since, until))
    if lost and not loaded:
        raise RuntimeError("nothing of the accounting could be read: " + lost[0][1])
    return name, found, lost


def answer(question: str, numbers: List[int]) -> Dict[str, Any]:
    try:
        import pyslurm
    except ImportError as error:
        return {"reason": "PySlurm cannot be imported: %s" % error}
    version = str(getattr(pyslurm, "__version__", "of an unnamed version"))
    if question == "probe":
        shape, records, lost = "none", [], []  # type: Answer
    elif question == "name":
        shape, records, lost = cluster_name(pyslurm)
    elif question == "queue":
        shape, records, lost = queue(pyslurm)
    elif question == "accounting":
        shape, records, lost = accounting(pyslurm, numbers[0], numbers[1])
    elif question == "nodes":
        shape, records, lost = listed(pyslurm, "node", "Nodes")
    else:
        shape, records, lost = listed(pyslurm, "partition", "Partitions")
    return {"version": version, "shape": shape, "records": plain(records), "lost": lost}


def main() -> int:
    try:
        found = answer(sys.argv[1], [int(number) for number in sys.argv[2:]])
    except Exception as error:
        found = {"reason": "PySlurm raised %r" % error}
    json.dump(dict(found, format=FORMAT), sys.stdout)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
