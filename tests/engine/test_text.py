"""Streamed text is complete, in order, and ends where it should."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from lab.config import SamplingParams
from lab.engine.detokenizer import TextStream, token_text
from tests.tiny_models import engine, tokenizer


def stream(text: str, stop=()) -> tuple[list[str], str, bool]:
    out = TextStream(tokenizer(), stop=stop)
    pieces = [out.push(token) for token in tokenizer()(text)["input_ids"]]
    return pieces, out.flush(), out.stopped


@given(st.text(max_size=40))
def test_pieces_add_up_to_the_text_and_split_no_character(text):
    pieces, rest, _ = stream(text)
    assert "".join(pieces) + rest == text
    assert rest == ""
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces) or "\N{REPLACEMENT CHARACTER}" in text


@given(st.lists(st.integers(0, 256), max_size=30))
@example([*tokenizer()("é")["input_ids"][:1], 256])
def test_any_bytes_stream_to_the_text_they_decode_to_at_once(tokens):
    """Also with ends of a text among them, of which nothing is shown."""
    out = TextStream(tokenizer())
    text = "".join(out.push(token) for token in tokens) + out.flush()
    assert text == tokenizer().decode(tokens, skip_special_tokens=True)


@given(st.lists(st.sampled_from([*"a ", "\N{REPLACEMENT CHARACTER}", "é", "☃"]), max_size=6), st.data())
def test_no_text_of_the_context_is_repeated(characters, data):
    """The context may end anywhere, also within a character or in a replacement character."""
    tokens = tokenizer()("".join(characters))["input_ids"]
    split = data.draw(st.integers(0, len(tokens)))
    out = TextStream(tokenizer(), tokens[:split])
    said = "".join(out.push(token) for token in tokens[split:]) + out.flush()
    before, whole = tokenizer().decode(tokens[:split]), tokenizer().decode(tokens)
    known = max(n for n in range(len(before) + 1) if whole.startswith(before[:n]))
    assert said == whole[known:]


def test_the_pieces_of_a_prompt_add_up_to_it():
    prompt = "the end \N{REPLACEMENT CHARACTER}"
    run = engine().generate(prompt, sampling=SamplingParams(max_tokens=1))
    assert "".join(run.events[0].prompt_pieces) == prompt


def test_a_character_comes_with_its_last_byte():
    assert stream("é☃")[0] == ["", "é", "", "", "☃"]


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_before_the_first_stop_string(text, stops):
    pieces, rest, stopped = stream(text, stops)
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    assert stopped == bool(ends)
    if not ends:
        assert "".join(pieces) + rest == text
    else:
        # One byte per token: the first stop string to be complete ends the text.
        first = min(text.find(stop) + len(stop) for stop in stops if stop in text)
        expected = min(at for stop in stops if (at := text[:first].find(stop)) >= 0)
        assert "".join(pieces) + rest == text[:expected]


def test_half_a_stop_string_is_held_back_then_released():
    pieces, rest, stopped = stream("no en!", stop=("end",))
    assert pieces == ["n", "o", " ", "", "", "en!"]
    assert (rest, stopped) == ("", False)
    assert stream("the en", stop=("end",))[1] == "en"


def test_token_text_shows_part_of_a_character_as_the_vocabulary_spells_it():
    first_byte = tokenizer()("é")["input_ids"][0]
    assert token_text(tokenizer(), first_byte) == "Ã"
    assert token_text(tokenizer(), tokenizer()("a")["input_ids"][0]) == "a"


def byte_fallback() -> PreTrainedTokenizerFast:
    """Like Llama 2's: every byte has a token, such as <0xE2>, for text in no word; spaces are ▁."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁the", "x"]
    core = Tokenizer(BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True, unk_token="<unk>"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=core)


def test_half_a_character_does_not_retract_the_whole_ones_before_it():
    """A byte-fallback tokenizer then decodes the bytes before it to replacement characters, too."""
    llama = byte_fallback()
    tokens = llama.convert_tokens_to_ids(["<0xC3>", "<0xA9>", "<0xE2>", "a", "▁the", "b"])
    assert llama.decode(tokens).startswith("\N{REPLACEMENT CHARACTER}" * 3)
    out = TextStream(llama)
    assert [out.push(token) for token in tokens] == ["", "é", "", "\N{REPLACEMENT CHARACTER}a", " the", "b"]
    assert out.flush() == ""
    out = TextStream(llama, tokens[:2])
    assert "".join(out.push(token) for token in tokens[2:]) == "\N{REPLACEMENT CHARACTER}a theb"


BYTES = [f"<0x{byte}>" for byte in ("C3", "A9", "E2", "98", "83")]


@given(st.lists(st.sampled_from(["a", "▁the", "▁", *BYTES])), st.data())
def test_no_text_is_lost_among_byte_fallback_tokens(words, data):
    llama = byte_fallback()
    tokens = llama.convert_tokens_to_ids(words)
    split = data.draw(st.integers(0, len(tokens)))
    out = TextStream(llama, tokens[:split])
    said = "".join(out.push(token) for token in tokens[split:]) + out.flush()
    plain = [word for word in words[split:] if not word.startswith("<")]
    assert [sign for sign in said if sign in "athe"] == [sign for word in plain for sign in word if sign in "athe"]
