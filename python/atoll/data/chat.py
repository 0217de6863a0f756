"""Conversations as training text: a chat template writes them, and only the answers give loss."""

from __future__ import annotations

import os
from typing import Any

from ..command import Problem, need, wrong
from .pretrained import load_tokenizer, read_json, transformers
from .text_tokenizer import TextTokenizer

FIELDS = ("messages", "conversations")
# Names of roles in data sets of the ShareGPT form.
_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant"}


class Unusable(Exception):
    """This conversation cannot be used; the text is the reason."""


def messages_of(value: Any) -> list[dict[str, Any]]:
    """Returns a conversation as a list of messages with `role` and `content`.

    Takes `{"role", "content"}` and `{"from", "value"}`. Unusable: it has another form, or no answer.
    """
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Unusable("are no list of messages")
    messages = []
    for item in value:
        role, content = item.get("role", item.get("from")), item.get("content", item.get("value"))
        if not isinstance(role, str):
            raise Unusable("have a message without a role")
        if not isinstance(content, str) and not (content is None and item.get("tool_calls")):
            raise Unusable("have a message whose content is not text")
        rest = {key: item[key] for key in item.keys() - {"from", "value"} if item[key] is not None}
        messages.append({**rest, "role": _ROLES.get(role, role), "content": content})
    if not any(
        message["role"] == "assistant" and (message["content"] or "tool_calls" in message) for message in messages
    ):
        raise Unusable("have no answer (a message of the role assistant)")
    return messages


def _named_tokens(folder: str) -> dict[str, str]:
    """What a template uses of tokenizer_config.json: the template itself, and tokens by their names."""
    config = read_json(os.path.join(folder, "tokenizer_config.json"))
    named = {key: value.get("content") if isinstance(value, dict) else value for key, value in config.items()
             if key == "chat_template" or key.endswith("_token")}
    return {key: value for key, value in named.items() if isinstance(value, str)}


class ChatTemplate:
    """The chat template of a tokenizer's folder.

    The template writes the conversation up to each answer, with the generation prompt, and then with the answer: the
    difference is the answer and the tokens that end it.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        try:
            from_backend = transformers().PreTrainedTokenizerFast
        except ImportError:
            raise need("transformers", "--chat") from None
        self.backend = tokenizer.backend
        try:
            self.writer: Any = load_tokenizer(tokenizer.folder)
        except Problem:  # a folder without the model's config.json, or with code, which no template needs
            self.writer = from_backend(tokenizer_object=tokenizer.backend, **_named_tokens(tokenizer.folder))
        template = os.path.join(tokenizer.folder, "chat_template.jinja")
        if not self.writer.chat_template and os.path.isfile(template):
            with open(template, encoding="utf-8") as file:
                self.writer.chat_template = file.read()
        if not self.writer.chat_template:
            raise wrong(
                f"the tokenizer {tokenizer.path} has no chat template: give the folder of a chat model "
                "(with chat_template in tokenizer_config.json, or chat_template.jinja)"
            )

    def _write(self, messages: list[dict[str, Any]], prompt: bool) -> str:
        try:
            return str(self.writer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt))
        except Exception as error:
            raise Unusable(f"are refused by the chat template ({str(error).splitlines()[0][:120]})") from None

    def spans(self, messages: list[dict[str, Any]]) -> tuple[str, list[tuple[int, int]]]:
        """Returns the text of a conversation and the places of its answers, in characters. Unusable."""
        whole = self._write(messages, False)
        spans = []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, after = self._write(messages[:i], True), self._write(messages[: i + 1], False)
            if not whole.startswith(after) or not after.startswith(before):
                raise Unusable("are changed by the chat template after an answer")
            spans.append((len(before), len(after)))
        return whole, spans

    def encode(self, value: Any) -> tuple[list[int], list[bool]]:
        """Returns tokens [n] of a conversation, and for each whether it belongs to an answer [n]. Unusable."""
        text, spans = self.spans(messages_of(value))
        encoding = self.backend.encode(text, add_special_tokens=False)
        answer = [any(start < last and end > first for first, last in spans) for start, end in encoding.offsets]
        return encoding.ids, answer
