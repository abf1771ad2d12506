from __future__ import annotations

from aaiclick_queue.references import Reference, count, deferred, references, renumbered, replaced, undeferred

TEXT = '{"a":{"$node": 1},"b":[{"$nodes":[1, 2]}],"c":{"$group":3},"d":{"$$node":2},"e":"{\\"$node\\": 1}"}'


def test_a_deferred_reference_is_renumbered_with_the_others_and_not_filled_in() -> None:
    assert [str(one) for one in references(TEXT)] == ['{"$node":1}', '{"$nodes":[1,2]}', '{"$group":3}']
    assert renumbered(TEXT, {1: 11, 2: 22}) == (
        '{"a":{"$node":11},"b":[{"$nodes":[11,22]}],"c":{"$group":3},"d":{"$$node":22},"e":"{\\"$node\\": 1}"}'
    )
    assert replaced(TEXT, lambda _: "0") == '{"a":0,"b":[0],"c":0,"d":{"$$node":2},"e":"{\\"$node\\": 1}"}'


def test_what_was_deferred_is_a_reference_again_where_it_was_taken_along() -> None:
    assert deferred('[{"$nodes":[1]},{"$group":2}]') == '[{"$$nodes":[1]},{"$$group":2}]'
    assert deferred('{"$$node":1}') == '{"$$node":1}'
    assert undeferred('[{"$$nodes":[1]},{"$$group":2},{"$node":3}]') == '[{"$nodes":[1]},{"$group":2},{"$node":3}]'
    assert renumbered('{"$completed":[1, 3]}', {1: 7}) == '{"$completed":[7,3]}'
    assert list(references(undeferred('{"$$node": 7}'))) == [Reference("node", (7,))]


def test_a_text_in_quotes_or_another_shape_is_no_reference() -> None:
    assert count('{"$$node":1}') == 1
    for text in (
        '"{\\"$node\\":1}"',
        '{"$group":{"_id":1}}',
        '{"$node":1,"b":2}',
        '{"$node":"1"}',
        '{"$node":[1]}',
        '{"$nodes":1}',
        '{"node":1}',
    ):
        assert not count(text)
