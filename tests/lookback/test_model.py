"""Attention to segments, reduced inside the call, against the full tensors of tiny real models."""

import copy
import math
import threading

import numpy as np
import pytest
import torch
import transformers as hf
from tiny_models import (
    ARCHITECTURES,
    PROMPTS,
    SHAPE,
    bpe_tokenizer,
    byte_of_character,
    local,
    tiny,
    word_tokenizer,
)
from tokenizers import AddedToken, Regex, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from conformal_retrievers.lookback.attention import Recorder
from conformal_retrievers.lookback.model import LocalModel
from conformal_retrievers.lookback.prompt import PromptTokens, RagPrompt
from conformal_retrievers.lookback.ratios import lookback_ratios

pytestmark = pytest.mark.slow

# --- what it ought to be: eq. 7 to 9 in loops, over output_attentions of one unpadded prompt ------


def segments_of(prompt):
    """The texts of a plain prompt's segments."""
    preamble = prompt.preamble + "\n\n" if prompt.preamble else ""
    question = prompt.question + prompt.ending
    return [preamble, *(snippet + "\n\n" for snippet in prompt.snippets), question]


def full_attention(model, prompt, answer):
    """Weights (layers, heads, rows, columns), and the columns of each segment of the prompt."""
    tokenizer = bpe_tokenizer()
    texts = segments_of(prompt)
    [ids] = [tokenizer("".join(texts))["input_ids"]]
    columns = [[] for _ in texts]
    read = b""
    for place, token in enumerate(ids):  # byte by byte: tokens may be parts of a character
        read += bytes(byte_of_character()[c] for c in tokenizer.convert_ids_to_tokens(token))
        ends = np.cumsum([len(text.encode()) for text in texts])
        columns[int(np.searchsorted(ends, len(read) - 1, side="right"))].append(place)
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    with torch.inference_mode():
        output = eager(torch.tensor([ids + list(answer)]), output_attentions=True)
    return torch.stack(output.attentions)[:, 0].float().numpy(), columns, len(ids)


def expected(model, prompt, answer):
    """A_t(x) and the ratios of eq. 8 and 9, and of the full context."""
    weights, columns, prompt_length = full_attention(model, prompt, answer)
    layers, heads = weights.shape[:2]
    k = len(prompt.snippets)
    means = np.zeros((len(answer), layers, heads, k + 3))
    snippets, context = np.zeros((layers, heads, k)), np.zeros((layers, heads))
    for t in range(len(answer)):
        row = weights[:, :, prompt_length - 1 + t]
        for x, places in enumerate(columns):
            means[t, ..., x] = row[..., places].mean(-1) if places else 0
        means[t, ..., -1] = row[..., prompt_length : prompt_length + t].mean(-1) if t else 0
        in_snippets = row[..., [p for places in columns[1:-1] for p in places]].mean(-1)
        for i in range(k):
            ratio = k * means[t, ..., 1 + i] / (in_snippets + means[t, ..., -1])
            snippets[..., i] += ratio / len(answer)
        in_prompt = row[..., :prompt_length].mean(-1)
        context += in_prompt / (in_prompt + means[t, ..., -1]) / len(answer)
    return means, snippets, context


def assert_as_expected(model, prompt, answer, attention, within=1e-5):
    means, snippets, context = expected(model, prompt, answer)
    np.testing.assert_allclose(attention.means, means, rtol=1e-5, atol=within)
    ratios = lookback_ratios(attention)
    np.testing.assert_allclose(ratios.snippets, snippets, rtol=1e-5, atol=within)
    np.testing.assert_allclose(ratios.context, context, rtol=1e-5, atol=within)


# --- it is that -----------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_generating_and_one_pass_give_the_ratios_of_the_full_attention(architecture):
    model = local(architecture)
    for prompt, generated in zip(PROMPTS, model.generate(PROMPTS, max_new_tokens=7), strict=True):
        assert len(generated.tokens) == 7
        assert_as_expected(model.model, prompt, generated.tokens, generated.attention)
    answers = [(17, 300, 5, 5, 42), (9,), (250, 251), (99, 98, 97, 96, 95, 94, 93)]
    read = model.read(PROMPTS, answers)
    for prompt, answer, attention in zip(PROMPTS, answers, read, strict=True):
        assert_as_expected(model.model, prompt, answer, attention)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_answer_is_that_of_plain_generation(architecture):
    model = local(architecture)
    [generated] = model.generate(PROMPTS[:1], max_new_tokens=7)
    ids = model.tokenizer("".join(segments_of(PROMPTS[0])), return_tensors="pt")
    ids.pop("token_type_ids", None)
    plain = model.model.generate(**ids, max_new_tokens=7, do_sample=False, pad_token_id=0)
    assert list(generated.tokens) == plain[0, ids["input_ids"].shape[1] :].tolist()
    assert generated.text == model.tokenizer.decode(generated.tokens, skip_special_tokens=True)


HALVES = PromptTokens([7] * 20, np.repeat([0, 1], 10), np.array([10, 10]))


def recorded(query, key, scaling):
    """The means over two segments and output, for six answers' tokens after a prompt of 20."""
    recorder = Recorder([HALVES], 20, last_row_alone=False)
    recorder.record(0, query, key, None, scaling)
    return recorder.means(1, 1)


@pytest.mark.parametrize("size", [1.0, 60.0], ids=["plain", "q · k beyond float16"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_products_of_queries_and_keys_are_float32(dtype, size, monkeypatch):
    """Under autocast and block by block too."""
    torch.manual_seed(1)
    query = (size * torch.randn(1, 4, 25, 64)).to(dtype)
    key = (size * torch.randn(1, 2, 25, 64)).to(dtype)
    largest = (query[0, :2] @ key[0, 0].T).abs().max()
    assert (largest == math.inf) == (dtype == torch.float16 and size > 1)
    expected = recorded(query.double(), key.double(), scaling=0.7 / size**2)
    for block, autocast in ((2**20, False), (2**20, True), (300, False)):
        monkeypatch.setattr("conformal_retrievers.lookback.attention.BLOCK", block)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = recorded(query, key, scaling=0.7 / size**2)
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.fixture
def model():
    return local("llama")


# --- answers that end -----------------------------------------------------------------------------


def test_an_answer_ends_where_the_model_ends_it(model):
    first = model.generate(PROMPTS, max_new_tokens=7)[0].tokens
    end = next(token for token in first[2:] if token not in first[:2])
    model.model.generation_config.eos_token_id = [end, 399]
    short = model.generate(PROMPTS, max_new_tokens=7)
    assert short[0].tokens == first[: first.index(end)]
    for prompt, one in zip(PROMPTS, short, strict=True):
        assert end not in one.tokens
        if one.tokens:
            assert_as_expected(model.model, prompt, one.tokens, one.attention)
    model.model.generation_config.eos_token_id = first[0]
    [generated] = model.generate(PROMPTS[:1], max_new_tokens=3)
    assert (generated.text, generated.tokens) == ("", ())
    ratios = lookback_ratios(generated.attention)
    assert np.isnan([*ratios.snippets.ravel(), *ratios.context.ravel()]).all()


# --- segments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("chat", "lengths"), [(False, [3, 2, 3, 5]), (True, [5, 2, 3, 5])])
def test_segments_are_counted_in_tokens_word_by_word(chat, lengths):
    """A chat template's own words belong to the preamble and the question."""
    words = ["Be", "brief", ".", "one", "two", "three", "What", "is", "it", "?", "Answer:", "so"]
    tokenizer = word_tokenizer([*words, "<|user|>", "<|assistant|>"])
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A" if chat else "$A", special_tokens=[("<s>", 1)]
    )
    if chat:
        tokenizer.chat_template = (
            "{{ bos_token }} <|user|> {{ messages[0]['content'] | trim }} <|assistant|>"
        )
    prompt = RagPrompt("What is it ? ", ("one two", "three three three"), preamble=" Be brief .")
    [attention] = LocalModel(tiny("llama"), tokenizer, name="words").read([prompt], ["so so"])
    assert attention.lengths.tolist() == lengths
    assert attention.means.shape == (2, 3, 4, 5)
    assert attention.model == "words"


def test_text_and_its_tokens_are_the_same_answer(model):
    expected = model.read(PROMPTS[:2], [model.tokenizer(" six hours")["input_ids"]] * 2)
    model.tokenizer.backend_tokenizer.enable_truncation(5)  # is not applied
    for text, tokens in zip(model.read(PROMPTS[:2], [" six hours"] * 2), expected, strict=True):
        np.testing.assert_array_equal(text.means, tokens.means)
        assert text.digest == tokens.digest


# --- the model is left as it was ------------------------------------------------------------------


def test_the_models_own_attention_is_restored_even_after_an_error(model):
    model.model.set_attn_implementation("eager")
    model.read(PROMPTS[:1], [(5, 6)])
    assert model.model.config._attn_implementation == "eager"
    model.model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    for use in (
        lambda: model.read(PROMPTS[:1], [(5, 6)]),
        lambda: model.generate(PROMPTS[:1], max_new_tokens=2),
    ):
        with pytest.raises(ZeroDivisionError):
            use()
        assert model.model.config._attn_implementation == "eager"
    assert model.generate([], max_new_tokens=3) == model.read([], []) == []


def test_threads_that_share_a_model_take_turns(model):
    """The second thread comes while the first is in its pass, and goes on when that is over."""
    alone = [model.read([prompt], [(5, 6, 7)])[0].means for prompt in PROMPTS[:2]]
    together, second_came, first_over = {}, threading.Event(), threading.Event()

    def read(i):
        together[i] = model.read([PROMPTS[i]], [(5, 6, 7)])[0].means

    second = threading.Thread(target=read, args=(1,))

    def meet(*_):
        if threading.current_thread() is second:
            second_came.set()
            assert first_over.wait(20)
        else:
            second.start()
            second_came.wait(0.5)

    model.model.model.register_forward_pre_hook(meet)
    read(0)
    first_over.set()
    second.join()
    for i in (0, 1):
        np.testing.assert_array_equal(together[i], alone[i])
    assert model.model.config._attn_implementation == "sdpa"


def test_calls_of_another_thread_are_not_recorded(model):
    alone = model.read(PROMPTS[:1], [(5, 6, 7)])[0].means

    @torch.inference_mode()
    def use():
        model.model.model(torch.tensor([[1, 2, 3]]))

    def meet(*_):
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=use)
            other.start()
            other.join()

    model.model.model.register_forward_pre_hook(meet)
    np.testing.assert_array_equal(model.read(PROMPTS[:1], [(5, 6, 7)])[0].means, alone)


# --- what cannot be read --------------------------------------------------------------------------


def test_a_prompt_fits_up_to_the_last_token():
    length = sum(local("llama").read(PROMPTS[:1], [(1,)])[0].lengths)
    exact = local("llama", max_position_embeddings=int(length) + 3)
    [generated] = exact.generate(PROMPTS[:1], max_new_tokens=3)
    assert_as_expected(exact.model, PROMPTS[0], generated.tokens, generated.attention)
    with pytest.raises(ValueError, match=r"prompts\[0\]"):
        exact.generate(PROMPTS[:1], max_new_tokens=4)


def test_models_whose_ratios_would_be_wrong_are_refused():
    for model, message in (
        (tiny("mistral", sliding_window=64), "config.sliding_window is 64"),
        (hf.RobertaForCausalLM(hf.RobertaConfig(**SHAPE, is_decoder=True)), "positions"),
    ):
        with pytest.raises(ValueError, match=f"model 'refused' .*{message}"):
            LocalModel(model, bpe_tokenizer(), name="refused")
    with pytest.raises(ValueError, match="name is missing"):
        LocalModel(tiny("llama"), bpe_tokenizer())


def test_models_whose_attention_is_not_plain_and_causal_are_not_read():
    bert = hf.BertLMHeadModel(hf.BertConfig(**SHAPE, pad_token_id=0)).eval()
    shared, training = local("llama"), local("llama")
    shared.model.model.layers[2].self_attn.layer_idx = 1
    training.model.train()
    odd = {name: local("llama") for name in ("softcap", "s_aux", "position_bias")}
    for name, model in odd.items():
        model.model.model.layers[1].self_attn.register_forward_pre_hook(
            lambda _, args, given, name=name: (args, {**given, name: torch.ones(4)}),
            with_kwargs=True,
        )
    for message, model in {
        "BertSelfAttention": LocalModel(bert, bpe_tokenizer(), name="bert"),
        "2 of 3 layers": shared,
        "training mode": training,
        **odd,
    }.items():
        with pytest.raises(ValueError, match=message):
            model.read(PROMPTS[:1], [(5, 6)])


def test_a_prompt_needs_a_question_and_snippets():
    for question, snippets, message in (
        ("Why?", (), "snippets is empty"),
        ("Why?", ("a", " \n"), r"snippets\[1\]"),
        (" ", ("a",), "question"),
        ("Why?", "abc", "snippets is a single str"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            RagPrompt(question, snippets)


def test_control_tokens_in_texts_are_refused(model):
    for given, field in (
        (("Why?", ("a", "b</s>")), r"snippets\[1\]"),
        (("Why <s>?", ("a",)), "question"),
        (("Why?", ("a",), "</s>"), "preamble"),
    ):
        with pytest.raises(ValueError, match=rf"prompts\[0\]\.{field} has '</?s>'"):
            model.generate([RagPrompt(*given)], max_new_tokens=2)
    model.tokenizer.add_tokens([AddedToken("<|im_start|>", special=True)])
    with pytest.raises(ValueError, match=r"answers\[0\] has '<\|im_start\|>'"):
        model.read(PROMPTS[:1], ["six<|im_start|>"])


def test_snippets_without_a_token_and_templates_that_change_the_text_are_refused():
    tokenizer = word_tokenizer(["a"])
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^a-z]+"), "removed")
    model = LocalModel(tiny("llama"), tokenizer, name="letters")
    with pytest.raises(ValueError, match=r"prompts\[0\].snippets\[1\] is '—'"):
        model.read([RagPrompt("a", ("a", "—"), preamble="")], ["a"])
    tokenizer.chat_template = "{{ messages[0]['content'] | upper }}"
    with pytest.raises(ValueError, match="chat template"):
        model.read([RagPrompt("a", ("a", "a"), preamble="")], ["a"])


@pytest.mark.parametrize(
    ("answers", "message"),
    [([" six"], "1 answers for 2 prompts"), ([" six", ""], r"answers\[1\] has no token")],
)
def test_answers_that_do_not_fit_prompts_or_model_are_refused(answers, message):
    with pytest.raises(ValueError, match=message):
        local("llama").read(PROMPTS[:2], answers)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 2},
        {"num_return_sequences": 2, "do_sample": True},
        {"assistant_early_exit": 2},
        {"guidance_scale": 1.5},
        {"prefill_chunk_size": 8},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_read_several_tokens_or_sequences_per_call_are_refused(model, settings):
    """In `generation`, and in the model's own settings."""
    with pytest.raises(ValueError, match="generation"):
        model.generate(PROMPTS[:1], max_new_tokens=3, generation=hf.GenerationConfig(**settings))
    model.model.generation_config.update(**settings)
    with pytest.raises(ValueError, match="generation"):
        model.generate(PROMPTS[:1], max_new_tokens=3)


@pytest.mark.parametrize("generation", [None, hf.GenerationConfig(do_sample=True, temperature=2.0)])
def test_answers_are_recorded_when_sampled_and_whatever_the_models_own_cache(model, generation):
    """A static cache has room for keys that do not exist yet."""
    model.model.generation_config.cache_implementation = "static"
    torch.manual_seed(3)
    generated = model.generate(PROMPTS, max_new_tokens=6, generation=generation)
    for prompt, one in zip(PROMPTS, generated, strict=True):
        assert_as_expected(model.model, prompt, one.tokens, one.attention)
    with pytest.raises(ValueError, match="max_new_tokens"):
        model.generate(PROMPTS, max_new_tokens=0)


def test_the_digest_of_an_answer_is_the_same_in_another_batch(model):
    generated = model.generate(PROMPTS, max_new_tokens=4)
    alone = [model.read([p], [g.tokens])[0] for p, g in zip(PROMPTS, generated, strict=True)]
    digests = [lookback_ratios(one).digest for one in alone]
    assert digests == [lookback_ratios(one.attention).digest for one in generated]
    assert len(set(digests)) == 4
    [other] = model.read(PROMPTS[:1], [(*generated[0].tokens, 5)])
    assert lookback_ratios(other).digest not in digests


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["one", "four"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_on_cuda_the_ratios_are_those_of_the_cpu(architecture, prompts):
    model, there = local(architecture), local(architecture)
    there.model.to("cuda")
    generated = there.generate(prompts, max_new_tokens=7)
    answers = [one.tokens for one in generated]
    for prompt, one, read in zip(prompts, generated, there.read(prompts, answers), strict=True):
        assert_as_expected(model.model, prompt, one.tokens, one.attention, within=1e-4)
        assert_as_expected(model.model, prompt, one.tokens, read, within=1e-4)
