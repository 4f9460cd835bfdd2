"""Python rewards with TRL's signature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paretune.errors import InputError
from paretune.rewards import build_reward, parse_objective
from paretune.rewards.python import KIND, PythonReward

PLAIN = [{"role": "user", "content": "p"}]
CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]


def run(function: Any, *texts: str, prompts: Any = None, mode: Any = "auto", **columns: list[Any]) -> Any:
    return PythonReward(function, "f", mode)(prompts or [PLAIN] * len(texts), list(texts), columns)


def test_plain_prompts_are_given_as_trl_gives_them() -> None:
    seen: dict[str, Any] = {}

    def f(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        seen.update(columns, prompts=prompts, completions=completions)
        return [float(len(text)) for text in completions]

    assert run(f, "a", "bb", solution=["x", "y"]) == [1.0, 2.0]
    assert seen["prompts"] == ["p", "p"] and seen["completions"] == ["a", "bb"] and seen["solution"] == ["x", "y"]


def test_conversations_are_given_as_trl_gives_them() -> None:
    def f(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        assert prompts == [CHAT]
        return [len(completion[0]["content"]) for completion in completions if completion[0]["role"] == "assistant"]

    assert run(f, "abc", prompts=[CHAT]) == [3.0]


def test_mixed_rows_keep_their_order_and_columns() -> None:
    def f(prompts: Any, completions: Any, n: list[int], **columns: Any) -> list[float]:
        return [(100 if isinstance(text, list) else 0) + at for text, at in zip(completions, n, strict=True)]

    assert run(f, "a", "b", "c", prompts=[CHAT, PLAIN, CHAT], n=[1, 2, 3]) == [101.0, 2.0, 103.0]


def test_one_kind_of_rows_on_demand() -> None:
    def chat(completions: Any) -> list[float]:
        return [len(item[0]["content"]) for item in completions]

    def text(prompts: Any, completions: Any) -> list[float]:
        return [len(prompt + item) for prompt, item in zip(prompts, completions, strict=True)]

    assert run(chat, "abc", mode="chat") == [3.0]
    assert run(text, "abc", prompts=[CHAT], mode="text") == [4.0]
    with pytest.raises(InputError, match=r"raised TypeError.*plain text rows; add #chat"):
        run(chat, "abc")


def test_trl_rewards_run_unchanged() -> None:
    from trl.rewards import get_soft_overlong_punishment, think_format_reward

    right = "<think>\nIt is easy.\n</think>\nFour."
    assert run(think_format_reward, right, "Four.", mode="chat") == [1.0, 0.0]
    with pytest.raises(InputError, match="needs 'completion_ids', which is no column"):
        run(get_soft_overlong_punishment(10, 5), "a")


def test_arguments_that_trainers_pass() -> None:
    def f(completions: Any, trainer_state: Any, log_extra: Any, log_metric: Any) -> list[Any]:
        log_extra("a", ["b"])
        log_metric("a", 1.0)
        return [trainer_state]

    assert run(f, "a") == [None]


def test_coroutines_and_numpy_numbers() -> None:
    import numpy as np

    async def f(completions: Any, **columns: Any) -> list[Any]:
        return [np.float32(0.5), np.int64(2), True, None]

    assert run(f, *"abcd") == [0.5, 2.0, 1.0, None]


def bad_results() -> list[tuple[Any, str]]:
    import numpy as np
    import torch

    return [
        ([1.0], "f returned 1 scores for 2 completions"),
        ([1.0, float("nan")], r"f gave nan at index 1 \(row 'r2'\)"),
        ([float("inf"), 1.0], "f gave inf at index 0"),
        ([1.0, 10**400], "f gave inf at index 1"),
        ([1.0, "0.5"], "f gave str at index 1"),
        ([1.0, [1.0]], "f gave list at index 1"),
        ([torch.tensor(1.0), 1.0], "f gave Tensor at index 0"),
        (torch.ones(2), r"must return a list of numbers, found Tensor.*tolist"),
        (np.ones(2), r"must return a list of numbers, found ndarray.*tolist"),
        (1.0, "must return a list of numbers, found float"),
        (None, "must return a list of numbers, found NoneType"),
    ]


@pytest.mark.parametrize(("result", "cause"), bad_results())
def test_bad_results_name_function_and_index(result: Any, cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        run(lambda completions: result, "a", "b", id=["r1", "r2"])


def test_a_column_that_nobody_has() -> None:
    def f(completions: Any, solution: Any) -> list[float]:
        return [1.0]

    with pytest.raises(InputError, match=r"needs 'solution', which is no column of the rows \(columns: answer\)"):
        run(f, "a", answer=["x"])


def test_modules_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_rewards_here.py").write_text(
        "class Kit:\n    @staticmethod\n    def f(completions, **kwargs):\n        return [1.0] * len(completions)\n"
        "def g(completions):\n    return [2.0] * len(completions)\nvalue = 3\n"
    )
    for name, score in (("Kit.f", 1.0), ("g", 2.0)):
        reward = build_reward(parse_objective(f"x=python:my_rewards_here:{name}"))
        assert reward([PLAIN], ["a"], {}) == [score]
    for name, cause in (
        ("h", "no function 'h'"),
        ("gg", "Did you mean 'g'"),
        ("value", "'value' .* is no function"),
        ("Kit", "is a class; name an object of it"),
        ("g#cat", "unknown kind of rows '#cat'.*Did you mean 'chat'"),
        ("g#", "nothing follows the #"),
    ):
        with pytest.raises(InputError, match=cause):
            build_reward(parse_objective(f"x=python:my_rewards_here:{name}"))


def test_modules_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "needs_more.py").write_text("import not_installed_at_all\n")
    (tmp_path / "breaks_itself.py").write_text("1 / 0\n")
    for module, cause in (
        ("no_such_module_here", "there is no Python module 'no_such_module_here'"),
        ("needs_more", "imports 'not_installed_at_all', which is not installed"),
        ("breaks_itself", "raised ZeroDivisionError"),
    ):
        with pytest.raises(InputError, match=cause):
            build_reward(parse_objective(f"x=python:{module}:f"))


def test_an_object_that_can_be_called() -> None:
    class Longer:
        def __init__(self, by: float) -> None:
            self.by = by

        def __call__(self, completions: Any) -> list[float]:
            return [len(text) + self.by for text in completions]

    assert run(Longer(0.5), "a", "bb") == [1.5, 2.5]


def test_an_error_tells_the_rows_of_the_batch() -> None:
    def f(completions: Any) -> list[float]:
        raise RuntimeError("down")

    with pytest.raises(InputError, match="raised RuntimeError on rows 'r1' to 'r3': down"):
        run(f, "a", "b", "c", id=["r1", "r2", "r3"])
    with pytest.raises(InputError, match="raised RuntimeError on row 'r1': down"):
        run(f, "a", id=["r1"])
    with pytest.raises(InputError, match="raised RuntimeError: down"):
        run(f, "a")


def test_coroutines_where_a_loop_runs_already() -> None:
    import asyncio

    async def f(completions: Any) -> list[float]:
        await asyncio.sleep(0)
        return [1.0] * len(completions)

    async def notebook() -> Any:
        return run(f, "a", "b")

    assert asyncio.run(notebook()) == [1.0, 1.0]
    assert asyncio.run(notebook()) == [1.0, 1.0]


def test_coroutines_of_all_batches_share_a_loop() -> None:
    import asyncio

    class Client:
        """As clients of web services are: of the loop they were first used in."""

        def __init__(self) -> None:
            self.loop: Any = None

        async def __call__(self, completions: Any) -> list[float]:
            self.loop = self.loop or asyncio.get_running_loop()
            future = self.loop.create_future()
            self.loop.call_soon(future.set_result, [2.0] * len(completions))
            return await future

    client = Client()
    assert run(client, "a") == [2.0] and run(client, "b", "c") == [2.0, 2.0]


def test_a_fingerprint_follows_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fingerprinted.py").write_text("raise RuntimeError('it is not imported')\n")
    before = KIND.fingerprint("fingerprinted:f")
    (tmp_path / "fingerprinted.py").write_text("pass\n")
    assert before and KIND.fingerprint("fingerprinted:f") not in ("", before)
    assert KIND.fingerprint("no_such_module_here:f") == ""
    assert KIND.fingerprint("no_such_package.at_all:f") == ""
