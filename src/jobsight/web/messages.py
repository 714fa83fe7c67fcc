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
    # Columns of jobs that wait: jobsight.web.pages.jobs.
    *(N_("Submitted (UTC)"), N_("Expected start (UTC)"), N_("Memory requested")),
    # Figures of a comparison: jobsight.web.pages.compare.
    N_("State"),
    N_("Command"),
    N_("Time limit"),
    N_("Cores busy, mean"),
    N_("Read"),
    N_("Written"),
    N_("Read from storage"),
    N_("Written to storage"),
    N_("GPU use"),
    N_("What"),
    N_("Requested"),
    N_("Used"),
    N_("Found"),
    N_("Programs by CPU time"),
    # Why a sign-in failed: jobsight.server.auth.sign_in.
    N_("The directory of users does not answer. Try again in a minute."),
    N_("You are in none of the groups that may sign in here."),
    N_("The user name or the password is invalid."),
    N_("The account is disabled. Ask the staff of your site."),
    N_("The token is invalid."),
    # Groups of figures: jobsight.reports.report.
    *(N_("Split by executable"), N_("GPUs of the job"), N_("GPU time by executable and step")),
    # What was viewed: jobsight.store.accounts.audit.
    *(N_("the page of the user"), N_("an entry of a list"), N_("a list of many users")),
    # Topics of the help.
    *(N_("What the figures mean"), N_("Metrics"), N_("What is kept, and why")),
)

#: Texts of the scripts of the pages, static/*.js, which get them from the page.
SCRIPT_TEXTS = (
    N_("%(count)s days ago"),
    N_("%(count)s h ago"),
    N_("%(count)s min ago"),
    N_("%(time)s after the start"),
    N_("%(time)s after the start, %(clock)s UTC"),
    N_("%(value)s (%(low)s to %(high)s)"),
    N_("Arrow keys read values."),
    N_("CPU"),
    N_("CPU used by node over time"),
    N_("GPU memory"),
    N_("GPU used"),
    N_("GPU used, each over time"),
    N_("I/O"),
    N_("Lines of %(title)s"),
    N_("Memory"),
    N_("Never used: %(names)s."),
    N_("No values were recorded."),
    N_("Of %(count)s GPUs of a node, the first %(shown)s are shown over time."),
    N_("Processes and threads"),
    N_("Read"),
    N_("Shaded from %(from)s on"),
    N_("Shaded from %(from)s to %(to)s"),
    N_("The time series could not be loaded: %(reason)s."),
    N_("The time series of the GPUs could not be loaded: %(reason)s."),
    N_("The use of %(count)s GPUs over time."),
    N_("The use of %(count)s nodes over time."),
    N_("Written"),
    N_("cores"),
    N_("from %(low)s to %(high)s"),
    N_("from storage"),
    N_("in the future"),
    N_("just now"),
    N_("mean and range of %(count)s"),
    N_("no value"),
    N_("no values"),
    N_("one line each"),
    N_("processes"),
    N_("read"),
    N_("requested"),
    N_("requested, per node"),
    N_("system"),
    N_("threads"),
    N_("to storage"),
    N_("used"),
    N_("with page cache"),
    N_("written"),
)
