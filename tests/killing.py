"""Runs that are really killed (SIGKILL), each in a process of its own, just before one of the things it does.

    python tests/killing.py VERB DATA MODEL FOLDER EVERY OUTPUT [SETTING ...]

VERB is `improve`, `reward`, `sample` or a method of `paretune train`; OUTPUT is the name of what it writes, in
FOLDER/work.
What is killed at are all changes to the files there, as Python's audit events tell of them (a file opened for
writing, renamed, removed, a folder made), the steps of training and the validations. One run without a break lists
them and leaves FOLDER/plain; then runs by the same command are killed, each at the EVERY-th place after the one before.
What a run ends in that comes to its end is FOLDER/done-N, or FOLDER/tidying-N if the next run is told that it is there
already. It prints how all processes ended, as one JSON object.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEASURED = ("seconds", "tokens_per_second", "peak_memory_mib")
REFUSED = 3
"""Exit status of a run that ended in an `InputError`."""


# --- what a run leaves --------------------------------------------------------------------------------------------


def timeless(record: Any) -> Any:
    """A record of metrics without what a clock or a meter measured."""
    if isinstance(record, list):
        return [timeless(each) for each in record]
    if not isinstance(record, dict):
        return record
    return {key: timeless(each) for key, each in record.items() if key not in MEASURED}


def content(folder: Path) -> dict[str, Any]:
    """All that a folder (or a file) holds, but for the clock: README.md says the same numbers as metrics.json."""
    if folder.is_file():
        return {folder.suffix: folder.read_bytes()}
    found: dict[str, Any] = {
        str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()
    }
    assert found.pop("README.md")
    for name in found:
        if name.endswith("train.jsonl"):
            found[name] = [timeless(json.loads(line)) for line in found[name].splitlines()]
        elif name.endswith(("metrics.json", "rounds.json")):
            found[name] = timeless(json.loads(found[name]))
    return found


def same(one: Path, two: Path) -> None:
    """Assert that two runs left the same."""
    first, second = content(one), content(two)
    assert first.keys() == second.keys()
    for name, each in first.items():
        assert each == second[name], name


# --- what a run does, and its end ---------------------------------------------------------------------------------


class Watch:
    """Tells `seen` of every change below `folder` that this process is about to make, and of what it computes."""

    WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    CHANGES = ("os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.rename")

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.seen: Callable[[str], None] = void  # an audit hook stays for good, so it is told where to report
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        base = -1
        if event in self.CHANGES:
            base = arguments[-1]
        elif event != "open" or not isinstance(arguments[2], int) or not arguments[2] & self.WRITING:
            return
        if not isinstance(arguments[0], (str, bytes, Path)):
            return
        path = os.fsdecode(arguments[0])
        if not path.startswith("/") and isinstance(base, int) and base >= 0:
            path = f"{os.readlink(f'/proc/self/fd/{base}')}/{path}"
        if path.startswith(self.folder):
            self.seen(f"{event.removeprefix('os.')} {nameless(path.removeprefix(self.folder))}")

    def calls(self, owner: Any, name: str) -> None:
        """Tell of each call of a function too."""
        function = getattr(owner, name)

        def told(*arguments: Any, **options: Any) -> Any:
            self.seen(f"call {name}")
            return function(*arguments, **options)

        setattr(owner, name, told)


def nameless(path: str) -> str:
    """A path without what differs from process to process."""
    path = re.sub(r"\.[a-z0-9_]{8}\.part", ".X.part", path)
    return re.sub(r"\.\d+\.(train\.jsonl|old)", r".N.\1", path)


def watch_of(folder: Path) -> Watch:
    """Watches this process: the files, and what takes long between them."""
    from paretune.training import loop

    watch = Watch(folder)
    watch.calls(loop, "_accumulate")
    for module in ("paretune.methods.setup", "paretune.reward_model.train"):
        watch.calls(sys.modules[module], "validate")
    return watch


def counted(seen: Callable[[str, int], None]) -> Callable[[str], None]:
    """Numbers the occurrences of each event: it is the pair that is a place."""
    times: dict[str, int] = {}

    def one(event: str) -> None:
        times[event] = times.get(event, 0) + 1
        seen(event, times[event])

    return one


def ended(action: Callable[[], None], log: Path) -> int:
    """How a process that runs this ends: 0, `REFUSED`, or minus the signal; its error lies in `log` otherwise."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException as error:
            from paretune.errors import InputError

            log.write_text(f"{type(error).__name__}: {error}\n")
            status = REFUSED if isinstance(error, InputError) else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_at(place: tuple[str, int], action: Callable[[], None], watch: Watch, log: Path) -> int:
    """Run until just before the place, if it is on the way."""

    def deadly(event: str, number: int) -> None:
        if (event, number) == place:
            os.kill(os.getpid(), signal.SIGKILL)

    def run() -> None:
        watch.seen = counted(deadly)
        action()

    return ended(run, log)


# --- the whole ----------------------------------------------------------------------------------------------------


def action_of(verb: str, data: str, model: str, out: Path, settings: list[str]) -> Callable[[], None]:
    """The run itself."""
    if verb == "sample":
        from paretune.policy.sample import sample

        return lambda: void(sample(data, model, out, n=2, max_new_tokens=8, batch_size=4))
    if verb == "improve":
        from improving import QUICK
        from paretune.methods.improve import improve

        return lambda: void(improve(model, data, out, **QUICK | {"rounds": 1, "settings": tuple(settings)}))
    if verb == "reward":
        from paretune.reward_model import train_reward_model

        return lambda: void(train_reward_model(data, model, out, settings=settings))
    from paretune.methods import train

    return lambda: void(train(verb, data, model, out, settings=settings))


def void(_: Any) -> None:
    """Takes what is of no interest."""


def main(verb: str, data: str, model: str, folder: Path, every: int, output: str, settings: list[str]) -> None:
    """Kill and go on, as the docstring of this file says."""
    import paretune.methods
    import paretune.reward_model.train  # noqa: F401

    work, log = folder / "work", folder / "error"
    work.mkdir(parents=True)
    out = work / output
    action = action_of(verb, data, model, out, settings)
    watch = watch_of(work)
    places: list[tuple[str, int]] = []
    watch.seen = counted(lambda event, number: places.append((event, number)))
    action()  # in this process: the children are forked with all libraries read
    watch.seen = void
    out.rename(folder / "plain")
    shutil.rmtree(work)
    work.mkdir()
    told: dict[str, Any] = {"places": len(places), "killed": [], "done": []}

    def finish(name: str) -> None:
        watch.seen = void
        out.rename(folder / name)
        left = sorted(nameless(each.name) for each in work.iterdir())
        shutil.rmtree(work)
        work.mkdir()
        told["done"].append({"name": name, "left": left})

    for event, number in places[every - 1 :: every]:
        # a run that goes on does not come by the places behind it again, so its own are counted anew
        status = killed_at((event, 1 if told["killed"] else number), action, watch, log)
        if status == -signal.SIGKILL:
            told["killed"].append(event)
        elif status == 0:
            finish(f"done-{len(told['done'])}")
        elif status == REFUSED and out.exists():  # it was killed when all but the tidying up was done
            finish(f"tidying-{len(told['done'])}")
        else:
            raise SystemExit(f"at {event}: status {status}, {log.read_text()}")
    status = ended(action, log)
    if status not in (0, REFUSED) or not out.exists():
        raise SystemExit(f"at the end: status {status}, {log.read_text()}")
    finish("last" if status == 0 else "tidying-last")
    print(json.dumps(told))


if __name__ == "__main__":
    main(
        sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]).resolve(), int(sys.argv[5]), sys.argv[6], sys.argv[7:]
    )
