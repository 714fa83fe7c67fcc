"""The same work: keys of scripts and names, signatures of programs, and the order of grouping."""

import string

from hypothesis import given
from hypothesis import strategies as st

from jobsight.findings.work import Signature, find_work, name_key, signature_of
from jobsight.model import JobInfo
from jobsight.util.script_key import MAX_SCRIPT_SIZE, command_lines, script_key

SCRIPT = """#!/bin/bash
#SBATCH --mem=4G
# Prepare.
echo "a # b"  # shows a

cat <<-EOF > parameters
# kept
\tEOF
echo ${#name} $# a#b 'two
# lines'
srun program
"""


def test_comments_blank_lines_and_directives_do_not_count() -> None:
    changed = (
        SCRIPT.replace("--mem=4G", "--mem=64G")
        .replace("# Prepare.\n", "\n\n   # Something else.\n")
        .replace("  # shows a", "")
        .replace("srun", "   srun")
        .replace("\n", "\r\n")
    )
    assert script_key(changed) == script_key(SCRIPT)


def test_commands_here_documents_and_quoted_marks_count() -> None:
    assert list(command_lines(SCRIPT)) == [
        "#!/bin/bash",
        'echo "a # b"',
        "cat <<-EOF > parameters",
        "# kept",
        "\tEOF",
        "echo ${#name} $# a#b 'two",
        "# lines'",
        "srun program",
    ]
    for old, new in (("# kept", "# lost"), ("# lines", "# line"), ("a # b", "a # c"), ("$#", "$1")):
        assert script_key(SCRIPT.replace(old, new)) != script_key(SCRIPT)


@given(st.text(st.sampled_from("#'\"\\<E\nO F-\tx" + string.digits), max_size=300))
def test_any_text_has_a_key(text: str) -> None:
    assert len(script_key(text)) == 16
    assert script_key(text) == script_key(text)


def test_an_endless_script_is_cut() -> None:
    long = "x\n" * MAX_SCRIPT_SIZE
    assert script_key(long) == script_key(long + "y")


def test_numbers_of_names_are_folded() -> None:
    assert name_key("sim_0012.sh") == name_key("sim_7.sh") == "sim_#.sh"
    assert name_key(None) == name_key("  ") == ""
    assert len(name_key("a" * 5000)) == 200


def test_programs_are_known_by_name() -> None:
    old = signature_of([(b"/sw/gromacs/2024.1/bin/gmx", 990.0), (b"/bin/cp", 5.0)])
    new = signature_of([(b"/sw/gromacs/2024.3/bin/gmx", 800.0), (b"/bin/ls", 1.0)])
    assert old.programs == new.programs
    assert len(old.programs) == 1
    assert signature_of([]) == signature_of([(b"/bin/a", 0.0)]) == Signature()
    assert len(signature_of((b"/bin/%c" % letter, 1.0) for letter in range(65, 90)).programs) == 16


def test_a_program_near_the_threshold_does_not_make_another_work() -> None:
    info = JobInfo(cluster="c1", job_id=1, source="slurm", user="anna", name="sim1")
    first = find_work(info, signature_of([(b"a", 989.0), (b"b", 11.0)]))
    assert first is not None
    second = find_work(info, signature_of([(b"a", 991.0), (b"b", 9.0)]), known=[first.key])
    assert second == first
    other = find_work(info, signature_of([(b"a", 500.0), (b"c", 500.0)]), known=[first.key])
    assert other is not None
    assert other.key != first.key


def test_a_run_that_died_early_joins_the_work_it_began() -> None:
    info = JobInfo(cluster="c1", job_id=1, source="slurm", user="anna", name="sim1")
    whole = find_work(info, signature_of([(b"a", 10.0), (b"b", 90.0)]))
    assert whole is not None
    early = signature_of([(b"a", 3.0)])
    assert find_work(info, early, complete=False, known=[whole.key]) == whole
    assert find_work(info, Signature(), complete=False, known=[whole.key]) == whole
    assert find_work(info, early, known=[whole.key]) != whole


def test_script_before_name_before_account() -> None:
    programs = signature_of([(b"a", 1.0)])
    info = JobInfo(
        cluster="c1", job_id=1, source="slurm", user="anna", account="physics", name="sim1"
    )
    by_script = find_work(info, programs, script=b"s" * 16)
    assert by_script is not None
    assert (by_script.kind, by_script.user) == ("script", "anna")
    by_name = find_work(info, programs)
    assert by_name is not None
    assert (by_name.kind, by_name.account) == ("name", "")
    info.name = None
    by_programs = find_work(info, programs)
    assert by_programs is not None
    assert (by_programs.kind, by_programs.user) == ("signature", "")
    assert find_work(info, Signature()) is None


def test_a_shell_is_no_part_of_the_work() -> None:
    """It uses the same whatever the program does: more input is not another work."""
    info = JobInfo(cluster="c1", job_id=7, source="slurm", user="ada", name="solve")
    little = signature_of([(b"/sw/solve", 0.3), (b"/usr/bin/bash", 0.02)])
    first = find_work(info, little)
    assert first is not None
    much = signature_of([(b"/sw/solve", 30.0), (b"/usr/bin/bash", 0.02)])
    assert find_work(info, much) == first
    other = find_work(info, signature_of([(b"/sw/view", 0.3), (b"/usr/bin/bash", 0.02)]))
    assert other != first


def test_the_shell_of_an_earlier_release_is_still_the_same_work() -> None:
    """Keys that are stored have it."""
    info = JobInfo(cluster="c1", job_id=7, source="slurm", user="ada", name="solve")
    shell = signature_of([(b"/usr/bin/bash", 1.0)]).programs
    old = Signature(signature_of([(b"/sw/solve", 1.0)]).programs | shell)
    known = find_work(info, old)
    assert known is not None
    again = signature_of([(b"/sw/solve", 30.0), (b"/usr/bin/bash", 0.02)])
    assert find_work(info, again, known=[known.key]) == known


def test_a_run_of_nothing_but_shells_has_a_work_of_its_own() -> None:
    assert (
        signature_of([(b"/bin/bash", 1.0)]).programs != signature_of([(b"/bin/zsh", 1.0)]).programs
    )
