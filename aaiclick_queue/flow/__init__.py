"""The flow of one task, one file a step. The map is in the package's docstring.

enqueue (dedupe, outbox) → relay → claim (mark) → execute (fenced, unknown) → complete (settle) → reaper, cancel;
heartbeat keeps the leases, background repeats relay and reaper as loops. Jobs: graph → submit (plan_rows) → … →
complete (arrive) → resolve, which opens what waited.
"""
