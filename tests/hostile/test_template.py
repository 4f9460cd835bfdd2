"""Hostile chat templates end with an error, in bounded time and memory; honest ones write what transformers writes."""

from __future__ import annotations

import threading
import time

import pytest

from paretune.errors import InputError
from paretune.policy import Renderer
from paretune.template import render_template
from tiny_models import tiny_tokenizer

CHAT = [{"role": "user", "content": "Hi"}]
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
HOSTILE = {
    "doubles": "{% set n=namespace(x='aa') %}{% for i in range(60) %}{% set n.x=n.x~n.x %}{% endfor %}{{ n.x }}",
    "block": "{% set n=namespace(x='aa') %}{% for i in range(60) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}"
    "{% endfor %}",
    "times": "{{ 'a' * 10**12 }}",
    "constant": "{{ 'a' * 1000000000000 }}",
    "power": "{{ 9**9**9 }}",
    "lists": "{% set n=namespace(x=[1]) %}{% for i in range(60) %}{% set n.x=[n.x,n.x] %}{% endfor %}{{ n.x }}",
    "format filter": "{{ '%1000000000s'|format('a') }}",
    "format operator": "{{ '%1000000000s' % 'a' }}",
    "format method": "{{ '{:1000000000}'.format(1) }}",
    "center": "{{ 'a'.center(10000000000) }}",
    "replace": "{{ ('a'*100000).replace('a', 'b'*100000) }}",
    "replace filter": "{{ ('a'*100000)|replace('a', 'b'*100000) }}",
    "join": "{{ range(99999)|join('a'*100000) }}",
    "indent": "{{ [1, 2]|tojson(indent=10000000000) }}",
    "map": "{{ [1]|map('center', 10000000000)|join }}",
    "output": "{% for a in range(99999) %}{{ 'a'*1000 }}{% endfor %}",
    "class": "{{ ''.__class__.__mro__ }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_that_takes_too_much_is_an_error(name):
    tokenizer = tiny_tokenizer("qwen")
    tokenizer.chat_template = HOSTILE[name]
    with pytest.raises(InputError, match="the chat template cannot render"):
        Renderer(tokenizer, []).prefix(CHAT)


def test_a_template_that_loops_ends_in_a_thread_too():
    tokenizer, said = tiny_tokenizer("qwen"), []
    tokenizer.chat_template = LOOP

    def render():
        start = time.thread_time()
        with pytest.raises(Exception, match="more than 2 seconds"):
            render_template(tokenizer, CHAT)
        said.append(time.thread_time() - start)

    thread = threading.Thread(target=render)
    thread.start()
    thread.join()
    assert len(said) == 1 and said[0] < 4


@pytest.mark.parametrize("kind", ["llama", "qwen"])
def test_an_honest_template_writes_what_transformers_writes(kind):
    tokenizer = tiny_tokenizer(kind)
    chat = [{"role": "system", "content": "Be *kind*, 100 %."}, *CHAT]
    wanted = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert render_template(tokenizer, chat, add_generation_prompt=True) == wanted
