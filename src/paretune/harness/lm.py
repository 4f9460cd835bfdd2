"""A policy as a model of lm-evaluation-harness: likelihoods and answers by the package's own pass and engine.

    from lm_eval import simple_evaluate
    from paretune.harness.lm import PolicyLM
    simple_evaluate(PolicyLM(paretune.load_policy("runs/demo/policy")), tasks=["arc_easy"])

What is conditioned. A request in plain text (no chat template) is the text alone, tokenised as `HFLM` does it, and no
profile enters it: its numbers are those of lm-eval on the merged weights. A request that lm-eval formatted as a chat
goes through the policy's renderer, as every prompt of the package does: prefix, the profile that the condition says
for this conversation, rest of the template. `base=True` takes the adapter off and conditions nothing.

Requires lm-eval; without it the import raises `InputError`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from paretune.data.rows import Messages
from paretune.errors import InputError, check_whole
from paretune.harness.likelihood import Pair, fitted, likelihoods
from paretune.harness.package import require_lm_eval
from paretune.policy.backbone import context_length
from paretune.policy.engine import Sampling, by_length, decode, prefill, row_seed
from paretune.policy.policy import Policy
from paretune.policy.several import Blend
from paretune.policy.weights import check_weights, equal_weights
from paretune.profile import Profile
from paretune.progress import NO_PROGRESS, Progress

require_lm_eval()
from lm_eval.api.model import TemplateLM  # noqa: E402
from lm_eval.models.utils import normalize_gen_kwargs  # noqa: E402
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # noqa: E402

UNUSED_WHEN_GREEDY = {"top_k", "min_p", "typical_p"}
LONGEST_ANSWER = 256
"""Tokens of an answer where the task says nothing, as in lm-eval."""


@dataclass
class Requests:
    """What was asked: `plain` text, `chat` conversations, of the latter `conditioned` on a profile; and how many of
    all were `truncated` from the left because they did not fit the model's context."""

    plain: int = 0
    chat: int = 0
    conditioned: int = 0
    truncated: int = 0

    def to_dict(self) -> dict[str, int]:
        """JSON form."""
        return asdict(self)


class PolicyLM(TemplateLM):  # type: ignore[misc]
    """A policy (or, with `base`, its base model) as lm-eval calls it.

    `condition` (sensed, mean, ones, none or a profile) and `pins` go into chat-formatted requests; `None` is `sensed`
    for a policy that senses, else `none`. `weights` take the condition's place as in `Policy.generate`; of a policy of
    several adapters they choose the model, for plain requests too. Sampled answers are drawn by (seed, place of the
    request).

    Raises `InputError` for a condition, pins or weights the policy does not know, for any of them with `base`, and for
    a policy that mixes several models token by token, whose texts have no likelihood under one model.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        condition: str | Mapping[str, float] | None = None,
        pins: Mapping[str, float] | None = None,
        weights: Mapping[str, float] | None = None,
        base: bool = False,
        batch_size: int = 16,
        seed: int = 0,
        progress: Progress = NO_PROGRESS,
    ) -> None:
        super().__init__()
        check_whole(batch_size, "batch_size", least=1)
        check_whole(seed, "seed")
        if base and (pins or weights or condition not in (None, "none")):
            raise InputError("the base model is not conditioned: give no condition, pins or weights with it")
        if base and policy.peft is None and policy.metadata.get("adapter"):
            raise InputError("a fused policy has no base model to measure any more; load it anew")
        self.policy, self.base, self.batch_size, self.seed = policy, base, batch_size, seed
        self.condition = "none" if base else condition
        self.pins, self.weights = pins, weights
        self.progress = progress
        self.tokenizer = policy.tokenizer
        self.counts = Requests()
        self._device = policy.causal.device
        self._chats: dict[str, tuple[Messages, str]] = {}
        self._blend = None if base else _one_blend(policy, weights)
        policy.profiles([], condition=self.condition, pins=pins, weights=weights)  # what is wrong with them is told now

    # --- what lm-eval asks about the model ------------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """What a likelihood without context is conditioned on: BOS, else EOS."""
        return self.eot_token_id if self.tokenizer.bos_token_id is None else int(self.tokenizer.bos_token_id)

    @property
    def max_length(self) -> int:
        """Positions the model can take."""
        return context_length(self.policy.causal)

    @property
    def max_gen_toks(self) -> int:
        """Longest answer where a task says nothing."""
        return LONGEST_ANSWER

    @property
    def tokenizer_name(self) -> str:
        """Names lm-eval's cache of formatted requests: no other run's, whose conversations this object never saw."""
        return f"paretune-{os.getpid()}-{id(self)}"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Ids of plain text: with the special tokens the tokenizer adds, unless the text begins with BOS itself."""
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(self.tokenizer.decode([self.prefix_token_id]))
        return list(self.tokenizer(string, add_special_tokens=add_special_tokens)["input_ids"])

    # --- conversations --------------------------------------------------------------------------------------------

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as text without a profile, which lm-eval hands back as the context of requests.

        A last assistant message, when no generation prompt is wanted, is the beginning of the answer.
        """
        messages = [{"role": each["role"], "content": each["content"]} for each in chat_history]
        lead = ""
        if not add_generation_prompt and messages and messages[-1]["role"] == "assistant":
            lead = messages.pop()["content"]
        text = self.policy.renderer.text(messages) + lead
        self._chats[text] = (messages, lead)
        return text

    def _starts(self, contexts: Sequence[str]) -> list[list[int] | None]:
        """For each context that is a conversation of ours, its ids up to where the answer begins."""
        known = [i for i, context in enumerate(contexts) if context in self._chats]
        distinct = list(dict.fromkeys(contexts[i] for i in known))
        chats = [self._chats[text][0] for text in distinct]
        profiles = self._profiles(chats)
        renderer = self.policy.renderer
        ids = {
            text: [*renderer.prefix(chat), *renderer.suffix(chat, profile)]
            for text, chat, profile in zip(distinct, chats, profiles, strict=True)
        }
        conditioned = {text for text, profile in zip(distinct, profiles, strict=True) if profile}
        self.counts.chat += len(known)
        self.counts.plain += len(contexts) - len(known)
        self.counts.conditioned += sum(contexts[i] in conditioned for i in known)
        return [ids.get(context) for context in contexts]

    def _profiles(self, chats: Sequence[Messages]) -> list[Profile]:
        """The profile of each conversation; of one that does not fit, the head reads what ends its last message."""
        return self.policy.profiles(
            [self._shortened(chat) for chat in chats],
            condition=self.condition,
            pins=self.pins,
            weights=self.weights,
            batch_size=self.batch_size,
            progress=self.progress,
        )

    def _shortened(self, chat: Messages) -> Messages:
        renderer, limit = self.policy.renderer, self.max_length
        if len(renderer.prefix(chat)) <= limit:
            return chat
        last = chat[-1]
        ids = renderer.completion(last["content"], finished=False)
        over = len(renderer.prefix([last])) - limit
        while over > 0 and ids:  # text that is cut may take more tokens than it took in its place
            ids = ids[over:]
            last = {**last, "content": self.tokenizer.decode(ids)}
            over = len(renderer.prefix([last])) - limit
        return [last]

    # --- the three kinds of request ------------------------------------------------------------------------------

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-probability, is greedy) of each continuation after its context; no end of turn is scored."""
        texts = [request.args[:2] for request in requests]
        starts = self._starts([context for context, _ in texts])
        pairs: list[Pair] = []
        for (context, continuation), start in zip(texts, starts, strict=True):
            if start is not None:
                lead, answer = self._answer(self._chats[context][1], continuation)
                pairs.append(([*start, *lead], answer))
            elif context:
                pairs.append(self._encode_pair(context, continuation))
            else:
                ids = self.tok_encode(continuation, add_special_tokens=False)
                twice = ids[:1] == [self.prefix_token_id]
                pairs.append((ids[:1], ids[1:]) if twice else ([self.prefix_token_id], ids))
        return self._score(pairs)

    def _answer(self, lead: str, continuation: str) -> Pair:
        """Ids of the beginning of an answer that the task gives, and of what is scored; white space goes with the
        latter, where words begin."""
        encode = self.policy.renderer.completion
        if not lead:
            return [], encode(continuation, finished=False) if continuation else []
        kept = lead.rstrip()
        whole = encode(lead + continuation, finished=False)
        ahead = len(encode(kept, finished=False)) if kept else 0
        return whole[:ahead], whole[ahead:]

    def _loglikelihood_tokens(self, requests: Sequence[Any], **kwargs: Any) -> list[tuple[float, bool]]:
        """As `TemplateLM` asks it: (text, context ids, continuation ids) of each request."""
        return self._score([(list(context), list(continuation)) for _, context, continuation in requests])

    def _score(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        cut = [fitted(pair, self.max_length) for pair in pairs]
        self.counts.truncated += sum(was for _, was in cut)
        with self._model() as causal:
            return likelihoods(
                causal,
                [pair for pair, _ in cut],
                self.tokenizer.pad_token_id,
                batch_size=self.batch_size,
                progress=self.progress,
            )

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of whole texts (always plain), in windows that together predict each token once."""
        windows: list[Pair] = []
        owner: list[int] = []
        for at, request in enumerate(requests):
            text = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for window in map(make_disjoint_window, text):
                windows.append(window)
                owner.append(at)
        self.counts.plain += len(requests)
        out = [0.0] * len(requests)
        for at, (value, _) in zip(owner, self._score(windows), strict=True):
            out[at] += value
        return out

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers, each cut before the first of its stop texts."""
        contexts = [request.args[0] for request in requests]
        plans = [self._plan(request.args[1]) for request in requests]
        prompts: list[list[int]] = []
        for context, start, (sampling, _) in zip(contexts, self._starts(contexts), plans, strict=True):
            room = self.max_length - sampling.max_new_tokens
            if room < 1:
                raise InputError(
                    f"a task wants answers of {sampling.max_new_tokens} tokens, but the model's context is "
                    f"{self.max_length}"
                )
            ids = (
                (self.tok_encode(context) or [self.prefix_token_id])
                if start is None
                else [*start, *self._lead(context)]
            )
            self.counts.truncated += len(ids) > room
            prompts.append(ids[-room:])
        out = [""] * len(requests)
        with self.progress("generate", len(requests)) as task:
            for index in self._batches(prompts, plans, contexts):
                for i, text in zip(index, self._generate(index, prompts, plans[index[0]], contexts), strict=True):
                    out[i] = text
                task.advance(len(index))
        return out

    def _lead(self, context: str) -> list[int]:
        lead = self._chats[context][1]
        return self.policy.renderer.completion(lead, finished=False) if lead else []

    def _plan(self, given: Mapping[str, Any]) -> tuple[Sampling, tuple[str, ...]]:
        """How a task wants its answers drawn, and the texts that end them."""
        wanted = dict(normalize_gen_kwargs(dict(given), LONGEST_ANSWER))
        until = tuple(text for text in wanted.pop("until") if text)
        length, greedy = wanted.pop("max_gen_toks"), not wanted.pop("do_sample")
        temperature, top_p = float(wanted.pop("temperature", 0.0)), wanted.pop("top_p", 1.0)
        unknown = sorted(set(wanted) - (UNUSED_WHEN_GREEDY if greedy else set()))
        if unknown:
            raise InputError(f"a task generates with {', '.join(unknown)}, which the engine does not have")
        return (Sampling(length) if greedy else Sampling(length, temperature, float(top_p))), until

    def _batches(
        self,
        prompts: Sequence[list[int]],
        plans: Sequence[tuple[Sampling, tuple[str, ...]]],
        contexts: Sequence[str],
    ) -> list[list[int]]:
        """Requests that may run together: drawn alike, ended alike, of similar length."""
        groups: dict[Any, list[int]] = {}
        for i, (plan, context) in enumerate(zip(plans, contexts, strict=True)):
            groups.setdefault((plan, context in self._chats), []).append(i)
        return [
            [group[k] for k in index]
            for group in groups.values()
            for index in by_length([len(prompts[i]) for i in group], self.batch_size)
        ]

    def _generate(
        self,
        index: Sequence[int],
        prompts: Sequence[list[int]],
        plan: tuple[Sampling, tuple[str, ...]],
        contexts: Sequence[str],
    ) -> list[str]:
        """The answers of one batch."""
        sampling, until = plan
        policy, pad = self.policy, self.tokenizer.pad_token_id
        ends = policy.causal.generation_config.eos_token_id
        stop = policy.renderer.stop_ids(ends)
        if contexts[index[0]] not in self._chats:  # plain text has no turns
            stop = {self.eot_token_id, *([ends] if isinstance(ends, int) else ends or ())}
        with self._model() as causal:
            answers = decode(
                causal,
                prefill(causal, [prompts[i] for i in index], pad),
                [[]] * len(index),
                sampling=sampling,
                stop_ids=stop,
                pad_id=pad,
                seeds=[row_seed(self.seed, "benchmark", i) for i in index],
                ends=self._ender(until),
            )
        texts = [self.tokenizer.decode(answer.ids, skip_special_tokens=True) for answer in answers]
        return [_before(text, until) for text in texts]

    def _ender(self, until: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
        """Says whether the newest tokens contain a stop text (special tokens as they are written)."""
        if not until:
            return None
        window = max(len(text.encode("utf-8")) for text in until) + 1  # a token is at least a byte

        def ended(ids: Sequence[int]) -> bool:
            tail = self.tokenizer.decode(ids[-window:])
            return any(text in tail for text in until)

        return ended

    @contextmanager
    def _model(self) -> Iterator[Any]:
        """The model that answers: for the base, the policy's own with its adapters off."""
        if self._blend is not None and self.policy.parts is not None:
            self.policy.parts.use(self._blend)
        peft = self.policy.peft
        with peft.disable_adapter() if self.base and peft is not None else nullcontext():
            yield self.policy.causal


def _one_blend(policy: Policy, weights: Mapping[str, float] | None) -> Blend | None:
    """Which of the policy's adapters compute under weights; `None` where it has but one."""
    if weights is not None and not policy.takes_weights:
        raise InputError(f"a policy trained by '{policy.method}' takes no preference weights")
    asked = equal_weights(policy.names) if weights is None else check_weights(weights, policy.names)
    if policy.parts is None:
        return None
    blends = policy.parts.blends(asked)
    if len(blends) > 1:
        raise InputError(
            f"under these weights the policy mixes {len(blends)} models token by token, so a text has no likelihood "
            "under one model; give weights that are 1 for a single objective"
        )
    return blends[0]


def _before(text: str, until: Sequence[str]) -> str:
    """The text up to the first stop text."""
    places = [at for at in (text.find(stop) for stop in until) if at >= 0]
    return text[: min(places)] if places else text
