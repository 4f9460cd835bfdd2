"""A request checked and made token ids, before the model sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paretune.data.rows import Messages
from paretune.errors import InputError, check_number, check_whole
from paretune.policy import Policy, Sensed
from paretune.policy.backbone import context_length
from paretune.policy.engine import Sampling
from paretune.policy.requests import Requests
from paretune.policy.several import Blend
from paretune.profile import Profile
from paretune.server.engine.limits import EngineLimits
from paretune.server.request import Ask

MOST_LOGPROBS = 100
CHARACTERS = 32
"""Characters of a prompt for each token it may have; text has 3 to 5 a token. What is longer is not tokenised at all,
for that alone would take seconds."""
SUFFIX_MARGIN = 16  # tokens by which a rendered profile may be longer than that of other values


@dataclass(frozen=True)
class Plan:
    """What a request comes to.

    prefix: token ids that are computed first; the head reads the last `span` of them.
    asked: what is asked for in the policy's terms; `None` for a plain text.
    weights: those under which a policy of several adapters answers, `None` for any other.
    blends: the adapters that answer, for a policy of several: one after another in each step if there is more than one.
    sampling: as asked, or as much of the length as fits (`Ask.fit`).
    """

    ask: Ask
    prefix: list[int]
    span: int
    asked: Requests | None
    weights: Profile | None
    blends: tuple[Blend, ...]
    sampling: Sampling
    limit: int
    """Tokens that prompt and answer may have together."""
    bound: str
    """What sets the limit, in words."""
    suffix: int = 0
    """Tokens of the suffix, as good as can be told before anything is sensed."""

    def profile(self, sensed: Sensed | None) -> Profile:
        """What is asked of the answers, given what is sensed under the pins."""
        return self.asked.profile(0, sensed) if self.asked is not None else {}

    @property
    def most_tokens(self) -> int:
        """Tokens that prompt and answer will not exceed; a suffix is known exactly only when the profile is."""
        return min(self.limit, len(self.prefix) + self.suffix + SUFFIX_MARGIN + self.sampling.max_new_tokens)

    def length(self, suffix: int) -> int:
        """Tokens an answer may have after a prompt whose suffix has `suffix`. Raises `InputError` if they don't fit."""
        used, wanted = len(self.prefix) + suffix, self.sampling.max_new_tokens
        least = 1 if self.ask.fit else wanted
        if used + least > self.limit:
            raise InputError(f"the prompt has {used} tokens and {least} more are wanted, but {self.bound} {self.limit}")
        return min(wanted, self.limit - used)


def make_plan(policy: Policy, ask: Ask, limits: EngineLimits) -> Plan:
    """Check a request and tokenise it. Raises `InputError`."""
    sampling = _check(ask, limits)
    if ask.text is None:
        condition = "none" if not ask.sense and ask.weights is None else None
        asked = Requests(policy, 1, condition=condition, pins=[dict(ask.pins)], weights=ask.weights)
    else:
        asked = _of_text(policy, ask)
    blends = asked.blends()[0]
    context, room = context_length(policy.causal), limits.max_batch_tokens // (ask.n * max(1, len(blends)))
    bound = "the model's context is" if context <= room else f"the limit for each of {ask.n} answers at once is"
    check_size(ask.messages if ask.text is None else ask.text, min(context, room), bound)
    if ask.text is None:
        prefix, span = policy.renderer.prefix(ask.messages), policy.read_span(ask.messages)
    else:
        prefix, span = _text_ids(policy, ask.text), 1
    weights = asked.weights[0] if policy.parts is not None else None
    only = asked if ask.text is None else None
    plan = Plan(ask, prefix, span, only, weights, blends, sampling, min(context, room), bound)
    guess = len(suffix_ids(policy, plan, _guess(policy, plan)))
    plan.length(guess)
    return replace(plan, suffix=guess)


def check_size(prompt: Messages | str, limit: int, bound: str) -> None:
    """Raises `InputError` for a prompt of more than `CHARACTERS` characters for each of `limit` tokens, before it is
    tokenised; `bound` says what sets the limit."""
    texts = [prompt] if isinstance(prompt, str) else [each["content"] for each in prompt]
    found, most = sum(map(len, texts)), limit * CHARACTERS
    if found > most:
        raise InputError(
            f"the prompt has {found:,} characters, and at most {most:,} are read, {CHARACTERS} for each token, since "
            f"{bound} {limit} tokens"
        )


def check_sizes(policy: Policy, chats: Sequence[Messages]) -> None:
    """`check_size` of prompts that are only sensed; the error names the prompt."""
    for number, messages in enumerate(chats, start=1):
        try:
            check_size(messages, context_length(policy.causal), "the model's context is")
        except InputError as error:
            raise InputError(f"prompt {number}: {error.message}") from None


def suffix_ids(policy: Policy, plan: Plan, profile: Profile) -> list[int]:
    """The ids that follow the prefix; none for a plain text."""
    return policy.renderer.suffix(plan.ask.messages, profile) if plan.asked is not None else []


def _guess(policy: Policy, plan: Plan) -> Profile:
    """A profile of the length that the sensed one will have, or nearly so."""
    senses = plan.asked is not None and plan.asked.condition == "sensed"
    return plan.profile(Sensed(policy.mean_profile, None) if senses else None)


def _check(ask: Ask, limits: EngineLimits) -> Sampling:
    check_whole(ask.n, "n", least=1)
    if ask.n > limits.max_batch:
        raise InputError(f"n must be at most {limits.max_batch}, the answers written at once; found {ask.n}", field="n")
    check_whole(ask.seed, "seed", least=-(1 << 63))
    if any(not isinstance(stop, str) or not stop for stop in ask.stop):
        raise InputError("a stop text must have at least one character")
    if ask.logprobs is not None:
        check_whole(ask.logprobs, "logprobs", least=0)
        if ask.logprobs > MOST_LOGPROBS:
            raise InputError(f"logprobs must be at most {MOST_LOGPROBS}, found {ask.logprobs}")
    if ask.deadline is not None:
        check_number(ask.deadline, "deadline")
        if ask.deadline <= 0:
            raise InputError(f"deadline must be above 0, found {ask.deadline}")
    return Sampling(ask.max_new_tokens, ask.temperature, ask.top_p)


def _text_ids(policy: Policy, text: str) -> list[int]:
    """A plain text as the tokenizer begins one; nothing at all is begun by the token that begins or ends texts."""
    tokenizer: Any = policy.tokenizer
    ids: Sequence[int] = tokenizer(text)["input_ids"]
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if not ids and start is None:
        raise InputError("the text is empty, and the tokenizer has no token that begins one")
    return list(ids) or [int(start)]


def _of_text(policy: Policy, ask: Ask) -> Requests:
    """What a plain text is asked with: nothing, or weights between adapters."""
    if ask.messages:
        raise InputError("a request is a conversation or a text, not both")
    if ask.pins or (ask.weights is not None and policy.parts is None):
        raise InputError("a plain text takes no profile; use a conversation")
    return Requests(policy, 1, condition=None, pins=None, weights=ask.weights)
