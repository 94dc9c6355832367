"""The documentation's pictures of models other than the embedded one: ``python -m docs.record_models``.

A window that slides, a recurrent state that goes back, and a chat. The first and the last are the embedded target with
a window, or a chat template, that it was not trained with; the second has random weights.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Page, sync_playwright
from transformers import AutoTokenizer

from docs.record_animation import app
from docs.record_pictures import WINDOW, record
from lab.models.loader import WEIGHTS
from tests import ensure_chromium
from tests.models.test_numerical_check import random_model

TARGET = WEIGHTS / "target"
PROMPT = "Once upon a time there was a little girl who lived near the forest, and every morning she went to the well."
TEMPLATE = "{% for m in messages %}{{ m.content + '\\n' + eos_token }}{% endfor %}"
SAID = ("Once upon a time there was a king.", "And what did his daughter say?")
USUAL = {
    "paged": 1,
    "block_size": 4,
    "num_blocks": 40,
    "max_tokens": 40,
    "temperature": 0,
    "speculative": "off",
    "prompt": PROMPT,
}


def write(where: Path) -> None:
    """The models' folders."""
    for name, changes in {
        "window": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 12},
        "chat": {},
    }.items():
        shutil.copytree(TARGET, where / name)
        file = where / name / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | changes), "utf-8")
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    hybrid = random_model("lfm2", vocab_size=len(tokenizer), layer_types=["conv", "full_attention", "conv"])
    hybrid.save_pretrained(where / "recurrent")
    tokenizer.save_pretrained(where / "recurrent")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(where / "chat")


def step_to(page: Page, said: str) -> None:
    """Step on from the beginning until the sentence has these words."""
    page.evaluate("document.activeElement?.blur()")
    page.keyboard.press("Home")
    for _ in range(9):
        page.keyboard.press("Shift+ArrowRight")
        page.wait_for_timeout(2_000)  # a sentence waits for the one before
        if said in page.locator(".say").inner_text():
            return
    raise RuntimeError(f"No step said {said!r}.")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        write(Path(folder))
        browser = playwright.chromium.launch(executable_path=ensure_chromium.find(), args=["--no-sandbox"])
        for name, settings, said in (
            ("window", {}, "slid out"),
            ("recurrent", {"speculative": "early_exit", "early_exit_layer": 2}, "recurrent state"),
            ("chat", {"block_size": 8, "enable_prefix_caching": 1}, ""),
        ):
            page = browser.new_page(viewport=WINDOW, color_scheme="light", reduced_motion="reduce")
            page.set_default_timeout(120_000)  # however busy the machine is
            with app("--target", str(Path(folder, name))) as url:
                page.goto(f"{url}/?{urlencode(USUAL | settings)}")
                page.locator("#run").wait_for()
                page.wait_for_timeout(2_000)
                for i, one in enumerate(SAID if name == "chat" else (PROMPT,), 1):
                    page.fill("#prompt textarea", one)
                    page.click("#run")
                    if name == "chat":
                        page.locator(f"#conversation li:nth-child({2 * i})").wait_for()
                    else:
                        page.locator(".say", has_text="Done").wait_for()
                        step_to(page, said)
                record(page, f"model-{name}")
        browser.close()


if __name__ == "__main__":
    main()
