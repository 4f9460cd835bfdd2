"""One question under two profiles, by OpenAI's own client: what the server senses, and what a pin changes.

    pip install openai
    paretune serve POLICY
    python examples/client.py "How do vaccines work?" --pin brevity=0.95 --against brevity=0.05

Shows the sensed profile with its intervals, then both answers with the profile that guided each and what each obtained.
Without `--against` the second answer is guided by what is sensed alone. `--pin` and `--against` are repeatable.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import openai


def read_pins(given: Sequence[str]) -> dict[str, float]:
    """`brevity=0.9` as a name and a value; the server checks both. Raises `ValueError`."""
    pins = {}
    for each in given:
        name, equals, value = each.rpartition("=")
        if not equals:
            raise ValueError(f"a pin is written NAME=VALUE, found '{each}'")
        pins[name] = float(value)
    return pins


def sensed_line(name: str, value: float, interval: Mapping[str, Sequence[float]] | None) -> str:
    """An objective with its interval, where the policy has calibrated ones."""
    between = interval.get(name) if interval else None
    return f"  {name:<12} {value:.2f}" + (f"   80% between {between[0]:.2f} and {between[1]:.2f}" if between else "")


def show(title: str, answer: Any) -> None:
    """An answer, the profile that guided it and what it obtained, where that can be scored without a model."""
    told, choice = answer.model_extra["paretune"], answer.choices[0]
    print(f"\n{title}")
    for name, used in (told["used"] or {}).items():
        obtained = told["obtained"][choice.index].get(name) if told["obtained"] else None
        print(f"  {name:<12} {used:.2f}" + (f"   obtained {obtained['value']:.2f}" if obtained else ""))
    print(f"  {choice.message.content}")


def ask(client: openai.OpenAI, question: str, pins: Sequence[Mapping[str, float]], **settings: Any) -> None:
    """Ask once for each set of pins, with the same seed, so that only the profile differs."""
    model = client.models.list().data[0].id
    for number, each in enumerate(pins):
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            extra_body={"profile": dict(each)} if each else {},
            **settings,
        )
        told = answer.model_extra["paretune"]
        if number == 0 and told["sensed"] is not None:
            print("sensed")
            for name, value in told["sensed"].items():
                print(sensed_line(name, value, told["interval"]))
        said = ", ".join(f"{name} {value:g}" for name, value in each.items())
        show(f"pinned: {said}" if said else "as sensed", answer)


def main() -> int:
    """Read the command line and ask."""
    parser = argparse.ArgumentParser(description="One question under two profiles.")
    parser.add_argument("question")
    parser.add_argument("--pin", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--against", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server")
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    try:
        pins = [read_pins(given.pin), read_pins(given.against)]
    except ValueError as error:
        parser.error(str(error))
    if pins[0] == pins[1]:
        parser.error("give --pin, and --against for another profile: there is nothing to compare")
    settings = {"max_tokens": given.max_tokens, "temperature": given.temperature, "seed": given.seed}
    key = os.environ.get("PARETUNE_API_KEY", "unused")
    try:
        with openai.OpenAI(base_url=f"{given.url}/v1", api_key=key) as client:
            ask(client, given.question, pins, **settings)
    except openai.APIConnectionError:
        print(f"no server at {given.url}; start one: paretune serve POLICY", file=sys.stderr)
        return 2
    except openai.APIStatusError as error:  # the server says in words what is wrong
        print(error.message, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
