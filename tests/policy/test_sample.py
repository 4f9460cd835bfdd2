"""Sampling from a base model: instructions in turn, the prompt kept raw, and a killed run that goes on bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from paretune.errors import InputError
from paretune.files import locked
from paretune.policy import sample
from paretune.policy.sample import Journal, Sampled, instructed, read_instructions

QUICK = dict(n=2, max_new_tokens=6, dtype="float32", batch_size=4)


@pytest.fixture
def prompts(tmp_path):
    """Nine prompts of mixed kinds and lengths."""
    rows = [{"id": f"p{i}", "prompt": f"What is {'very ' * i}{i}?"} for i in range(7)]
    hi, bye = {"role": "user", "content": "Hi"}, {"role": "user", "content": "Bye"}
    rows.append({"id": "talk", "prompt": [{"role": "system", "content": "Be kind."}, hi]})
    rows.append({"id": "turns", "prompt": [hi, {"role": "assistant", "content": "Hello."}, bye]})
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def vary(tmp_path):
    path = tmp_path / "vary.txt"
    path.write_text("Be short.\n\nBe long and warm.\n")
    return path


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def hidden(path):
    return [name for name in os.listdir(path.parent) if name.startswith(".")]


# --- what is sampled ----------------------------------------------------------------------------------------------


def test_n_completions_a_prompt_in_the_order_of_the_prompts(prompts, tiny_model, tmp_path):
    out = tmp_path / "out.jsonl"
    result = sample(prompts, str(tiny_model), out, **{**QUICK, "n": 3})
    rows, asked = rows_of(out), rows_of(prompts)
    assert [row["id"] for row in rows] == [row["id"] for row in asked]
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in asked]
    assert all(len(row["completions"]) == 3 for row in rows)
    assert all(set(each) == {"text", "finished"} for row in rows for each in row["completions"])
    assert (result.rows, result.completions, result.dropped, result.resumed) == (9, 27, 0, 0)
    assert 0 < result.tokens <= 27 * 6
    assert len({each["text"] for row in rows for each in row["completions"]}) > 13
    assert hidden(out) == []


def test_instructions_are_taken_in_turn_recorded_and_kept_out_of_the_prompt(prompts, vary, tiny_qwen, tmp_path):
    out, plain = tmp_path / "out.jsonl", tmp_path / "plain.jsonl"
    sample(prompts, str(tiny_qwen), out, vary=vary, **{**QUICK, "n": 5})
    sample(prompts, str(tiny_qwen), plain, **{**QUICK, "n": 5})
    for row, asked, free in zip(rows_of(out), rows_of(prompts), rows_of(plain), strict=True):
        assert row["prompt"] == asked["prompt"]
        turns = ["Be short.", None, "Be long and warm.", "Be short.", None]
        assert [each.get("instruction") for each in row["completions"]] == turns
        # without an instruction the completion is the one of a run without instructions
        assert row["completions"][1] == free["completions"][1] and row["completions"][4] == free["completions"][4]
        assert row["completions"][0]["text"] != free["completions"][0]["text"]


def test_an_instruction_follows_the_users_last_text():
    messages = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    assert instructed(messages, "Be short.") == [*messages[:2], {"role": "user", "content": "c\nBe short."}]
    assert instructed(messages, "") == messages
    assert messages[-1]["content"] == "c"


def test_greedy_samples_are_what_the_model_says(prompts, tiny_llama, tmp_path):
    from paretune.policy import Renderer
    from paretune.policy.backbone import load_backbone

    sample(prompts, str(tiny_llama), tmp_path / "out.jsonl", **{**QUICK, "n": 1, "temperature": 0.0})
    import torch

    causal, tokenizer = load_backbone(str(tiny_llama), dtype="float32")
    renderer = Renderer(tokenizer, [])
    for row in rows_of(tmp_path / "out.jsonl"):
        messages = [{"role": "user", "content": row["prompt"]}] if isinstance(row["prompt"], str) else row["prompt"]
        ids = torch.tensor([[*renderer.prefix(messages), *renderer.suffix(messages, None)]])
        options = dict(do_sample=False, max_new_tokens=6, pad_token_id=0)
        out = causal.generate(ids, attention_mask=torch.ones_like(ids), **options)
        text = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).strip()
        assert row["completions"][0]["text"] == text


def test_completions_that_are_there_are_kept(tmp_path, tiny_qwen):
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"prompt": "Hi", "completions": [{"text": "Hello", "scores": {"a": 0.5}}]}) + "\n")
    sample(data, str(tiny_qwen), tmp_path / "out.jsonl", **QUICK)
    (row,) = rows_of(tmp_path / "out.jsonl")
    assert row["completions"][0] == {"text": "Hello", "scores": {"a": 0.5}} and len(row["completions"]) == 3


def test_the_same_seed_gives_the_same_bytes(prompts, vary, tiny_qwen, tmp_path):
    paths = [tmp_path / f"{name}.jsonl" for name in ("one", "two", "other")]
    for path, seed in zip(paths, (0, 0, 1), strict=True):
        sample(prompts, str(tiny_qwen), path, vary=vary, seed=seed, **QUICK)
    one, two, other = (path.read_bytes() for path in paths)
    assert one == two and one != other


def test_a_completion_does_not_depend_on_the_batch_nor_on_the_other_prompts(prompts, tiny_qwen, tmp_path):
    fine = {**QUICK, "dtype": "float64"}
    sample(prompts, str(tiny_qwen), tmp_path / "all.jsonl", **fine)
    sample(prompts, str(tiny_qwen), tmp_path / "single.jsonl", **{**fine, "batch_size": 1})
    assert (tmp_path / "all.jsonl").read_bytes() == (tmp_path / "single.jsonl").read_bytes()
    few = tmp_path / "few.jsonl"
    few.write_text("".join(prompts.read_text().splitlines(keepends=True)[4:6]))
    sample(few, str(tiny_qwen), tmp_path / "few.out.jsonl", **fine)
    assert rows_of(tmp_path / "few.out.jsonl") == rows_of(tmp_path / "all.jsonl")[4:6]


def test_prompts_that_do_not_fit_are_dropped_and_counted(prompts, tiny_gpt2, tmp_path):
    with prompts.open("a") as file:
        file.write(json.dumps({"id": "long", "prompt": "word " * 300}) + "\n")
    result = sample(prompts, str(tiny_gpt2), tmp_path / "out.jsonl", **QUICK)
    assert (result.rows, result.dropped) == (9, 1)
    assert "long" not in {row["id"] for row in rows_of(tmp_path / "out.jsonl")}
    with pytest.raises(InputError, match="no prompt fits the model's context of 256 tokens"):
        sample(prompts, str(tiny_gpt2), tmp_path / "none.jsonl", **{**QUICK, "max_new_tokens": 255})
    assert not (tmp_path / "none.jsonl").exists()


def test_the_instruction_of_most_tokens_must_fit_if_it_is_used(tiny_gpt2, tmp_path):
    (tmp_path / "vary.txt").write_text("Answer in one short sentence.\n" + "\u2603" * 20 + "\n")  # 3 tokens a character
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"id": "near", "prompt": "word " * 73}, {"id": "short", "prompt": "Hi"}]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for n, dropped in ((2, 1), (1, 0)):
        options = {**QUICK, "n": n, "vary": tmp_path / "vary.txt"}
        assert sample(prompts, str(tiny_gpt2), tmp_path / f"{n}.jsonl", **options).dropped == dropped
    assert [row["id"] for row in rows_of(tmp_path / "2.jsonl")] == ["short"]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_prompt_is_prefilled_once_and_its_completions_are_those_of_a_prefill_each(
    prompts, vary, tiny_model, tmp_path, monkeypatch, temperature
):
    from paretune.policy.engine import prefill

    module, counts = sys.modules["paretune.policy.sample"], []  # the name in the package is the function's

    def once(causal, rows, pad_id):
        counts.append(len(rows))
        return prefill(causal, rows, pad_id)

    def each(causal, rows, pad_id):
        # every row as often as it is asked for, as if nothing were shared
        state = prefill(causal, [row for row in rows for _ in range(3)], pad_id)
        select = state.select

        def apart(index):
            seen = dict.fromkeys(range(len(rows)), 0)
            places = []
            for row in index:
                places.append(3 * row + seen[row])
                seen[row] += 1
            select(places)
            state.select = select

        state.select = apart
        return state

    options = {**QUICK, "n": 4, "batch_size": 8, "temperature": temperature, "dtype": "float64"}
    for name, how in (("once", once), ("each", each)):
        monkeypatch.setattr(module, "prefill", how)
        sample(prompts, str(tiny_model), tmp_path / f"{name}.jsonl", vary=vary, **options)
    assert (tmp_path / "once.jsonl").read_bytes() == (tmp_path / "each.jsonl").read_bytes()
    assert sum(counts) == 9 * 3  # four completions a prompt under three instructions: the first and the fourth share
    counts.clear()
    monkeypatch.setattr(module, "prefill", once)
    sample(prompts, str(tiny_model), tmp_path / "plain.jsonl", **options)
    assert sum(counts) == 9


def test_a_tokenizer_of_another_model_is_noticed(prompts, tiny_llama, tmp_path):
    from tiny_models import tiny_tokenizer

    shutil.copytree(tiny_llama, tmp_path / "model")
    own = tiny_tokenizer("llama")
    own.add_tokens([f"word{i}" for i in range(40)])
    own.chat_template = own.chat_template.replace("assistant", "assistant word39")
    own.save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match=r"gives ids up to 439, but the model at '.*' has 400 embeddings"):
        sample(prompts, str(tmp_path / "model"), tmp_path / "out.jsonl", **QUICK)


def test_a_prompt_that_the_template_refuses_is_named(tiny_llama, tmp_path):
    shutil.copytree(tiny_llama, tmp_path / "model")
    template = "{% if 'odd' in messages[0].content %}{{ raise_exception('no odd talk') }}{% endif %}"
    (tmp_path / "model" / "chat_template.jinja").write_text(template + "{{ messages[-1].content }}:")
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "fine"}\n{"id": "strange", "prompt": "odd"}\n')
    with pytest.raises(InputError, match=r"row 'strange': the chat template cannot render .* no odd talk"):
        sample(data, str(tmp_path / "model"), tmp_path / "out.jsonl", **QUICK)


def test_two_runs_into_one_output(prompts, tiny_qwen, tmp_path):
    with (
        locked(tmp_path / ".out.jsonl.lock", "sampling"),
        pytest.raises(InputError, match=r"sampling into .*out\.jsonl is going on already, in process \d+"),
    ):
        sample(prompts, str(tiny_qwen), tmp_path / "out.jsonl", **QUICK)
    assert not (tmp_path / "out.jsonl").exists()


# --- resuming -----------------------------------------------------------------------------------------------------


def journal_of(out):
    return out.with_name(f".{out.name}.journal")


class Killed(BaseException):
    """Stands for a kill between two batches."""


@pytest.fixture
def stopped(prompts, vary, tiny_qwen, tmp_path, monkeypatch):
    """An uninterrupted output, and a run that stopped after three batches."""
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    sample(prompts, str(tiny_qwen), whole, vary=vary, **QUICK)
    append, calls = Journal.append, []

    def append_then_die(self, finished):
        append(self, finished)
        calls.append(1)
        if len(calls) == 3:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", append_then_die)
        with pytest.raises(Killed):
            sample(prompts, str(tiny_qwen), out, vary=vary, **QUICK)
    assert not out.exists() and len(rows_of(journal_of(out))) == 1 + 6
    return whole, out


def test_a_stopped_run_goes_on_where_it_stopped(stopped, prompts, vary, tiny_qwen):
    whole, out = stopped
    whole_tokens = sample(prompts, str(tiny_qwen), whole, vary=vary, overwrite=True, **QUICK).tokens
    result = sample(prompts, str(tiny_qwen), out, vary=vary, **QUICK)
    assert (result.resumed, result.rows, result.completions) == (6, 9, 18)
    assert 0 < result.new_tokens < result.tokens == whole_tokens
    assert out.read_bytes() == whole.read_bytes()
    assert not journal_of(out).exists()


def test_a_journal_cut_anywhere_is_taken_up(stopped, prompts, vary, tiny_qwen):
    whole, out = stopped
    known = journal_of(out).read_bytes()
    ends = [i + 1 for i, byte in enumerate(known) if byte == 10]
    for cut in (0, 5, ends[0], ends[0] + 10, ends[1], ends[3] - 2, ends[3] - 1, len(known) - 7):
        journal_of(out).write_bytes(known[:cut])
        sample(prompts, str(tiny_qwen), out, vary=vary, overwrite=True, **QUICK)
        assert out.read_bytes() == whole.read_bytes(), cut


def test_a_journal_keeps_any_text(tmp_path):
    from paretune.data import Completion

    text = "one\u2028two\x85three\x0cfour\nfive\r\n"
    done = {"a": Sampled([Completion(text, extra={"finished": True})], 7), "b": Sampled([Completion("")], 0)}
    journal = Journal(tmp_path / "out.jsonl", {})
    journal.append(done)
    journal.close()
    assert journal.load() == done


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"n": 3}, {"temperature": 0.5}, {"top_p": 0.5}, {"max_new_tokens": 5}, {"vary": None}]
)
def test_a_journal_of_other_settings_is_not_continued(stopped, prompts, vary, tiny_qwen, change):
    _, out = stopped
    before = journal_of(out).read_bytes()
    with pytest.raises(InputError, match=r"\.out\.jsonl\.journal: was begun with other settings"):
        sample(prompts, str(tiny_qwen), out, **{**QUICK, "vary": vary, **change})
    assert journal_of(out).read_bytes() == before and not out.exists()


def test_a_journal_of_other_prompts_is_not_continued(stopped, prompts, vary, tiny_qwen):
    _, out = stopped
    prompts.write_text(prompts.read_text().replace("What is", "Who is"))  # under the same ids
    with pytest.raises(InputError, match="other settings or prompts"):
        sample(prompts, str(tiny_qwen), out, vary=vary, **QUICK)


def test_a_killed_process_goes_on_where_it_stopped(prompts, tiny_qwen, tmp_path):
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    options = {**QUICK, "batch_size": 2, "max_new_tokens": 60}
    sample(prompts, str(tiny_qwen), whole, **options)
    code = (
        "import sys, time\nfrom paretune.policy import sample\nfrom paretune.policy.sample import Journal\n"
        "append = Journal.append\n"
        "def slow(self, finished):\n    append(self, finished)\n    time.sleep(0.5)\n"
        "Journal.append = slow\n"
        f"sample({str(prompts)!r}, {str(tiny_qwen)!r}, {str(out)!r}, **{options!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end and process.poll() is None:
            if journal_of(out).exists() and journal_of(out).read_bytes().count(b"\n") >= 4:
                break
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL and not out.exists()
    result = sample(prompts, str(tiny_qwen), out, **options)
    assert 3 <= result.resumed < 9
    assert out.read_bytes() == whole.read_bytes()


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n must be at least 1"),
        ({"n": 2.0}, "n must be a whole number"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": "4"}, "batch_size must be a whole number"),
        ({"seed": "x"}, "seed must be a whole number"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"vary": "/no/such/file"}, "/no/such/file: cannot be read as a list of instructions"),
    ],
)
def test_bad_requests(prompts, tiny_qwen, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        sample(prompts, str(tiny_qwen), tmp_path / "out.jsonl", **{**QUICK, **options})
    assert not (tmp_path / "out.jsonl").exists() and hidden(tmp_path / "out.jsonl") == []


def test_an_existing_output_is_kept(prompts, tiny_qwen, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("mine\n")
    with pytest.raises(InputError, match="--overwrite"):
        sample(prompts, str(tiny_qwen), out, **QUICK)
    assert out.read_text() == "mine\n"
    sample(prompts, str(tiny_qwen), out, overwrite=True, **QUICK)
    assert len(rows_of(out)) == 9


def test_a_list_of_instructions(tmp_path):
    path = tmp_path / "vary.txt"
    path.write_text("Be short.\n\n  Be warm. \n")
    assert read_instructions(path) == ["Be short.", "", "Be warm."]
    path.write_text("")
    with pytest.raises(InputError, match="is empty"):
        read_instructions(path)
