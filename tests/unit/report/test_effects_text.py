"""Sentences about what a predicted command would have done."""

from dataclasses import replace

from memlab.report.details_text import effects_sentences

EFFECTS = {
    "protection": "namespaces",
    "network": False,
    "written": [
        {"folder": "/home/me", "files": 1, "bytes": 100},
        *({"folder": f"/home/me/out{number}", "files": 2, "bytes": number * 2**30} for number in range(1, 5)),
    ],
    "deleted": [{"folder": "/home/me/old", "files": 1, "bytes": 0}],
    "refused": [{"what": "connection to hub.example:443", "times": 3}],
    "answered": [{"what": "create_repo me/model", "times": 1}],
}


def test_effects_are_told_with_the_protection_that_was_in_force(record):
    predicted = replace(record(), command={"words": ["train"], "effects": EFFECTS})
    assert effects_sentences(predicted) == [
        "The command ran in kernel namespaces of its own: no file outside its run folder changed, and the network was "
        "closed.",
        "It would have written 9 files, 10.0 GiB, in /home/me/out4, /home/me/out3, /home/me/out2 and 2 more "
        "(record.json has all).",
        "It would have deleted 1 file, 0 bytes, in /home/me/old.",
        "Refused: connection to hub.example:443 (3 times).",
        "Answered without the Hugging Face Hub: create_repo me/model.",
    ]


def test_a_folder_without_files_is_not_told(record):
    effects = {**EFFECTS, "written": [{"folder": "/tmp/empty", "files": 0, "bytes": 0}]}
    told = effects_sentences(replace(record(), command={"words": ["train"], "effects": effects}))
    assert not any("written" in sentence for sentence in told)


def test_of_landlock_all_is_claimed_and_without_a_wall_nothing(record):
    def first(protection: str) -> str:
        effects = {**EFFECTS, "protection": protection}
        return effects_sentences(replace(record(), command={"words": ["train"], "effects": effects}))[0]

    assert first("landlock").endswith(
        "no file outside its run folder and /dev/shm changed, and the network was closed."
    )
    assert first("unprotected").endswith("by system calls of their own, as most Go programs do, is not known.")
    assert "closed" not in first("unprotected")


def test_a_measured_command_has_no_such_sentences(record):
    predicted = replace(record(), command={"words": ["train"]})
    assert effects_sentences(predicted) == []
