"""Arrive: how the end of a task is told to the gates it counts at. Before: complete, settle. After: the resolver.

Parts of the statements that end tasks: an end and its arrivals share a commit. Only appended, one row a gate and
statement, never a gate touched here: one hot counter updated by every completion cost more than twice the time.
"""

from __future__ import annotations

# At most two gates a task: what it is a member of, and what lies behind it. One that is continued by others has not
# ended for those behind it: they wait at what continues it.
_GATES = """CROSS JOIN LATERAL (VALUES (ended.member_gate), (ended.exit_gate)) AS at(gate_id)
    WHERE at.gate_id IS NOT NULL GROUP BY at.gate_id ORDER BY at.gate_id"""
ARRIVED_WELL = f"""arrived AS (
    INSERT INTO aaiclick_queue.arrivals (gate_id, n)
    SELECT at.gate_id, count(*) FROM (
        SELECT member_gate, CASE WHEN after_gate IS NULL THEN exit_gate END AS exit_gate FROM final) AS ended {_GATES}
)"""
# The failure of a task that is not critical counts as if it had been skipped.
ARRIVED_BADLY = f"""arrived AS (
    INSERT INTO aaiclick_queue.arrivals (gate_id, n, failed, skipped)
    SELECT at.gate_id, count(*), count(*) FILTER (WHERE NOT ended.skipped), count(*) FILTER (WHERE ended.skipped)
    FROM (SELECT member_gate, exit_gate, status = 'SKIPPED' OR (status = 'FAILED' AND critical IS FALSE) AS skipped
          FROM final) AS ended {_GATES}
)"""
