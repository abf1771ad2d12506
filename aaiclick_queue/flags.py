"""Flags that travel with a task through every place: what its end has to do beyond the ordinary."""

from __future__ import annotations

KEYED = 1  # holds a dedupe key: whoever ends it frees that key
LIMITED = 2  # was admitted under limits: whoever takes it out of line or lease gives its slots back
ORDERED = 4  # one of a strict order: the next one waits until this one is final
STOPS = 8  # ordered, and its failure stops those behind it
HOOKED = 16  # has hooks: tasks that its end or its retry enqueues
KEEP_NONE = 32  # its row goes with its end, whatever that is
KEEP_FAILED = 64  # its row goes with its end if that is a success
IN_JOB = 128  # a job's task: its end arrives at gates
INPUTS = 256  # its arguments name other tasks, whose results take their place
KNOWN = 511  # all of them; what has others was made by a newer version, and is left to one
FORGET = KEEP_NONE | KEEP_FAILED  # of a success

# What the statement for ordinary completions does not look after.
SPECIAL = LIMITED | ORDERED | STOPS | HOOKED | KEEP_NONE | KEEP_FAILED
