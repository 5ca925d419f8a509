"""The chat page in a real browser: Debian's chromium, driven over loopback only."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect, sync_playwright
from relay import Relay

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"viewport": {"width": 360, "height": 640}, "is_mobile": True, "has_touch": True}
ANSWER_MS = 60_000  # a busy machine is slow, not wrong

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed: the chat page is not tested"
)


class Chat:
    """The page as a person uses it, and what the browser complained about meanwhile."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on(
            "console",
            lambda message: (
                self.complaints.append(message.text)
                if message.type in ("error", "warning")
                else None
            ),
        )
        page.goto(url)
        self.question = page.get_by_label("Your message")
        self.stop = page.get_by_role("button", name="Stop the answer")

    @property
    def answer(self) -> Locator:
        """The last answer."""
        return self.page.locator(".answer").last

    @property
    def text(self) -> str:
        """The last answer's text so far."""
        return self.answer.locator(":scope > .prose").inner_text()

    def ask(self, text: str) -> None:
        """Type a question and send it with Enter."""
        self.question.fill(text)
        self.question.press("Enter")

    def wait_for_end(self) -> None:
        """Until the last answer is complete, stopped or failed."""
        expect(self.answer).to_have_attribute("aria-busy", "false", timeout=ANSWER_MS)
        expect(self.stop).to_be_hidden()

    def wait_for_text(self, longer_than: int = 0) -> str:
        """Until the answer that is being written has more characters than that."""
        deadline = time.monotonic() + ANSWER_MS / 1000
        while len(text := self.text) <= longer_than:
            assert time.monotonic() < deadline, f"no more than {text!r} was shown"
            self.page.wait_for_timeout(5)
        return text

    def set(self, label: str, value: str) -> None:
        """Change a setting."""
        button = self.page.get_by_role("button", name="Figures and settings")
        if button.is_visible() and button.get_attribute("aria-expanded") == "false":
            button.click()
        field = self.page.get_by_label(label)
        if not field.is_visible():
            self.page.locator("#settings summary").click()
        field.fill(value)
        field.press("Tab")

    def answer_with(self, *deltas: dict[str, Any]) -> None:
        """Let the browser hear these deltas in place of the server's, to see how they look."""
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
        chunks = [json.dumps({"choices": [choice]}) for choice in choices]
        body = "".join(f"data: {chunk}\n\n" for chunk in [*chunks, "[DONE]"])

        def fulfill(route: Route) -> None:
            route.fulfill(content_type="text/event-stream", body=body)

        self.page.route("**/v1/chat/completions", fulfill)

    def overflow(self) -> int:
        """Pixels by which the page is wider than the screen."""
        wide: int = self.page.evaluate(
            "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
            " - document.documentElement.clientWidth"
        )
        return wide


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Its profile is a new folder that goes away with it.
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, headless=False, args=ARGUMENTS
        )
        yield browser
        browser.close()


@pytest.fixture
def open_chat(browser: Browser, server: Any) -> Iterator[Callable[..., Chat]]:
    """Opens the page in a browser that knows nothing yet; `complaints` must be empty at the end."""
    chats: list[Chat] = []
    contexts = []

    def open_(url: str = server.base_url, **options: Any) -> Chat:
        context = browser.new_context(**options)
        contexts.append(context)
        chats.append(Chat(context.new_page(), url))
        return chats[-1]

    yield open_
    complaints = [complaint for chat in chats for complaint in chat.complaints]
    for context in contexts:
        context.close()
    assert complaints == []


def status(base_url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{base_url}/v1/status", timeout=10) as response:
        figures: dict[str, Any] = json.load(response)
    return figures


def test_a_question_is_answered(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat()
    expect(chat.page.get_by_role("button", name="Send")).to_be_disabled()
    chat.set("Temperature", "0")
    chat.ask("What is the capital of France?")
    expect(chat.question).to_have_value("")
    chat.wait_for_end()
    assert "Paris" in chat.text
    figures = chat.answer.locator(".answer-figures")
    expect(figures).to_have_text(re.compile(r"first token .+ tokens/s .+ tokens in.*, \d+ out"))
    # The next question is asked in the same conversation.
    chat.ask("And of Italy?")
    chat.wait_for_end()
    expect(chat.page.locator(".question")).to_have_count(2)
    sizes = [int(re.findall(r"(\d+) tokens in", text)[0]) for text in figures_of(chat)]
    assert sizes[1] > sizes[0]


def figures_of(chat: Chat) -> list[str]:
    return [
        text.replace(",", "") for text in chat.page.locator(".answer-figures").all_inner_texts()
    ]


def test_enter_sends_and_shift_enter_does_not(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat()
    chat.answer_with({"content": "Yes."})
    chat.question.fill("one")
    chat.question.press("Shift+Enter")
    chat.question.press_sequentially("two")
    expect(chat.question).to_have_value("one\ntwo")
    expect(chat.page.locator(".question")).to_have_count(0)
    chat.question.press("Enter")
    chat.wait_for_end()
    assert chat.page.locator(".question").inner_text().endswith("one\ntwo")
    chat.question.press("Enter")  # nothing is written, nothing is sent
    expect(chat.page.locator(".question")).to_have_count(1)


@pytest.mark.parametrize("by", ["button", "Escape"])
def test_an_answer_grows_until_it_is_stopped(
    open_chat: Callable[..., Chat], server: Any, by: str
) -> None:
    chat = open_chat()
    chat.ask("Write a very long story about a lighthouse keeper, with many chapters.")
    first = chat.wait_for_text()
    second = chat.wait_for_text(longer_than=len(first))
    assert second.startswith(first[:-1])
    expect(chat.stop).to_be_visible()
    if by == "button":
        chat.stop.click()
    else:
        chat.question.press("Escape")
    chat.wait_for_end()
    expect(chat.answer).to_contain_text("stopped")
    stopped = chat.text
    deadline = time.monotonic() + 5
    while status(server.base_url)["requests"]["running"]:  # the server stopped too
        assert time.monotonic() < deadline
        time.sleep(0.02)
    chat.page.wait_for_timeout(200)
    assert chat.text == stopped


def test_a_reload_keeps_the_conversation_and_the_settings(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat()
    chat.set("System prompt", "You are brief.")
    chat.set("Longest answer", "24")
    chat.ask("What is the capital of France?")
    chat.wait_for_end()
    before = chat.text
    chat.page.reload()
    expect(chat.page.locator(".question")).to_contain_text("What is the capital of France?")
    assert chat.text == before
    expect(chat.page.locator("#system")).to_have_value("You are brief.")
    expect(chat.page.locator("#max-tokens")).to_have_value("24")
    chat.page.get_by_role("button", name="Clear the conversation").click()
    chat.page.reload()
    expect(chat.page.locator(".question")).to_have_count(0)


def test_a_reload_keeps_what_was_written_of_an_answer(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat()
    chat.ask("Write a very long story about a lighthouse keeper, with many chapters.")
    first = chat.wait_for_text(longer_than=10)
    chat.page.reload()
    assert chat.text.startswith(first[:10])
    expect(chat.answer).to_contain_text("stopped")
    expect(chat.answer.get_by_role("button", name="Try again")).to_be_visible()


def test_the_figures_are_the_servers(open_chat: Callable[..., Chat], server: Any) -> None:
    chat = open_chat()
    figures = status(server.base_url)
    panel = chat.page.get_by_role("complementary")
    expect(panel).to_contain_text(figures["model"]["id"])
    expect(panel).to_contain_text(f"context {figures['model']['max_model_len']:,}")
    weights = f"{figures['model']['weights_bytes'] / 2**20:,.0f} MiB"
    expect(panel.locator("[data-figure=weights]")).to_have_text(weights)
    expect(panel.locator("[data-figure=pss]")).to_have_text(re.compile(r"^[\d.,]+ [MG]iB$"))
    expect(panel.locator("[data-figure=running]")).to_have_text("0")


MARKDOWN = """# Title

Some **bold**, *slanted* and `inline` text with snake_case_names.

```python
def f(x: int) -> str:
    return f"<b>{x}</b>"  # a line that is far too long for the screen of any telephone
```

1. one
2. two
   - inner

| Name | Value |
|---|---|
| a | 1 |

[safe](https://example.com/) [unsafe](javascript:alert(1))
"""


def test_markdown_becomes_elements(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat()
    chat.answer_with(*({"content": MARKDOWN[i : i + 7]} for i in range(0, len(MARKDOWN), 7)))
    chat.ask("Show me")
    chat.wait_for_end()
    prose = chat.answer.locator(":scope > .prose")
    expect(prose.get_by_role("heading", name="Title")).to_be_visible()
    expect(prose.locator("strong")).to_have_text("bold")
    expect(prose.locator("em")).to_have_text("slanted")
    expect(prose.locator("p code")).to_have_text("inline")
    expect(prose.locator("figure.code figcaption")).to_contain_text("python")
    code = prose.locator("figure.code pre").text_content()
    assert code == MARKDOWN.split("```")[1].removeprefix("python\n").rstrip("\n")
    expect(prose.locator("ol > li")).to_have_count(2)
    expect(prose.locator("ol ul > li")).to_have_text("inner")
    expect(prose.get_by_role("cell", name="1")).to_be_visible()
    expect(prose.locator("a")).to_have_count(1)
    expect(prose.locator("a")).to_have_attribute("rel", "noopener noreferrer")


HOSTILE = """<img src=x onerror="document.title='broken'"> <script>document.title='broken'</script>

[a](javascript:document.title='broken') [b](data:text/html,x) ![c](http://127.0.0.1:9/c.png)

> <iframe src="/"></iframe>

| <b>h</b> |
|---|
| <svg onload=alert(1)> |
"""


def test_markup_of_a_model_stays_text(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat()
    chat.answer_with({"reasoning_content": HOSTILE}, {"content": HOSTILE})
    chat.ask("<b>Attack</b>")
    chat.wait_for_end()
    conversation = chat.page.get_by_role("log")
    expect(conversation.locator("img, script, iframe, svg, b, [onerror]")).to_have_count(0)
    expect(conversation.locator("a:not([href^=http])")).to_have_count(0)
    assert "<img src=x" in chat.text
    assert chat.page.locator(".question").inner_text().endswith("<b>Attack</b>")
    assert "broken" not in chat.page.title()


def test_reasoning_and_tool_calls_are_shown_apart(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat()
    call = {"index": 0, "id": "call_1", "type": "function"}
    chat.answer_with(
        {"reasoning_content": "The user wants "},
        {"reasoning_content": "the weather."},
        {"content": "Let me look."},
        {"tool_calls": [{**call, "function": {"name": "weather", "arguments": '{"city"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ': "Paris"}'}}]},
    )
    chat.ask("Weather?")
    chat.wait_for_end()
    assert chat.text == "Let me look."
    thoughts = chat.answer.get_by_text("The user wants the weather.")
    expect(thoughts).to_be_hidden()
    chat.answer.get_by_text("Thoughts").click()
    expect(thoughts).to_be_visible()
    expect(chat.answer.locator(".tool-call figcaption")).to_have_text("Calls weather")
    expect(chat.answer.locator(".tool-call pre")).to_have_text('{\n  "city": "Paris"\n}')


def test_a_phone_scrolls_in_one_direction_only(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat(**PHONE)
    expect(chat.page.get_by_role("complementary")).to_be_hidden()
    wide = f"{'unbroken' * 40}\n\n{MARKDOWN}\n\n| {' | '.join(['column'] * 12)} |\n{'|---' * 12}|\n"
    chat.answer_with({"content": wide})
    chat.ask("W" * 200)
    chat.wait_for_end()
    assert chat.overflow() == 0
    scroller = chat.page.locator("#scroller")
    assert scroller.evaluate("e => e.scrollWidth - e.clientWidth") == 0
    pre = chat.answer.locator("figure.code pre")
    assert pre.evaluate("e => e.scrollWidth - e.clientWidth") > 0  # the code scrolls by itself
    expect(chat.question).to_be_in_viewport(ratio=1)
    chat.page.get_by_role("button", name="Figures and settings").click()
    expect(chat.page.get_by_role("complementary")).to_be_visible()
    assert chat.overflow() == 0
    chat.page.keyboard.press("Escape")
    expect(chat.page.get_by_role("complementary")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_colour_schemes(
    open_chat: Callable[..., Chat], scheme: str
) -> None:
    chat = open_chat(color_scheme=scheme)
    chat.answer_with({"content": "An answer."})
    chat.ask("A question?")
    chat.wait_for_end()
    darkness = {}
    for name in ("color", "backgroundColor"):
        colour = chat.page.evaluate(f"getComputedStyle(document.body).{name}")
        darkness[name] = 1 - luminance(colour)
    assert (darkness["backgroundColor"] > 0.5) is (scheme == "dark")
    for selector, behind in (
        (".answer p", "body"),
        (".question", ".question"),
        (".note", ".panel"),
    ):
        text = chat.page.locator(selector).first.evaluate("e => getComputedStyle(e).color")
        ground = chat.page.locator(behind).first.evaluate(
            "e => getComputedStyle(e).backgroundColor"
        )
        bright, dim = sorted((luminance(text), luminance(ground)), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, f"{selector} on {behind}"  # WCAG AA


def luminance(colour: str) -> float:
    """The relative luminance of `rgb(r, g, b)`, as WCAG defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_conversation_that_is_too_long_is_explained(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat()
    chat.ask("word " * 20_000)
    chat.wait_for_end()
    problem = chat.answer.get_by_role("alert")
    expect(problem).to_contain_text("context_length_exceeded")
    expect(problem).to_contain_text("Clear the conversation")
    assert [c for c in chat.complaints if "status of 400" not in c] == []
    chat.complaints.clear()  # the browser itself reports every refusal


def test_a_wrong_key_is_explained_and_the_right_one_works(
    open_chat: Callable[..., Chat], start_server: Callable[..., Any]
) -> None:
    base_url = start_server("--api-key", "sesame").base_url
    chat = open_chat(base_url, **PHONE)
    chat.set("API key", "wrong")
    chat.page.keyboard.press("Escape")
    chat.ask("Hello?")
    chat.wait_for_end()
    expect(chat.answer.get_by_role("alert")).to_contain_text("invalid_api_key")
    # The field is shown where the key goes, and waits for it.
    expect(chat.page.get_by_label("API key")).to_be_focused()
    expect(chat.page.get_by_label("API key")).to_be_in_viewport()
    expect(chat.page.locator("#status-problem")).to_be_visible()
    chat.set("API key", "sesame")
    expect(chat.page.locator("#status-problem")).to_be_hidden()
    chat.page.keyboard.press("Escape")
    chat.set("Longest answer", "16")
    chat.page.keyboard.press("Escape")
    chat.answer.get_by_role("button", name="Try again").click()
    chat.wait_for_end()
    expect(chat.page.locator(".question")).to_have_count(1)
    assert chat.text
    expect(chat.answer.get_by_role("alert")).to_be_hidden()
    chat.page.reload()
    stored = "sessionStorage.length + ' ' + JSON.stringify(localStorage)"
    assert "sesame" not in chat.page.evaluate(stored)
    assert [c for c in chat.complaints if "status of 401" not in c] == []
    chat.complaints.clear()


def test_a_lost_connection_is_explained(open_chat: Callable[..., Chat], server: Any) -> None:
    with Relay(int(server.base_url.rpartition(":")[2])) as relay:
        chat = open_chat(relay.base_url)
        chat.ask("Write a very long story about a lighthouse keeper, with many chapters.")
        written = chat.wait_for_text()
        relay.cut()
        chat.wait_for_end()
        problem = chat.answer.get_by_role("alert")
        expect(problem).to_contain_text("The server cannot be reached")
        assert chat.text.startswith(written[:-1])  # what came is not lost
        expect(chat.page.locator("#status-problem")).to_have_text("The server cannot be reached")
        assert [c for c in chat.complaints if "net::ERR" not in c] == []
        chat.complaints.clear()
