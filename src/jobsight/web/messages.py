"""Messages that are no text of a template: words that Python has and templates show by ``_(word)``.

``make translations`` collects them from here; a test fails when one of the tables that they come
from has a word that is missing.
"""

from __future__ import annotations


def N_(message: str) -> str:  # noqa: N802 -- the name that gettext's tools know
    """Mark a message for translation."""
    return message


MESSAGES = (
    # The links at the top.
    *(N_("Home"), N_("Jobs"), N_("Clusters"), N_("Users"), N_("Accounts"), N_("Software")),
    *(N_("Findings"), N_("Operations"), N_("Help")),
    # Intervals, and the steps of charts.
    *(N_("7 days"), N_("30 days"), N_("90 days"), N_("a year")),
    *(N_("day"), N_("week"), N_("month"), N_("Day"), N_("Week"), N_("Month")),
    # Titles of charts and of quartiles.
    *(N_("held"), N_("used"), N_("held by jobs"), N_("used by jobs"), N_("used by the node")),
    N_("used by the nodes"),
    *(N_("CPUs"), N_("Memory"), N_("Load"), N_("Network"), N_("Disks"), N_("Power")),
    *(N_("Time in which processes waited"), N_("for a CPU"), N_("for memory"), N_("for I/O")),
    *(N_("page cache"), N_("load average"), N_("received"), N_("sent"), N_("read")),
    *(N_("written"), N_("node"), N_("processors and memory")),
    *(N_("core hours held"), N_("GPU hours held"), N_("all CPUs of now"), N_("all GPUs of now")),
    *(N_("Elapsed"), N_("CPU used of held"), N_("Memory, peak of requested"), N_("Memory, peak")),
    *(N_("GPU used of held"), N_("Waiting for the start")),
    # Severities and qualities.
    *(N_("info"), N_("warning"), N_("critical")),
    *(N_("exact"), N_("estimate"), N_("not measured"), N_("not readable")),
    # States of jobs, as jobsight.reports.report describes them.
    *(N_("Completed"), N_("Running"), N_("Failed"), N_("Cancelled"), N_("Pending")),
    *(N_("Ended: out of memory"), N_("Ended: time limit reached"), N_("State unknown")),
    *(N_("Failed: a node did not boot"), N_("Failed: a node went down"), N_("Completing")),
    *(N_("Configuring"), N_("Ended at its deadline"), N_("Preempted"), N_("Requeued")),
    N_("Suspended"),
    # Columns and tabs of the list of jobs.
    *(N_("Job"), N_("State, finding"), N_("Name"), N_("Cluster"), N_("Partition"), N_("QOS")),
    *(N_("Start (UTC)"), N_("End (UTC)"), N_("CPUs"), N_("CPU use"), N_("CPU time")),
    *(N_("Memory peak"), N_("GPUs"), N_("GPUs, used of held"), N_("Nodes")),
    *(N_("All"), N_("Waiting")),
    # Kinds of subjects.
    *(N_("User"), N_("Account")),
    # Why jobs wait: jobsight.reports.queue.
    N_("Jobs with a higher priority are ahead of it."),
    N_("It is next, and waits until enough nodes, CPUs, memory or GPUs are free."),
    N_("It waits for another job to end."),
    N_("The job that it depends on ended otherwise; it will never start."),
    N_("Its user requested a later start."),
    N_("Its user holds it; `scontrol release` lets it start."),
    N_("An administrator holds it."),
    N_("As many tasks of its array run as the array allows at a time."),
    N_("It waits for a licence."),
    N_("It waits for its reservation to begin."),
    N_("The reservation that it requests was deleted; it will never start."),
    N_("A node that it needs is down, drained or reserved."),
    N_("A node that it needs is down."),
    N_("Its partition starts no jobs."),
    N_("Its partition accepts no jobs."),
    N_("It requests more nodes than its partition allows."),
    N_("It requests more time than its partition allows."),
    N_("No node can satisfy its constraints; it will never start."),
    N_("Its account is not valid."),
    N_("Its quality of service is not valid."),
    N_("Its last run is being cleaned up."),
    N_("The prolog of its nodes runs."),
    N_("No front end is available."),
    N_("Slurm has not considered it yet."),
    N_("Slurm gave no reason."),
    N_("A limit of its quality of service is reached."),
    N_("A limit of its account or user is reached."),
    N_("A node that it needs is not available."),
    # What was viewed: jobsight.store.accounts.audit.
    *(N_("the page of the user"), N_("an entry of a list"), N_("a list of many users")),
    # Topics of the help.
    *(N_("What the figures mean"), N_("Metrics"), N_("What is kept, and why")),
)
