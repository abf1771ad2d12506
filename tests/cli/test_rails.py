"""The lines of a drawn graph lead where the graph leads, and nowhere else."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from aaiclick_queue.cli.rails import NODE, draw_rails
from aaiclick_queue.cli.shapes import topological, without_shortcuts

Graph = dict[str, list[str]]
# Where each sign leads: up, down, left, right.
OPEN = {
    "│": "ud", "├": "udr", "┤": "udl", "┼": "udlr", "╰": "ur", "╯": "ul", "┴": "ulr", "╭": "dr", "╮": "dl", "┬": "dlr",
    "─": "lr",
}  # fmt: skip
OPPOSITE = {"u": "d", "d": "u", "l": "r", "r": "l"}
MOVES = {"d": (1, 0), "l": (0, -1), "r": (0, 1)}  # never up: time goes down


def rows_of(order: list[str], nexts: Graph) -> tuple[list[str], dict[str, tuple[int, int]]]:
    """The drawing, and where each node is in it."""
    rows: list[str] = []
    places = {}
    for node, step in zip(order, draw_rails(order, nexts), strict=True):
        rows += step.above
        assert step.rails[step.at] == NODE
        places[node] = (len(rows), step.at)
        rows += [step.rails, *step.below]
    return [row.ljust(max(map(len, rows))) for row in rows], places


def seen_from(start: tuple[int, int], rows: list[str]) -> set[tuple[int, int]]:
    """The nodes that somebody finds who follows the lines down from a node with a finger."""
    found, visited = set(), set()
    open_ways = [(start[0] + 1, start[1], "u")]
    while open_ways:
        row, column, came = open_ways.pop()
        if row >= len(rows) or (row, column, came) in visited:
            continue
        visited.add((row, column, came))
        sign = rows[row][column]
        if sign == NODE:
            if came == "u":
                found.add((row, column))
            continue
        leads = OPEN.get(sign, "")
        if sign == "│" and "─" in (rows[row][column - 1 : column] or " ") and "─" in rows[row][column + 1 : column + 2]:
            leads = "ud" if came in "ud" else "lr"  # two lines that cross
        if came not in leads:
            continue
        for way in leads:
            if way != came and way in MOVES:
                down, right = MOVES[way]
                open_ways.append((row + down, column + right, OPPOSITE[way]))
    return found


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[str], Graph]:
    names = [f"n{number}" for number in range(draw(st.integers(1, 14)))]
    pairs = [(a, b) for at, a in enumerate(names) for b in names[at + 1 :]]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=30)) if pairs else []
    nexts: Graph = {name: [b for a, b in edges if a == name] for name in names}
    order, back = topological(names, nexts)
    assert not back
    return order, without_shortcuts(order, nexts)


@settings(deadline=None)
@given(graphs())
def test_whoever_follows_the_lines_finds_what_waits_for_a_node_and_nothing_else(drawn: tuple[list[str], Graph]) -> None:
    order, nexts = drawn
    rows, places = rows_of(order, nexts)
    nodes = {place: node for node, place in places.items()}
    for node in order:
        found = {nodes[place] for place in seen_from(places[node], rows)}
        assert found == set(nexts[node]), "\n".join(rows)


def test_a_fan_in_of_many_needs_few_rails() -> None:
    order, nexts = ["start"], {"start": [f"a{n}" for n in range(50)]}
    for n in range(50):
        order += [f"a{n}", f"b{n}"]
        nexts |= {f"a{n}": [f"b{n}"], f"b{n}": ["end"]}
    assert max(step.width for step in draw_rails([*order, "end"], nexts)) == 5


def test_what_a_longer_way_makes_needless_is_not_drawn() -> None:
    assert without_shortcuts(["a", "b", "c"], {"a": ["b", "c"], "b": ["c"]}) == {"a": ["b"], "b": ["c"], "c": []}


def test_a_circle_is_broken_and_told() -> None:
    order, back = topological(["a", "b", "c"], {"a": ["b"], "b": ["c"], "c": ["b"]})
    assert order == ["a", "b", "c"]
    assert back == [("c", "b")]
