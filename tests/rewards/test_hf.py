"""Sequence classifiers: the right output, the same alone and in a batch, and nothing silently untrained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paretune.errors import InputError
from paretune.rewards import build_reward, parse_objective
from tiny_classifiers import LABELS, make_bert, make_decoder
from tiny_models import SENTENCES

PROMPT = [{"role": "user", "content": "tell me a joke"}]
TALK = [
    {"role": "user", "content": "i feel sad"},
    {"role": "assistant", "content": "i am sorry"},
    {"role": "user", "content": "tell me a joke"},
]
TEXTS = [sentence[: 9 + 17 * at] for at, sentence in enumerate(SENTENCES[:7])]


def build(spec: str) -> Any:
    return build_reward(parse_objective(f"x=hf:{spec}"))


def score(spec: str, texts: list[str], prompt: Any = PROMPT) -> list[float]:
    return build(spec)([prompt] * len(texts), texts, {})


def logits(folder: Path, *text: str) -> Any:
    """What transformers itself gives for one input."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        return model(**tokenizer(*text, return_tensors="pt")).logits[0].double()


@pytest.mark.parametrize("label", LABELS)
def test_a_label_scores_its_log_odds(tiny_classifier: Path, label: str) -> None:
    raw = logits(tiny_classifier, "tell me a joke", TEXTS[2]).softmax(dim=0)[LABELS.index(label)]
    expected = float((raw / (1 - raw)).log())
    assert score(f"{tiny_classifier}#{label}", [TEXTS[2]]) == pytest.approx([expected], abs=1e-4)
    assert score(f"{tiny_classifier}#{LABELS.index(label)}", [TEXTS[2]]) == pytest.approx([expected], abs=1e-4)


def test_inputs_differ_as_documented(tiny_classifier: Path) -> None:
    def expected(*text: str) -> float:
        raw = logits(tiny_classifier, *text)
        return float(raw[0] - raw[1:].logsumexp(dim=0))

    plain = "User: i feel sad\n\nAssistant: i am sorry\n\nUser: tell me a joke"
    hh = "\n\nHuman: i feel sad\n\nAssistant: i am sorry\n\nHuman: tell me a joke\n\nAssistant:"
    for kind, text in (("pair", (plain, TEXTS[1])), ("hh", (hh, TEXTS[1])), ("answer", (TEXTS[1],))):
        got = score(f"{tiny_classifier}#0?input={kind}", [TEXTS[1]], TALK)
        assert got == pytest.approx([expected(*text)], abs=1e-4), kind
    with pytest.raises(InputError, match="no chat template"):
        build(f"{tiny_classifier}#0?input=chat")


@pytest.mark.parametrize("kind", ["bert", "llama", "gpt2"])
def test_alone_and_in_a_batch(tmp_path: Path, tiny_classifier: Path, kind: str) -> None:
    spec = f"{tiny_classifier}#cheerful" if kind == "bert" else str(make_decoder(tmp_path, kind))
    texts = [*TEXTS, "", "a"]
    together = score(spec, texts)
    alone = [score(spec, [text])[0] for text in texts]
    assert together == pytest.approx(alone, abs=1e-4)
    assert len({round(value, 3) for value in alone}) > 5  # the texts do differ


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_decoder_scores_as_transformers_does_for_one_text(tmp_path: Path, kind: str) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = make_decoder(tmp_path, kind)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    if kind == "llama":  # a chat template, which writes the BOS itself, once
        text = tokenizer.apply_chat_template([*PROMPT, {"role": "assistant", "content": TEXTS[3]}], tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        assert ids["input_ids"][0].tolist().count(tokenizer.bos_token_id) == 1
    else:
        ids = tokenizer(PROMPT[0]["content"], TEXTS[3], return_tensors="pt")
    with torch.inference_mode():
        expected = float(model(**ids).logits[0, 0])
    assert score(str(folder), [TEXTS[0], TEXTS[3]])[1] == pytest.approx(expected, abs=1e-4)


def test_the_models_own_padding_token_is_kept(tmp_path: Path) -> None:
    reward = build(str(make_decoder(tmp_path, "gpt2", pad_token_id=0)))
    reward([PROMPT] * 2, TEXTS[:2], {})
    assert reward.model.config.pad_token_id == 0


def test_a_long_prompt_gives_way_before_the_answer(tiny_classifier: Path) -> None:
    long = [{"role": "user", "content": "why is the sky blue " * 30 + "tell me a joke"}]
    spec = f"{tiny_classifier}#0"
    one, two = score(spec, ["no that is not possible", "paris"], long)
    assert abs(one - two) > 1e-3
    ends = build(spec)._encode_pair(long[0]["content"], "paris")["input_ids"]
    tokenizer = build(spec).tokenizer
    assert len(ends) == 32 and tokenizer.decode(ends).endswith("tell me a joke [SEP] paris [SEP]")
    assert len(build(spec)._encode_pair("tell", "paris " * 99)["input_ids"]) == 32


def test_outputs_must_be_named(tiny_classifier: Path) -> None:
    with pytest.raises(InputError, match=r"3 outputs; name one.*gloomy, neutral, cheerful"):
        build(str(tiny_classifier))
    for label in ("cheerfull", "3", "-1"):
        with pytest.raises(InputError, match=f"no output '{label}'"):
            build(f"{tiny_classifier}#{label}")
    with pytest.raises(InputError, match="Did you mean 'cheerful'"):
        build(f"{tiny_classifier}#cheerfull")


def test_regressions_score_their_value(tmp_path: Path) -> None:
    folder = make_bert(tmp_path, num_labels=2, problem_type="regression")
    expected = float(logits(folder, "tell me a joke", TEXTS[1])[1])
    assert score(f"{folder}#1", [TEXTS[1]]) == pytest.approx([expected], abs=1e-4)


def test_a_model_without_a_trained_head_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no trained classification head.*score\.weight"):
        build(str(tiny_llama))
    with pytest.raises(InputError, match=r"no trained classification head.*classifier"):
        build(str(make_bert(tmp_path, "AutoModel")))


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no model \(it has no config\.json\)"):
        build(str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        build(str(tmp_path / "file"))
    with pytest.raises(InputError, match="no such model folder"):
        build(str(tmp_path / "none"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be loaded"):
        build(str(tmp_path))


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    import torch

    folder = make_bert(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be loaded"):
        build(f"{folder}#0")


def test_code_in_the_folder_does_not_run(tmp_path: Path) -> None:
    import json

    folder = make_bert(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForSequenceClassification": "own.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(InputError, match="cannot be loaded"):
        build(f"{folder}#0")
    assert not (tmp_path / "ran").exists()


def test_a_hub_id_that_cannot_be_had() -> None:
    with pytest.raises(InputError, match="'nobody/nothing' cannot be loaded"):
        build("nobody/nothing")
