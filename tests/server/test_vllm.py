"""The engine of vLLM against a double of the few of its calls that are used, which runs the model it is handed."""

from __future__ import annotations

import asyncio
import enum
import queue
import sys
import threading
import time
import types
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paretune.errors import InputError
from paretune.policy import Policy, Renderer, load_policy, save_policy
from paretune.policy.backbone import hidden_size, load_backbone
from paretune.policy.head import HeadConfig, SensingHead
from paretune.profile import Objective
from paretune.server.engine.limits import EngineLimits
from paretune.server.request import Ask, Begun, Busy, Ended, Event, Failed, Token
from paretune.server.vllm import VLLMEngine
from paretune.server.vllm_parts import final_norm, start_vllm
from paretune.training import TrainConfig, add_adapter
from server.conftest import soon
from several_adapters import several

DEEP = HeadConfig(width=8, depth=1, readout="mean", layer=0.5)
PAPER = HeadConfig(width=8, depth=2)


class Kind(enum.Enum):
    """vLLM's RequestOutputKind."""

    CUMULATIVE, DELTA, FINAL_ONLY = range(3)


@dataclass
class Params:
    """The fields of vLLM's SamplingParams that are used; an unknown one is an error, as there."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: list[int] = field(default_factory=list)
    logprobs: int | None = None
    detokenize: bool = True
    output_kind: Kind = Kind.CUMULATIVE


@dataclass
class Place:
    """vLLM's Logprob."""

    logprob: float
    rank: int
    decoded_token: str | None = None


class FakeVLLM:
    """AsyncLLM on the CPU: prefix caching in blocks of 16 is told, not done; each request leaves a file of states.

    slow: seconds a token. fails: what the next answer raises.
    """

    def __init__(self, model: Path, states: Path, layer: int | None) -> None:
        self.causal = load_backbone(str(model), dtype="float32")[0]
        self.states, self.layer = states, layer
        self.slow = 0.0
        self.fails: Exception | None = None
        self.seen: list[list[int]] = []
        self.params: list[Params] = []
        self.aborted: list[str] = []
        self.down = False

    def shutdown(self) -> None:
        self.down = True

    @torch.no_grad()
    def _forward(self, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the next token [V], and hidden states [L, 1, H] as they leave the layer, before any final norm."""
        kept: list[torch.Tensor] = []
        layer = self.causal.model.layers[(self.layer or 1) - 1]
        handle = layer.register_forward_hook(
            lambda module, args, out: kept.append(out[0] if type(out) is tuple else out)
        )
        logits = self.causal(input_ids=torch.tensor([ids])).logits[0, -1]
        handle.remove()
        return logits, kept[0][0][:, None]

    async def generate(self, prompt: dict[str, Any], params: Params, request_id: str) -> AsyncIterator[Any]:
        prefix = list(prompt["prompt_token_ids"])
        self.params.append(params)
        known = max((_shared(prefix, each) // 16 * 16 for each in self.seen), default=0)
        self.seen.append(prefix)
        path, done = str(self.states / f"{request_id}0badcafe.safetensors"), False
        _, hidden_L1H = self._forward(prefix)
        draw = torch.Generator().manual_seed(params.seed or 0)
        written: list[int] = []
        try:
            while not done:
                await asyncio.sleep(self.slow)
                if self.fails is not None and params.output_kind is Kind.DELTA:
                    error, self.fails = self.fails, None
                    raise error
                logits, _ = self._forward(prefix + written)
                token = _choose(logits, params, draw)
                written.append(token)
                ended = token in params.stop_token_ids
                done = ended or len(written) >= params.max_tokens
                if done or params.output_kind is Kind.DELTA:
                    yield _output(token, logits, params, known, ("stop" if ended else "length") if done else None, path)
        finally:
            if not done:
                self.aborted.append(request_id)
            save_file({"hidden_states": hidden_L1H.contiguous()}, path)


def _output(token: int, logits: torch.Tensor, params: Params, known: int, reason: str | None, path: str) -> Any:
    places = None
    if params.logprobs is not None:
        logp = logits.log_softmax(-1)
        best = [*logp.topk(params.logprobs).indices.tolist()] if params.logprobs else []
        rank = int((logp > logp[token]).sum()) + 1
        places = [
            {token: Place(float(logp[token]), rank)}
            | {each: Place(float(logp[each]), at) for at, each in enumerate(best, start=1)}
        ]
    piece = types.SimpleNamespace(token_ids=[token], logprobs=places, finish_reason=reason, text="")
    handed = {"hidden_states_path": path} if reason else None
    return types.SimpleNamespace(outputs=[piece], num_cached_tokens=known, kv_transfer_params=handed)


def _choose(logits: torch.Tensor, params: Params, draw: torch.Generator) -> int:
    if params.temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial((logits / params.temperature).softmax(-1), 1, generator=draw))


def _shared(a: list[int], b: list[int]) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The modules of vLLM that the engine imports."""
    connector = "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector"
    for name in ("vllm", "vllm.sampling_params", "vllm.config", "vllm.engine", "vllm.engine.arg_utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for name in ("vllm.v1", "vllm.v1.engine", "vllm.v1.engine.async_llm", connector):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    top = sys.modules["vllm"]
    top.SamplingParams = Params  # type: ignore[attr-defined]
    sys.modules["vllm.sampling_params"].RequestOutputKind = Kind  # type: ignore[attr-defined]
    sys.modules[connector].load_hidden_states = _load  # type: ignore[attr-defined]
    sys.modules[connector].cleanup_hidden_states = lambda path: Path(path).unlink()  # type: ignore[attr-defined]
    return top


def _load(path: str) -> dict[str, torch.Tensor]:
    return load_file(path)


@pytest.fixture(scope="module")
def folders(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[HeadConfig | None], Path]:
    """Saved policies, one for each shape of head."""
    made: dict[HeadConfig | None, Path] = {}

    def folder(config: HeadConfig | None) -> Path:
        if config not in made:
            made[config] = tmp_path_factory.mktemp("vllm") / "policy"
            save_policy(_policy(tiny_llama, config), made[config], metrics={})
        return made[config]

    return folder


def _policy(model: Path, config: HeadConfig | None) -> Policy:
    causal, tokenizer = load_backbone(str(model), dtype="float32")
    objectives = [Objective("brevity", "column:brevity"), Objective("cheer", "column:cheer")]
    peft = add_adapter(causal, TrainConfig(lora_r=4, lora_alpha=8, lora_dropout=0.0))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, each in peft.named_parameters():
            if "lora_B" in name:
                each.normal_(std=0.1)
    head = SensingHead(hidden_size(causal), 2, config).eval() if config is not None else None
    if head is not None:
        raw_NP, targets_NM = torch.randn(60, 2), torch.rand(60, 2)
        head.calibrate(raw_NP, raw_NP, targets_NM, targets_NM)
    return Policy(
        causal=peft.get_base_model(),
        tokenizer=tokenizer,
        renderer=Renderer(tokenizer, objectives),
        objectives=objectives,
        method="sga" if head is not None else "sft",
        base=str(model),
        head=head,
        peft=peft.eval(),
        metadata={"dtype": "float32", "adapter": True},
    )


@pytest.fixture
def start(vllm: types.ModuleType, folders: Callable[..., Path]) -> Iterator[Callable[..., VLLMEngine]]:
    """Engines on the double, closed at the end."""
    made: list[VLLMEngine] = []

    def run(config: HeadConfig | None = DEEP, **limits: Any) -> VLLMEngine:
        policy = load_policy(folders(config), device="cpu")
        made.append(VLLMEngine(policy, EngineLimits(**limits), FakeVLLM))
        return made[-1]

    yield run
    for each in made:
        each.close()
        assert each._llm.down and not Path(each._states.name).exists()


def asked(engine: VLLMEngine, **ask: Any) -> list[Event]:
    """All that is told of a request, to its end."""
    heard: queue.Queue[Event] = queue.Queue()
    request = Ask(**({"messages": user("Why is the sky blue?"), "max_new_tokens": 12} | ask))
    engine.submit(request, heard.put)
    return until_over(heard, request.n)


def until_over(heard: queue.Queue[Event], n: int = 1) -> list[Event]:
    out: list[Event] = []
    while sum(isinstance(each, (Ended, Failed)) for each in out) < n:
        out.append(heard.get(timeout=60))
    return out


def text(events: list[Event], index: int = 0) -> str:
    return "".join(each.text for each in events if isinstance(each, (Token, Ended)) and each.index == index)


def user(said: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": said}]


@pytest.mark.parametrize("config", [DEEP, PAPER], ids=["mean-half-way", "last-after-norm"])
def test_it_senses_and_answers_as_the_policy_does(
    config: HeadConfig, start: Callable[..., VLLMEngine], folders: Callable[..., Path]
) -> None:
    engine, policy = start(config), load_policy(folders(config))
    for pins in ({}, {"brevity": 0.9}):
        wanted = policy.generate(["Why is the sky blue?"], pins=pins, max_new_tokens=12)[0]
        events = asked(engine, pins=pins)
        begun = events[0]
        assert isinstance(begun, Begun) and begun.sensed is not None and begun.used is not None
        assert begun.sensed.profile == pytest.approx(wanted.sensed, abs=1e-5)
        assert begun.used == pytest.approx(wanted.profile, abs=1e-5)
        assert begun.sensed.interval is not None and wanted.interval is not None
        for name, ends in wanted.interval.items():
            assert begun.sensed.interval[name] == pytest.approx(ends, abs=1e-5)
        assert text(events) == wanted.text
        ended = events[-1]
        assert isinstance(ended, Ended) and ended.tokens == wanted.tokens
        assert ended.reason == ("stop" if wanted.finished else "length")
    found = engine.sense([user("Tell me a joke."), user("Hi")], {"cheer": 0.2})
    told = policy.predict(["Tell me a joke.", "Hi"], {"cheer": 0.2})
    for mine, theirs in zip(found, told, strict=True):
        assert mine.profile == pytest.approx(theirs.profile, abs=1e-5)


def test_what_was_in_the_cache_is_told_of_the_prompt_and_not_of_its_own_sensing(
    start: Callable[..., VLLMEngine],
) -> None:
    engine = start()
    prefix = len(engine.policy.renderer.prefix(user("Why is the sky blue?")))
    first, second = (asked(engine)[0] for _ in range(2))
    assert isinstance(first, Begun) and isinstance(second, Begun)
    assert (first.cached_tokens, second.cached_tokens) == (0, prefix // 16 * 16)
    assert first.prompt_tokens == second.prompt_tokens > prefix


def test_without_sensing_nothing_is_read(start: Callable[..., VLLMEngine], folders: Callable[..., Path]) -> None:
    engine, policy = start(), load_policy(folders(DEEP))
    events = asked(engine, sense=False)
    assert isinstance(events[0], Begun) and events[0].sensed is None and events[0].used is None
    assert text(events) == policy.generate(["Why is the sky blue?"], condition="none", max_new_tokens=12)[0].text
    assert len(engine._llm.params) == 1
    plain = asked(engine, messages=[], text="The sky")
    assert isinstance(plain[0], Begun) and plain[0].prompt_tokens == len(policy.tokenizer("The sky")["input_ids"])
    headless = start(None)
    assert text(asked(headless))
    assert headless._llm.layer is None
    with pytest.raises(InputError, match="no sensing head"):
        headless.sense([user("Hi")], {})


def test_answers_draw_by_seed_and_place(start: Callable[..., VLLMEngine]) -> None:
    engine = start()
    draws: dict[str, Any] = {"n": 3, "temperature": 1.5, "seed": 7}
    first, again, other = asked(engine, **draws), asked(engine, **draws), asked(engine, **draws | {"seed": 8})
    texts = [[text(events, index) for index in range(3)] for events in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]
    assert len(set(texts[0])) == 3
    assert sum(isinstance(each, Begun) for each in first) == 1 and isinstance(first[0], Begun)


def test_stop_texts_end_an_answer_and_what_vllm_would_still_write(start: Callable[..., VLLMEngine]) -> None:
    engine = start()
    whole = text(asked(engine))
    cut = whole[len(whole) // 2 :][:3]
    events = asked(engine, stop=(cut,), max_new_tokens=200)
    assert text(events) == whole[: whole.index(cut)]
    assert isinstance(events[-1], Ended) and events[-1].reason == "stop"
    assert len(engine._llm.aborted) == 1


def test_logprobs_are_the_models_own(start: Callable[..., VLLMEngine], folders: Callable[..., Path]) -> None:
    engine, policy = start(), load_policy(folders(DEEP))
    events = asked(engine, sense=False, logprobs=3, temperature=2.0, max_new_tokens=5)
    told = [each.logprob for each in events if isinstance(each, Token)]
    messages = user("Why is the sky blue?")
    ids = policy.renderer.prefix(messages) + policy.renderer.suffix(messages, None)
    with torch.no_grad():
        logp = policy.causal(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    first = told[0]
    assert first is not None and len(first.top) == 3
    assert [each.logprob for each in first.top] == pytest.approx(logp.topk(3).values.tolist(), abs=1e-4)
    assert min(abs(float(each) - first.logprob) for each in logp) < 1e-4
    assert first.token == first.bytes.decode("utf-8", "replace")
    bare = [each.logprob for each in asked(engine, logprobs=0) if isinstance(each, Token)]
    assert all(each is not None and each.top == () for each in bare)


def test_cancelled_answers_end_at_once_and_free_vllm(start: Callable[..., VLLMEngine]) -> None:
    engine = start()
    engine._llm.slow = 0.05
    heard: queue.Queue[Event] = queue.Queue()
    ticket = engine.submit(Ask(user("Hi"), max_new_tokens=400, n=2), heard.put)
    assert isinstance(heard.get(timeout=60), Begun)
    assert engine.load().running == 2
    ticket.cancel()
    ends = [each for each in until_over(heard, 2) if isinstance(each, Ended)]
    assert {each.index for each in ends} == {0, 1} and {each.reason for each in ends} == {"cancelled"}
    assert engine._idle(30) and engine.load().running == 0
    assert len(engine._llm.aborted) == 2
    early = engine.submit(Ask(user("Hi")), heard.put)
    early.cancel()
    assert [each.reason for each in until_over(heard) if isinstance(each, Ended)] == ["cancelled"]


def test_a_deadline_ends_an_answer_with_what_it_has(start: Callable[..., VLLMEngine]) -> None:
    engine = start()
    engine._llm.slow = 0.05
    events = asked(engine, max_new_tokens=400, deadline=0.5)
    assert isinstance(events[-1], Ended) and events[-1].reason == "deadline"


def test_a_full_queue_is_busy_and_a_drain_ends_what_runs(start: Callable[..., VLLMEngine]) -> None:
    engine = start(max_batch=1, max_queue=1)
    engine._llm.slow = 0.02
    heard: queue.Queue[Event] = queue.Queue()
    for _ in range(2):
        engine.submit(Ask(user("Hi"), max_new_tokens=20), heard.put)
    assert (engine.load().running, engine.load().waiting) == (1, 1)
    with pytest.raises(Busy) as refused:
        engine.submit(Ask(user("Hi")), heard.put)
    assert refused.value.retry_after >= 1
    assert engine.drain(60)
    assert sum(isinstance(each, Ended) and each.reason != "cancelled" for each in until_over(heard, 2)) == 2
    with pytest.raises(Busy, match="stopping"):
        engine.submit(Ask(user("Hi")), heard.put)


def test_a_failure_is_of_its_request_alone_unless_vllm_is_dead(start: Callable[..., VLLMEngine]) -> None:
    engine = start()
    engine._llm.fails = ValueError("out of blocks")
    failed = asked(engine)[-1]
    assert isinstance(failed, Failed) and not failed.by_user and "out of blocks" in str(failed.error)
    assert text(asked(engine))
    dead = type("EngineDeadError", (Exception,), {})
    engine._llm.fails = dead("gone")
    assert isinstance(asked(engine)[-1], Failed)
    assert engine._idle(30)
    with pytest.raises(RuntimeError, match="vLLM has stopped"):
        engine.load()
    with pytest.raises(RuntimeError, match="vLLM has stopped"):
        engine.submit(Ask(user("Hi")), lambda event: None)


def test_what_a_client_caused_is_told_to_it_and_no_error_of_the_server(
    start: Callable[..., VLLMEngine], caplog: pytest.LogCaptureFixture
) -> None:
    engine = start()
    engine._llm.fails = InputError("the prompt has 900 tokens")
    failed = asked(engine)[-1]
    assert isinstance(failed, Failed) and failed.by_user
    assert engine._idle(30) and caplog.records == []
    engine._llm.fails = ValueError("out of blocks")
    asked(engine)
    assert engine._idle(30) and [each.levelname for each in caplog.records] == ["ERROR"]


def test_what_can_be_seen_to_be_wrong_is_refused(start: Callable[..., VLLMEngine], tiny_llama: Path) -> None:
    engine = start()
    for words, ask in (
        ("512", Ask(user("Hi"), max_new_tokens=600)),
        ("unknown objective", Ask(user("Hi"), pins={"brevty": 1.0})),
        ("takes no preference weights", Ask(user("Hi"), weights={"brevity": 1.0})),
    ):
        with pytest.raises(InputError, match=words):
            engine.submit(ask, lambda event: None)
    with pytest.raises(InputError, match="3 adapters, which vLLM cannot blend"):
        VLLMEngine(several(tiny_llama)[0], EngineLimits(), FakeVLLM)


def test_who_senses_while_it_closes_is_told(start: Callable[..., VLLMEngine]) -> None:
    engine = start()
    engine._llm.slow = 30.0  # longer than anybody waits here
    with ThreadPoolExecutor(1) as pool:
        sensing = pool.submit(engine.sense, [user("Hi")], {})
        assert soon(lambda: bool(engine._llm.seen))
        engine.close()
        with pytest.raises(Busy, match="stopping"):
            sensing.result(20)
    with pytest.raises(Busy, match="stopping"):
        engine.sense([user("Hi")], {})


def test_a_drain_waits_for_who_senses(start: Callable[..., VLLMEngine]) -> None:
    engine = start()
    engine._llm.slow = 0.3
    with ThreadPoolExecutor(1) as pool:
        sensing = pool.submit(engine.sense, [user("Hi")], {})
        assert soon(lambda: bool(engine._llm.seen))
        assert engine.drain(30) and len(sensing.result(20)) == 1


def test_no_file_of_states_is_left(start: Callable[..., VLLMEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paretune.server.vllm.SWEEP_S", 0.05)
    engine = start()
    asked(engine)
    asked(engine, stop=("e",))
    until = time.monotonic() + 30
    while list(Path(engine._states.name).iterdir()) and time.monotonic() < until:
        time.sleep(0.02)
    assert not list(Path(engine._states.name).iterdir())


def test_the_final_norm_is_found(tiny_model: Path) -> None:
    policy = _policy(tiny_model, PAPER)
    norm = final_norm(policy)
    assert type(norm).__name__ in ("LlamaRMSNorm", "Qwen3RMSNorm", "LayerNorm")
    own = policy.causal.transformer.ln_f if "gpt2" in str(tiny_model) else policy.causal.model.norm
    assert norm is not own and torch.equal(norm.weight, own.weight)  # type: ignore[arg-type]


def test_vllm_is_started_to_keep_the_layer_that_the_head_reads(vllm: types.ModuleType, tmp_path: Path) -> None:
    got: dict[str, Any] = {}
    sys.modules["vllm.config"].KVTransferConfig = lambda **given: given  # type: ignore[attr-defined]
    sys.modules["vllm.engine.arg_utils"].AsyncEngineArgs = lambda **given: given  # type: ignore[attr-defined]
    llm = types.SimpleNamespace(from_engine_args=lambda given: got.update(given))
    sys.modules["vllm.v1.engine.async_llm"].AsyncLLM = llm  # type: ignore[attr-defined]
    start_vllm(EngineLimits(max_batch=9), "bfloat16")(tmp_path / "model", tmp_path / "states", 20)
    assert (got["model"], got["dtype"], got["max_num_seqs"]) == (str(tmp_path / "model"), "bfloat16", 9)
    kept = got["speculative_config"]["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"]
    assert kept == [20] and got["speculative_config"]["method"] == "extract_hidden_states"
    assert got["kv_transfer_config"]["kv_connector_extra_config"] == {"shared_storage_path": str(tmp_path / "states")}
    got.clear()
    start_vllm(EngineLimits(), "float32")(tmp_path, tmp_path, None)
    assert "speculative_config" not in got and "kv_transfer_config" not in got and got["enable_prefix_caching"]


def test_without_vllm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("paretune.server.vllm.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'paretune\[vllm\]'"):
        VLLMEngine.of(tmp_path / "none")
    assert not [each for each in threading.enumerate() if each.name == "paretune-vllm" and each.is_alive()]


@pytest.mark.slow
def test_the_real_vllm_senses_and_answers(folders: Callable[..., Path]) -> None:
    pytest.importorskip("vllm")
    policy = load_policy(folders(DEEP))
    engine = VLLMEngine.of(folders(DEEP), dtype="float32", max_batch=4)
    try:
        wanted = policy.generate(["Why is the sky blue?"], max_new_tokens=12)[0]
        events = asked(engine)
        assert isinstance(events[0], Begun) and events[0].sensed is not None
        assert events[0].sensed.profile == pytest.approx(wanted.sensed, abs=1e-3)
        assert text(events) == wanted.text
    finally:
        engine.close()
