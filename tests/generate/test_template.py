"""Chat templates: the environment is Hugging Face's, in what it offers and in what it forbids."""

import datetime
import time
import tracemalloc

import pytest

from dielet.errors import DamagedFile, DieletError, UsageError
from dielet.generate import sandbox
from dielet.generate.template import ChatTemplate

CHAT = [
    {"role": "system", "content": 'Be <brief> & "kind".'},
    {"role": "user", "content": "  Grüße! 你好 \n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi."},
    {"role": "user", "content": "And now?"},
]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "<é>", "parameters": {"b": 1, "a": [2]}},
    }
]

# Each uses something that plain jinja2 lacks, forbids, or does differently.
TEMPLATES = {
    "trim and lstrip blocks": "  {% for m in messages %}\n  {{ m.role }}\n  {% endfor %}\nend\n",
    "tojson keeps order and characters": "{{ messages[0] | tojson }}{{ tools | tojson(indent=2) }}",
    "tojson separators": "{{ tools | tojson(separators=(',', ':'), sort_keys=true) }}",
    "loop controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
    "{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "generation tag": "{% for m in messages %}{% generation %}{{ m.content }}{% set x = 1 %}"
    "{% endgeneration %}{{ x is defined }}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0, self=2) %}{% for m in messages %}"
    "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ ns.self }}",
    "dict": "{{ dict(a=1) | tojson }}{{ dict.fromkeys(['x'], 2) | tojson }}",
    "special tokens": "{{ bos_token }}{{ eos_token }}[{{ unk_token }}]",
    "none of these": "{{ tools is none }}{{ documents is none }}{{ enable_thinking is defined }}",
    "generation prompt": "{% if add_generation_prompt %}assistant:{% endif %}",
    "reasoning names": "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }};"
    "{% endfor %}",
    "methods": "{{ messages[1].content.strip().split('!')[0].startswith('Gr') }}"
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
    "{{ messages[::-1][0].role }}",
}


def theirs(template, messages, tools=None, **variables):
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        conversations=[messages],
        tools=tools,
        chat_template=template,
        add_generation_prompt=True,
        **variables,
    )
    return rendered[0]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
def test_rendered_as_by_transformers(name, tools):
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    messages = [*CHAT, {"role": "assistant", "content": "x", "reasoning": "because"}]
    ours = ChatTemplate(TEMPLATES[name], "t", special).render(messages, tools=tools)
    assert ours == theirs(TEMPLATES[name], messages, tools, **special)


def test_the_date_is_today():
    template = "{{ strftime_now('%d %b %Y') }}"
    days = {datetime.datetime.now().strftime("%d %b %Y") for _ in range(2)}
    assert ChatTemplate(template, "t", {}).render(CHAT) in days


def test_a_key_without_a_value_is_as_good_as_missing():
    template = "{% for m in messages %}{{ m.tool_calls is defined }}{% endfor %}"
    message = {"role": "user", "content": "x", "tool_calls": None}
    assert ChatTemplate(template, "t", {}).render([message]) == "False"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ dict.__class__ }}{{ dict.__call__.__globals__ }}",
        "{% set ns = namespace(_x=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ raise_exception.__globals__['x'] }}",
        "{{ range(10000000) | list | length }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(template):
    with pytest.raises(DieletError, match=r"t (refuses these|fails on any) messages"):
        ChatTemplate(template, "t", {}).render(CHAT)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages | xmlattr }}",
        "{{ cycler() }}",
        "{{ '{0.__class__}'.format_map({'0': 1}) }}",
        "{{ messages.foo.bar }}",
        "{% include 'x' %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 1 / 0 }}",
    ],
)
def test_whatever_a_template_causes_is_one_line_that_names_it(template):
    with pytest.raises(DamagedFile) as error:
        ChatTemplate(template, "m/chat_template.jinja", {}).render(CHAT)
    text = str(error.value)
    assert text.startswith("m/chat_template.jinja fails on any messages: ")
    assert "\n" not in text and "pass raw text" in text


def test_messages_are_blamed_where_plain_ones_work():
    template = ChatTemplate("{{ messages[0].content + 'x' }}", "m/chat_template.jinja", {})
    with pytest.raises(UsageError, match=r"fails on these messages: TypeError: .*change them"):
        template.render([{"role": "user", "content": ["a", "list"]}])


@pytest.mark.parametrize("template", ["{% break %}", "{{" + "(" * 5000, "{% for a in b %}" * 30])
def test_what_is_no_template_is_refused_when_it_is_compiled(template):
    with pytest.raises(DamagedFile, match=r"m/chat_template.jinja: .*not a valid chat template"):
        ChatTemplate(template, "m/chat_template.jinja", {})


DOUBLED = "{% set ns = namespace(s='x' * 1000) %}{% for i in range(60) %}{% set ns.s"
BIG = "{% set b = 'x' * 10000000 %}"


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ messages | map(attribute='role') | join }}{% endfor %}" * 20,
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(50) }}",
        "{% for x in range(9999) recursive %}{{ loop(range(9999)) if loop.depth < 6 }}{% endfor %}",
        BIG + "{{ b }}{{ b }}",
        BIG + "{% macro m() %}{% for i in range(9999) %}{{ b }}{% endfor %}{% endmacro %}{{ m() }}",
        BIG + "{{ b | replace('x', 'xx') }}",
        BIG + "{{ b.replace('x', 'xx') }}",
        DOUBLED + " = ns.s + ns.s %}{% endfor %}",
        DOUBLED + " = ns.s ~ ns.s %}{% endfor %}",
        DOUBLED + " %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}",
        "{% set ns = namespace(n=3) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}"
        "{% endfor %}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ 'x' * 10000000000 }}",
        "{{ 10000000000 * [1] }}",
        "{{ 'x'.ljust(10000000000) }}",
        "{{ 'x' | center(10000000000) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%(a)-+.10000000000f' % {'a': 1} }}",
        "{{ '%*d' % (10000000000, 1) }}",
        "{{ '%10000000000d' | format(1) }}",
        "{{ '{:10000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10000000000) }}",
        "{{ (5).to_bytes(10000000000, 'big') }}",
        "{{ [1] | tojson(indent=10000000000) }}",
    ],
)
def test_a_template_can_neither_run_without_end_nor_fill_the_memory(monkeypatch, template):
    monkeypatch.setattr(sandbox, "MOST_STEPS", 100_000)
    with pytest.raises(DamagedFile, match=r"t fails on any messages: Limit: it \w+ "):
        ChatTemplate(template, "t", {}).render(CHAT)


LONG = "{% set b = 'b' * 3000000 %}{% set x = 'x' * 1000 %}"
TIMES = "{% for i in range(999) %}"


@pytest.mark.parametrize(
    "template",
    [
        "{{ x.replace('x', b) }}",
        "{{ (x | safe).replace('x', b) }}",
        "{{ x | replace('x', b) }}",
        "{{ b.join(x) }}",
        "{{ x | join(b) }}",
        "{{ x | map('upper') | join(b) }}",
        "{{ x | wordwrap(1, wrapstring=b) }}",
        "{{ x.replace('x', 'x\n') | indent(b) }}",
        "{{ ('%(a)s' * 1000) % {'a': b} }}",
        "{{ ('%(a)s' * 1000) | format(a=b) }}",
        "{{ ('%s' * 1000) % ((b,) * 1000) }}",
        "{{ ('{0}' * 1000).format(b) }}",
        "{{ ('{0:9999}' * 100000).format(1) }}",
        "{{ ('%9999d' * 1000) % ((1,) * 1000) }}",
        "{{ x.translate({120: b}) }}",
        "{{ x.translate([b] * 121) }}",
        "{{ ('\t' * 400000).expandtabs(9000) }}",
        "{{ ([[[1]]] * 9999) | tojson(indent=9999) }}",
        "{{ ([1] * 999) | tojson(indent=b) }}",
        "{{ ([1] * 999) | tojson(separators=(b, ':')) }}",
        "{{ ('http://a.bc ' * 999) | urlize(target=b) }}",
        "{{ " + "b ~ " * 999 + "b }}",
        "{{ [2 ** 4000] * 300000 }}",
        "{% set ns = namespace() %}" + "".join(f"{{% set ns.a{i} = b %}}" for i in range(99)) + "{{"
        " b ~ ns ~ b }}",
        "".join(f"{{% set a{i} = b[1:] %}}" for i in range(999)),
        "{% set t %}" + TIMES + "y" * 3_000_000 + "{% endfor %}{% endset %}",
        "{{ b | wordwrap(1) }}",
        "{{ b | groupby('x') | list }}",
        "{{ b | batch(1) | list | length }}",
        "{{ range(9999) | map(attribute='real.' * 99999 ~ 'real') | list | length }}",
        "{{ ([[0] * 100] * 4000) | sum(start=[]) | length }}",
    ],
)
def test_nothing_large_is_made_before_it_is_refused(template):
    chat = ChatTemplate(LONG + template, "t", {})
    begin = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(DamagedFile, match=r"t fails on any messages: Limit: it \w+ "):
            chat.render(CHAT)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 1 << 29 and time.process_time() - begin < 10


def test_large_texts_may_be_replaced_joined_and_formatted():
    template = (
        "{% for m in messages %}{{ m.content.replace('<', '&lt;') | replace('w', 'ww') }}"
        "{{ [m.content, m.content] | join(', ' * 9) }}{{ '%s: %5s' % (m.content, 1) }}"
        "{{ '{} {:>9}'.format(m.content, 2) }}{{ m.content | indent(4) }}{{ m | tojson(indent=2) }}"
        "{{ m.content.split(' ') | map('upper') | select('equalto', 'W') | list | length }}"
        "{{ m.content[1:] ~ m.content.replace(' ', '_' * 20, 3) }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "<w\u4f60> " * 25_000}]
    assert ChatTemplate(template, "t", {}).render(messages) == theirs(template, messages)


def test_the_limits_are_far_from_what_templates_do():
    template = (
        "{% for m in messages %}{% for part in m.content.split() %}{{ loop.index }}/"
        "{{ loop.length }}{{ '%-5s' % part }}{{ '{:>5}'.format(part) }}{{ part ~ 2 ** 10 }}"
        '{{ \'{{"a": {}, "b": 12345678}}\'.format(part) }}{{ part[-3:] + m.role | upper }}\n'
        "{% endfor %}{% endfor %}{{ 1700000000 | string }}{{ 2.5 * 3 }}{{ 'ab' * 2 + 'c' }}"
    )
    messages = [{"role": "user", "content": "some words and numbers " * 100}] * 50
    ours = ChatTemplate(template, "t", {}).render(messages)
    assert len(ours) > 1_000_000 and ours == theirs(template, messages)


def test_objects_are_only_names_to_a_template():
    class Secret:
        content = "secret"

    template = "{{ messages[0].extra }}"
    rendered = ChatTemplate(template, "t", {}).render([{"role": "user", "extra": Secret()}])
    assert rendered == "<Secret>"


def test_a_template_refuses_in_its_own_words():
    template = "{{ raise_exception('roles must\n alternate') }}"
    with pytest.raises(UsageError) as error:
        ChatTemplate(template, "m/chat_template.jinja", {}).render(CHAT)
    assert str(error.value) == "m/chat_template.jinja refuses these messages: roles must alternate"


def test_a_broken_template_is_named_with_its_line():
    with pytest.raises(DamagedFile, match=r"m/chat_template.jinja: line 2: not a valid"):
        ChatTemplate("x\n{% for %}", "m/chat_template.jinja", {})


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "the list of messages is empty"),
        ([{"content": "no role"}], "message {'content': 'no role'} is not a dict with a 'role'"),
        (["text"], "message 'text' is not a dict with a 'role'"),
        ([{"role": "user", "content": "x\ud83d"}], r"content of message 1 has half .* position 1;"),
    ],
)
def test_messages_are_checked(messages, message):
    with pytest.raises(UsageError, match=f"^{message}"):  # and the template is not blamed
        ChatTemplate("", "t", {}).render(messages)


def test_messages_that_hold_themselves_are_refused():
    message = {"role": "user"}
    message["content"] = [message]
    with pytest.raises(UsageError, match="message 1 is nested too deeply, or holds itself"):
        ChatTemplate("", "t", {}).render([message])
