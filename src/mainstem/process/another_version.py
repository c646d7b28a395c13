"""What to tell of a version that cannot go on, or is to be ended: how another one is started instead."""


def start_another(job: str, *, is_edited: bool = False) -> str:
    """The command that starts one beside it, whatever the project's settings say of versions.

    Args:
        job: its name.
        is_edited: the code is another one since; otherwise the same may be built once more.
    """
    anyway = "" if is_edited else " --anyway"
    return (
        f"`mainstem job reprocess {job}{anyway}` starts another version: it reads what there is from the beginning, in "
        "the shape of now, and writes a topic of its own"
    )


def instead_of_retired(job: str) -> str:
    """Of a job whose project asks for a version that was retired: because its settings name it, or none goes on."""
    return (
        f"take `version` out of [jobs.{job}] if it names this one; where no other goes on, `mainstem job reprocess {job}` "
        "starts one; or take the job out of the code"
    )


def before_it_is_retired(job: str) -> str:
    """Of a version that the project asks for: because its settings name it, or because it is the last that goes on."""
    return (
        f"first `mainstem job reprocess {job} --anyway`, which starts another one, or, where `version` under [jobs.{job}] "
        "names this one, name another there; or take the job out of the code"
    )
