"""Models other than the embedded ones, named by the user on their own machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from lab import Run
from tests import hub, tiny_models
from tests.browser.conftest import serving
from tests.browser.pages import Lab, Visit, notices
from tests.browser.test_accessibility import violations

TARGET = "#target textarea, #target input"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target and a draft for it."""
    root = tmp_path_factory.mktemp("models")
    model = tiny_models.random_model("llama", num_hidden_layers=3)
    for name, it in {"target": model, "draft": tiny_models.perturbed(model, 0.02)}.items():
        it.save_pretrained(root / name)
        tiny_models.tokenizer().save_pretrained(root / name)
    return root


def name_models(lab: Lab, target: Path | str, draft: Path | str) -> None:
    lab.pick("pair", "other")
    lab.page.wait_for_selector("#target", state="visible")
    lab.page.fill(TARGET, str(target))
    lab.page.fill("#draft textarea, #draft input", str(draft))


def test_models_from_folders_run_and_a_failed_load_loses_nothing(visit: Visit, folder: Path, tmp_path: Path) -> None:
    lab = visit().open(max_tokens=12, seed=3, num_blocks=16)
    assert not lab.page.is_visible("#target")
    name_models(lab, folder / "target", folder / "draft")
    lab.ran()
    run = Run.load(lab.save("json", tmp_path))
    assert (run.started.target, run.started.draft) == ("target", "draft")
    assert len(run.token_ids) == 12
    for target, draft, says in (
        (tmp_path, "", "needs a draft model"),  # would not load, but is refused before it is tried
        ("<b>nobody</b>", folder / "draft", "There is no folder"),
    ):
        name_models(lab, target, draft)
        lab.run()
        expect(lab.problem).to_contain_text(says)
        lab.page.wait_for_selector("body:not(.running)")
    lab.pick("pair", "matched")
    lab.ran()
    assert Run.load(lab.save("json", tmp_path)).started.target == "stories"

    # A link carries the models named, and leaves it to people to load them.
    lab.open(pair="other", target=str(folder / "target"), max_tokens=5, speculative="off", run=1)
    expect(notices(lab.page)).not_to_be_empty()
    assert not lab.page.get_attribute(".stage", "data-run")
    assert lab.page.input_value(TARGET) == str(folder / "target")
    lab.ran()
    assert lab.written.count() >= 5


def test_a_download_shows_progress_and_stops_without_losing_the_previous_pair(troubled: Visit, tmp_path: Path) -> None:
    model = tiny_models.random_model("llama", num_hidden_layers=3, hidden_size=256, intermediate_size=512)
    model.save_pretrained(tmp_path / "some/model")
    tiny_models.tokenizer().save_pretrained(tmp_path / "some/model")
    log, cache = tmp_path / "log.txt", {"HF_HOME": str(tmp_path / "cache")}
    with (
        hub.serving(tmp_path, xet=True, seconds=0.1) as slow,
        serving(log, **slow.variables, **cache) as address,
    ):
        lab = troubled(address).open(max_tokens=8)
        name_models(lab, "some/model", "some/model")
        lab.run()
        expect(lab.say).to_contain_text("of 5.7 MB")
        lab.press("Escape")
        expect(lab.say).not_to_contain_text("MB")
        lab.finish()
        lab.pick("pair", "matched")
        lab.ran()
        slow.seconds = 0.0
        lab.pick("pair", "other")
        lab.ran()
        assert Run.load(lab.save("json", tmp_path)).started.target == "some/model"
        lab.page.close()
    assert "Traceback" not in log.read_text(), log.read_text()


def test_a_chat_with_a_target_alone_goes_on_and_shows_what_each_turn_found(troubled: Visit, tmp_path: Path) -> None:
    tiny_models.save_chat_model(tmp_path / "talker", "thinking")
    with serving(tmp_path / "log.txt", "--target", str(tmp_path / "talker")) as address:
        lab = troubled(address).open(enable_prefix_caching=1, max_tokens=12)
        page = lab.page
        expect(page.locator("#run")).to_have_text("Send")
        for turn, said in enumerate(("Good morning <|im_end|> to you.", "Why?"), 1):
            page.fill("#prompt textarea", said)
            lab.run()
            expect(page.locator("#conversation li")).to_have_count(2 * turn)
            expect(page.locator("#prompt textarea")).to_have_value("")
        hits = page.locator("#conversation small").all_inner_texts()
        found = [re.search(r"(\d+) of (\d+) prompt", one) for one in hits]
        (none, first), (hit, second) = (tuple(map(int, one.groups())) for one in found)
        assert none == 0 < first - 16 < hit < second, "all of the turn before it, but for a partial block"
        page.click("#templated summary")
        expect(page.locator("#templated b").first).to_have_text("<|im_start|>")
        assert page.locator("#templated b", has_text="<|im_end|>").count() == 3, "that of a message is text"
        assert violations(page, "#settings") == []
        page.reload()
        expect(page.locator("#conversation li")).to_have_count(4)
        page.click("#new-chat")
        expect(page.locator("#conversation li")).to_have_count(0)
        started_with = Run.load(lab.ran(max_tokens=4).save("json", tmp_path)).started
        assert (started_with.target, started_with.config["speculative"]) == ("talker", "ngram")
        lab.at("compare")  # which begins without drafts
        assert page.locator("#lanes input[name^=draft]:checked").count() == 0
        expect(lab.option("preset", "ladder")).to_be_checked()
        page.close()
