"""Tasks of lm-evaluation-harness by name: found, loaded with their data, and run on a model.

Tasks come with lm-eval or from a folder of the user's YAML files (whose `!function` entries are Python that runs). Data
sets are downloaded by the `datasets` library at the first use, and read from its cache after that.
"""

from __future__ import annotations

import difflib
import io
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from paretune.errors import InputError
from paretune.harness.package import require_lm_eval
from paretune.policy.backbone import reason

FEWSHOT_SEED = 1234
"""lm-eval's own: few-shot examples are those of everybody else's runs."""


def load_tasks(names: Sequence[str], include_path: Path | str | None = None) -> dict[str, Any]:
    """Tasks, groups and tags by name, loaded: {"tasks": {name: task}, "groups": {name: group}, "group_map": ...}.

    Raises `InputError` for no name, a name twice, an unknown one, a folder that is none, and a task that cannot be
    loaded, most often because its data is not there and cannot be downloaded.
    """
    require_lm_eval()
    wanted = [name.strip() for name in names if name.strip()]
    if not wanted:
        raise InputError("no task is named; give names such as arc_easy,hellaswag")
    twice = sorted({name for name in wanted if wanted.count(name) > 1})
    if twice:
        raise InputError(f"the task '{twice[0]}' is named twice")
    if include_path is not None and not Path(include_path).is_dir():
        raise InputError("is no folder of tasks", file=include_path)
    with quiet():
        manager = _manager(wanted, include_path)
        for name in wanted:
            if name not in manager.task_index:
                near = difflib.get_close_matches(name, manager.all_tasks, n=3)
                hint = f" Did you mean {' or '.join(near)}?" if near else ""
                raise InputError(f"lm-eval has no task, group or tag '{name}'.{hint}")
        loaded: dict[str, Any] = {"tasks": {}, "groups": {}, "group_map": {}}
        for name in wanted:
            for kind, found in _load(manager, name).items():
                again = sorted(set(found) & set(loaded[kind])) if kind == "tasks" else []
                if again:
                    raise InputError(f"the task '{again[0]}' is there twice: by itself or in two of the groups")
                loaded[kind] |= found
    for name, task in loaded["tasks"].items():
        if getattr(task, "UNSAFE_CODE", False):
            raise InputError(f"the task '{name}' runs code that the model wrote; paretune does not run such tasks")
        if getattr(task, "MULTIMODAL", False):
            raise InputError(f"the task '{name}' needs images or sound, which a policy does not take")
    return loaded


def _manager(names: Sequence[str], include_path: Path | str | None) -> Any:
    """The index of tasks. That of lm-eval's own takes half a minute to read: not where all are the user's."""
    from lm_eval.tasks import TaskManager

    try:
        if include_path is not None:
            own = TaskManager(include_path=str(include_path), include_defaults=False)
            if set(names) <= set(own.all_subtasks):
                return own
        return TaskManager(include_path=None if include_path is None else str(include_path))
    except Exception as error:  # PyYAML's kinds, and what lm-eval raises at an include that is not there
        raise InputError(f"cannot be read as a folder of tasks: {reason(error)}", file=include_path) from error


def _load(manager: Any, name: str) -> dict[str, Any]:
    """One name's tasks and groups."""
    try:
        return dict(manager.load([name]))
    except Exception as error:  # of datasets, huggingface_hub, httpx, lm-eval, and of the task's own code
        raise InputError(
            f"the task '{name}' cannot be loaded: {reason(error)}. Where its data must be downloaded, run once with a "
            "network, or copy the cache of `datasets` (HF_HOME) from a machine that has it"
        ) from error


def run_tasks(
    model: Any,
    loaded: dict[str, Any],
    *,
    limit: int | None = None,
    num_fewshot: int | None = None,
    chat: bool = False,
    bootstrap: int = 1000,
) -> dict[str, Any]:
    """lm-eval's results of a model on loaded tasks, with every document's samples.

    Few-shot examples are drawn anew from the same seed at each call, so that two models get the same requests. A task's
    own number of zero few-shot examples stays. Raises `InputError` where lm-eval refuses.
    """
    from lm_eval.evaluator import evaluate

    for task in loaded["tasks"].values():
        given = task.get_config("num_fewshot")
        if num_fewshot is not None and given != 0:
            task.set_config(key="num_fewshot", value=num_fewshot)
        elif given is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=FEWSHOT_SEED)
    with quiet():
        try:
            return dict(
                evaluate(
                    lm=model,
                    task_dict=loaded,
                    limit=limit,
                    bootstrap_iters=bootstrap,
                    log_samples=True,
                    apply_chat_template=chat,
                    fewshot_as_multiturn=chat,
                )
            )
        except InputError:
            raise
        except (ValueError, AssertionError, KeyError) as error:
            raise InputError(f"lm-eval cannot run these tasks: {reason(error)}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """lm-eval's logs and prints stay out of what a verb prints, and its bootstrap starts no processes."""
    logger, before = logging.getLogger("lm_eval"), os.environ.get("DISABLE_MULTIPROC")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before
