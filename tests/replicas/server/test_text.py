"""The text behaves like a greedy model: it depends on what stands before it and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from contract.blocks import TOKEN_BYTES
from contract.openai_api import (
    ChatFields,
    ChatMessage,
    CompletionFields,
    render_chat,
    render_completion,
)
from replicas.core.text import (
    END_OF_TEXT,
    MEAN_WORDS,
    WORDS,
    Text,
    expected_open_text,
    expected_text,
    token_ids,
)

PROMPTS = st.binary(max_size=64).map(lambda data: data[: len(data) // TOKEN_BYTES * TOKEN_BYTES])
COUNTS = st.integers(0, 40)


@given(PROMPTS, COUNTS, COUNTS, st.integers(0, 3))
def test_going_on_from_a_part_of_an_answer_gives_the_rest_of_it(
    prompt: bytes, first: int, second: int, choice: int
) -> None:
    whole = expected_text(prompt, first + second, choice)
    part = expected_text(prompt, first, choice)

    assert part + expected_text(prompt + part.encode(), second, choice) == whole


@given(st.text(), COUNTS, COUNTS)
def test_a_prompt_of_any_length_goes_on_from_a_part_of_its_answer(
    prompt: str, first: int, second: int
) -> None:
    (words,) = render_completion(CompletionFields(prompt=prompt))
    part = expected_text(words, first)

    (longer,) = render_completion(CompletionFields(prompt=prompt + part))

    assert part + expected_text(longer, second) == expected_text(words, first + second)
    assert len(longer) == len(words) + first * TOKEN_BYTES


@given(st.lists(st.sampled_from(["user", "assistant", "system"]), min_size=1, max_size=3), COUNTS)
def test_a_final_message_that_is_continued_gets_the_rest_of_the_answer(
    roles: list[str], first: int
) -> None:
    messages = [ChatMessage(role, f"I am {role}") for role in roles]
    words = render_chat(ChatFields(messages))
    part = expected_text(words, first)

    answered = [*messages, ChatMessage("assistant", part)]
    longer = render_chat(ChatFields(answered, continue_final_message=True))

    assert longer == words + part.encode()
    assert part + expected_text(longer, 5) == expected_text(words, first + 5)


@given(st.text(max_size=8), st.data())
def test_an_open_answer_that_is_continued_ends_where_it_would_have_ended(
    prompt: str, data: st.DataObject
) -> None:
    (words,) = render_completion(CompletionFields(prompt=prompt))
    whole = expected_open_text(words, 2_000)
    num_words = len(whole) // TOKEN_BYTES
    first = data.draw(st.one_of(st.just(num_words), st.integers(1, num_words)))
    part = whole[: first * TOKEN_BYTES]

    (longer,) = render_completion(CompletionFields(prompt=prompt + part))

    assert part + expected_open_text(longer, 2_000) == whole


@given(PROMPTS, st.integers(1, 300))
def test_an_open_answer_is_the_beginning_of_the_endless_one(prompt: bytes, most: int) -> None:
    answer = expected_open_text(prompt, most)

    assert answer  # these prompts do not end in a word of an answer
    assert len(answer) <= most * TOKEN_BYTES
    assert expected_text(prompt, most).startswith(answer)


def test_words_are_many_and_all_of_one_token() -> None:
    assert len({word.text for word in WORDS}) == len(WORDS) >= 2_000
    assert all(list(token_ids(word.text)) == [word.token_id] for word in WORDS)
    assert END_OF_TEXT not in WORDS


def test_open_answers_have_the_stated_mean_length() -> None:
    prompts = [index.to_bytes(4, "little") for index in range(4_000)]

    lengths = [len(expected_open_text(prompt, 2_000)) / TOKEN_BYTES for prompt in prompts]

    mean = sum(lengths) / len(lengths)
    assert abs(mean - MEAN_WORDS) < 6  # the standard error is 1.6
    assert min(lengths) < 5
    assert max(lengths) > 4 * MEAN_WORDS


def test_prompts_and_choices_that_differ_in_little_have_other_answers() -> None:
    texts = [expected_text(b"abcd", 5), expected_text(b"abce", 5), expected_text(b"abcd", 5, 1)]

    assert len(set(texts)) == 3


def test_an_answer_that_comes_back_as_a_message_has_the_tokens_that_were_generated() -> None:
    question = ChatMessage(role="user", content="hello")
    prompt = render_chat(ChatFields(messages=[question]))
    answer = expected_text(prompt, 9)

    answered = ChatFields(messages=[question, ChatMessage(role="assistant", content=answer)])

    assert render_chat(answered).startswith(prompt + answer.encode())


def test_the_end_of_text_does_not_change_what_would_have_come() -> None:
    ended, endless = Text(b"1234"), Text(b"1234")
    words = []
    while (word := ended.next_word_or_end()) is not END_OF_TEXT:
        words.append(word)

    assert [endless.next_word() for _ in words] == words
