"""Sequence classifiers: the right output, the same alone and in a batch, and nothing silently untrained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paretune.errors import InputError
from paretune.rewards import build_reward, parse_objective
from paretune.rewards.hf import KIND, HfReward
from paretune.rewards.hf.model import load_reward_model
from tiny_classifiers import LABELS, make_bert, make_deberta, make_decoder
from tiny_models import SENTENCES, tiny_tokenizer

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


def model_of(kind: str, folder: Path, bert: Path) -> str:
    """Models that pad in every way there is.

    `eos` pads with its end-of-sequence token, `turn` with the one that ends every text, `left` prefers that side.
    """
    if kind == "bert":
        return f"{bert}#cheerful"
    if kind == "deberta":
        return str(make_deberta(folder))
    if kind == "eos":
        return str(make_decoder(folder, "gpt2", pad_token_id=0))
    if kind == "turn":
        turn = tiny_tokenizer("llama").convert_tokens_to_ids("<|eot_id|>")
        return str(make_decoder(folder, "llama", pad_token_id=turn))
    if kind == "left":
        return str(make_decoder(folder, "qwen", pad_token_id=0, padding_side="left"))
    return str(make_decoder(folder, kind))


@pytest.mark.parametrize("kind", ["bert", "deberta", "llama", "gpt2", "eos", "turn", "left"])
def test_alone_in_any_batch_and_in_any_order(tmp_path: Path, tiny_classifier: Path, kind: str) -> None:
    spec = model_of(kind, tmp_path, tiny_classifier)
    texts = [*TEXTS, "", "a"]
    alone = [score(spec, [text])[0] for text in texts]
    assert score(spec, texts) == pytest.approx(alone, abs=1e-5)
    assert score(spec, texts[::-1]) == pytest.approx(alone[::-1], abs=1e-5)
    mark = "&" if "?" in spec else "?"
    assert score(f"{spec}{mark}tokens=64", texts) == pytest.approx(alone, abs=1e-5)
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
    assert reward.loaded.network.model.config.pad_token_id == 0


def test_a_long_prompt_gives_way_before_the_answer(tiny_classifier: Path) -> None:
    long = [{"role": "user", "content": "why is the sky blue " * 30 + "tell me a joke"}]
    spec = f"{tiny_classifier}#0"
    one, two = score(spec, ["no that is not possible", "paris"], long)
    assert abs(one - two) > 1e-3
    inputs = build(spec).inputs
    ends = inputs.encode([long], ["paris"])[0]["input_ids"]
    assert len(ends) == 32 and inputs.tokenizer.decode(ends).endswith("tell me a joke [SEP] paris [SEP]")
    assert len(inputs.encode([PROMPT], ["paris " * 99])[0]["input_ids"]) == 32


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
    with pytest.raises(InputError, match=r"no model folder \(it has no config\.json\)"):
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
    with pytest.raises(InputError, match=r"pickle files.*safetensors files only.*convert them once.*save_pretrained"):
        build(f"{folder}#0")


def test_a_hub_model_without_safetensors_says_how_to_convert() -> None:
    from paretune.rewards.encoder import load_pretrained

    class Auto:
        @staticmethod
        def from_pretrained(location: str, **options: Any) -> None:
            raise OSError(f"{location} does not appear to have a file named model.safetensors.")

    with pytest.raises(
        InputError, match=r"file named model\.safetensors\.\. Weights are read.*save_pretrained\('NEW'\)"
    ):
        load_pretrained(Auto, "some/model", allow_remote_code=False)


def test_code_in_the_folder_does_not_run(tmp_path: Path) -> None:
    folder = make_bert(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForSequenceClassification": "own.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(
        InputError, match=r"needs Python code that comes with it, which is not run.*--allow-remote-code"
    ):
        build(f"{folder}#0")
    assert not (tmp_path / "ran").exists()


def test_code_that_transformers_has_itself_is_not_needed(tmp_path: Path) -> None:
    folder = make_decoder(tmp_path, "llama")
    expected = score(str(folder), TEXTS[:1])
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForSequenceClassification": "own.LlamaForSequenceClassification"}
    (folder / "config.json").write_text(json.dumps(config))
    load_reward_model.cache_clear()
    assert score(str(folder), TEXTS[:1]) == expected


def test_a_hub_id_that_cannot_be_had() -> None:
    with pytest.raises(InputError, match="'nobody/nothing' cannot be loaded"):
        build("nobody/nothing")


def test_options_that_are_written_wrongly() -> None:
    for spec, cause in (
        ("m?inputs=chat", "unknown option 'inputs'.*Did you mean 'input'"),
        ("m?dtype=float23", "unknown dtype 'float23'.*Did you mean 'float32'"),
        ("m?device=gpu", "unknown device 'gpu'"),
        ("m?tokens=0", "tokens is a number of tokens"),
        ("m#a?tokens=9&max_length=x", "max_length is a number of tokens"),
        ("m?tokens=9&tokens=8", "written once"),
        ("m?tokens", "written once"),
        ("m?", "unknown option ''"),
    ):
        with pytest.raises(InputError, match=cause):
            KIND.check(spec)
    KIND.check("m#is it so?")  # a label may ask
    KIND.check("m#a?input=pair&dtype=bfloat16&device=cuda:1&tokens=64&max_length=9")


def test_each_option_does_something(tmp_path: Path, tiny_classifier: Path) -> None:
    import torch

    folder = make_decoder(tmp_path, "llama")
    whole = score(str(folder), TEXTS[:3])
    assert score(f"{folder}?dtype=float32", TEXTS[:3]) == whole
    rough = build(f"{folder}?dtype=bfloat16")
    assert rough.loaded.network.model.dtype == torch.bfloat16
    assert 0 < max(abs(a - b) for a, b in zip(rough([PROMPT] * 3, TEXTS[:3], {}), whole, strict=True)) < 0.5
    assert build(f"{folder}?max_length=12").inputs.limit == 12
    assert score(f"{folder}?max_length=12", TEXTS[:3]) != pytest.approx(whole, abs=1e-3)
    assert build(f"{folder}?max_length=99999").inputs.limit == 512  # the model's own limit holds
    assert build(f"{folder}?device=cpu").loaded.network.model.device.type == "cpu"
    sizes: list[int] = []
    for tokens in (16, 4096):
        reward = build(f"{tiny_classifier}#0?tokens={tokens}")
        counted = count_forwards(reward)
        reward([PROMPT] * 8, [f"{text} {tokens}" for text in [*TEXTS, "a"]], {})
        sizes.append(len(counted))
    assert sizes == [8, 1]


def test_a_device_that_is_not_there(tiny_classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="no device 'cuda:7'"):
        build(f"{tiny_classifier}#0?device=cuda:7")


def count_forwards(reward: HfReward) -> list[int]:
    """The sizes of the batches that the reward's model computes from now on."""
    sizes: list[int] = []
    reward.loaded.network.model.register_forward_hook(
        lambda module, args, kwargs, out: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    return sizes


def test_objectives_of_one_model_share_its_forward(tiny_classifier: Path) -> None:
    rewards = [build(f"{tiny_classifier}#{label}") for label in LABELS]
    assert len({id(reward.loaded) for reward in rewards}) == 1
    assert len({KIND.shares(f"{tiny_classifier}#{label}") for label in LABELS}) == 1
    counted = count_forwards(rewards[0])
    texts = [text + " now" for text in TEXTS]
    found = [reward([PROMPT] * len(texts), texts, {}) for reward in rewards]
    assert counted == [len(texts)]
    assert found[0] != found[1]
    rewards[0]([TALK] * len(texts), texts, {})  # another prompt is another input
    assert len(counted) == 2
    build(f"{tiny_classifier}#0?input=answer")([TALK] * len(texts), texts, {})  # and so is another format
    assert len(counted) == 3


def test_every_output_at_once(tiny_classifier: Path) -> None:
    assert KIND.expand is not None
    options = "?input=answer&tokens=99"
    found = KIND.expand(f"{tiny_classifier}#*{options}")
    assert found == [(label, f"{tiny_classifier}#{label}{options}") for label in LABELS]
    assert KIND.expand(f"{tiny_classifier}#0") == [("0", f"{tiny_classifier}#0")]
    with pytest.raises(InputError, match=r"every output.*\*=hf:MODEL#\*"):
        build(f"{tiny_classifier}#*")


def test_labels_that_a_spec_cannot_hold_are_expanded_by_index(tmp_path: Path) -> None:
    names = {0: "safe?", 1: "un#safe", 2: "so"}
    folder = make_bert(tmp_path, id2label=names, label2id={name: at for at, name in names.items()})
    assert KIND.expand is not None
    assert [rest.partition("#")[2] for _, rest in KIND.expand(f"{folder}#*")] == ["0", "1", "so"]


SYSTEM = [{"role": "system", "content": "be short"}, *PROMPT]
FOLDED = [{"role": "user", "content": "be short\n\ntell me a joke"}]
TURNS = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
REFUSING = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + TURNS
)
DROPPING = TURNS.replace("%}<", "%}{% if message['role'] != 'system' %}<").replace("{% endfor", "{% endif %}{% endfor")


@pytest.mark.parametrize("template", [REFUSING, DROPPING], ids=["refuses", "drops"])
def test_system_text_without_a_place_heads_the_first_user_turn(tmp_path: Path, template: str) -> None:
    spec = str(make_decoder(tmp_path, "qwen", template=template))
    assert score(spec, TEXTS[:2], SYSTEM) == score(spec, TEXTS[:2], FOLDED)
    assert score(spec, TEXTS[:2], SYSTEM) != pytest.approx(score(spec, TEXTS[:2]), abs=1e-3)


def test_system_text_with_a_place_stays_there(tmp_path: Path) -> None:
    reward = build(str(make_decoder(tmp_path, "qwen")))
    ids = reward.inputs.encode([SYSTEM], ["ok"])[0]["input_ids"]
    assert reward.inputs.tokenizer.decode(ids).startswith("<|im_start|>system\nbe short<|im_end|>")


def test_a_template_that_refuses_a_conversation(tmp_path: Path) -> None:
    template = "{% if messages | length > 2 %}{{ raise_exception('too long') }}{% endif %}" + TURNS
    with pytest.raises(InputError, match="refuses a prompt: too long"):
        score(str(make_decoder(tmp_path, "qwen", template=template)), TEXTS[:1], TALK)


def test_an_answer_longer_than_the_limit_keeps_its_end_and_the_first_token(tmp_path: Path) -> None:
    reward = build(f"{make_decoder(tmp_path, 'llama')}?max_length=20")
    whole = build(str(tmp_path)).inputs.encode([PROMPT], ["paris " * 99])[0]["input_ids"]
    cut = reward.inputs.encode([PROMPT], ["paris " * 99])[0]["input_ids"]
    assert cut == [whole[0], *whole[-19:]] and whole[0] == reward.inputs.tokenizer.bos_token_id


def test_an_input_without_a_token_has_no_score(tmp_path: Path) -> None:
    spec = f"{make_decoder(tmp_path, 'gpt2')}?input=answer"
    one, none, two = build(spec)([PROMPT] * 3, ["a joke", "", "paris"], {})
    assert none is None and [one, two] == score(spec, ["a joke", "paris"])
    assert build(spec)([PROMPT], [""], {}) == [None]
    assert build(spec)([], [], {}) == []


def test_a_fingerprint_follows_the_files(tmp_path: Path) -> None:
    folder = make_bert(tmp_path)
    before = KIND.fingerprint(f"{folder}#0")
    assert before and before == KIND.fingerprint(f"{folder}#1?tokens=9")
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert KIND.fingerprint(f"{folder}#0") != before
    assert KIND.fingerprint("some/model") == ""
