"""Map over files that are found at run time, then reduce: nobody knows their number when the job is written.

Run it: python examples/map_reduce_files.py
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from aaiclick_queue import Settings, Worker, current, job, task

TEXTS = ["the queue holds the task", "the worker takes the task", "the task ends", ""]


@task
def list_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.txt"))


@task
def count_words(file: Path) -> dict[str, int]:
    return dict(Counter(file.read_text().split()))


@task
def add_up(counts: list[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total.most_common(2))


@job
def word_count(folder: Path) -> Any:
    # The map waits for its list, then makes one task a file; at most two of them run at once.
    counted = count_words.map(list_files(folder), max_parallel=2)
    return counted.reduce(add_up)


@task
def count_folder(folder: Path) -> Any:
    """In a task of a job, too, calling a task makes a node; returning it continues: its result is the result here."""
    if any(folder.glob("*.txt")):
        return add_up(count_words.map(list_files(folder)))
    print(f"{folder.name} is empty, attempt {current().attempt}: nothing to add")
    return {}


@job
def word_counts(folders: list[Path]) -> Any:
    return {folder.name: count_folder(folder) for folder in folders}


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        full, empty = Path(name, "full"), Path(name, "empty")
        for folder in (full, empty):
            folder.mkdir()
        for number, text in enumerate(TEXTS):
            (full / f"{number}.txt").write_text(text)

        async with asyncio.TaskGroup() as group:
            worker = Worker(Settings.load())
            group.create_task(worker.run())

            run = await word_count.enqueue(full)
            words = await run.result(timeout=30)
            print(f"{len(TEXTS)} files, the most frequent words: {words}")
            assert words == {"the": 5, "task": 3}

            nothing = await (await word_count.enqueue(empty)).result(timeout=30)
            print(f"an empty folder is a map of no tasks: {nothing}")
            assert nothing == {}

            both = await (await word_counts.enqueue([full, empty])).result(timeout=30)
            print(f"the same, added by tasks as they run: {both}")
            assert both == {"full": words, "empty": {}}
            worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
