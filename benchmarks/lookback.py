"""Whether lookback ratios tell which answers follow their context, and what reading them costs.

A small Llama is trained on a look-up task, in some minutes of one thread: snippets state facts
about entities, and a question asks for one. Each entity also has a value that the model learns by
heart, and gives where no snippet states the fact. It then answers new prompts, in which the fact

    agrees      is stated, as learned by heart
    contradicts is stated otherwise than learned by heart
    is absent   is not stated: the answer is made up, however firmly it is given

An answer is consistent iff a snippet states it of the entity, which is known exactly here. Half of
the answers fit the classifier, a sixth calibrates the flag, and the others test. Template "plain"
fits and tests. Template "report", with other words and more and longer snippets, only tests.

    python -m benchmarks.lookback [--steps 2500] [--answers 4000] [--write]
    python -m benchmarks.lookback --cost [--context 4096]
    python -m benchmarks.lookback --cost --device cuda --context 8192

`--cost` times an untrained model and reads its peak memory, with one process for each method. On
the CPU it runs a small model in float32 and reads resident memory. On a GPU it runs a model of a
billion weights in bfloat16 and reads PyTorch's allocations. `generate` is compared with plain
generation, and `read` of 512 tokens with a forward pass over as many tokens without a cache.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.arguments import parser_of
from conformal_retrievers.lookback.classifier import FactualityClassifier
from conformal_retrievers.lookback.flag import calibrate_flag
from conformal_retrievers.lookback.model import LocalModel
from conformal_retrievers.lookback.prompt import RagPrompt
from conformal_retrievers.lookback.ratios import JudgedRatios, lookback_ratios

RESULTS = Path(__file__).parent / "results" / "lookback.md"
ENTITIES = [f"entity{i}" for i in range(40)]
SYMBOLS = [[f"{slot}{i}" for i in range(12)] for slot in "abc"]  # a value is one of each
WORDS = """Answer the question from these notes . The code of is What Question: Answer: Read this
report and reply It was written that when seen had colour late last night Which does have ?"""
MAX_SNIPPETS = 8


@dataclass(frozen=True)
class Template:
    preamble: str
    fact: str
    question: str
    n_snippets: tuple[int, ...]


TEMPLATES = {
    "plain": Template(
        "Answer the question from these notes .",
        "The code of {entity} {value} .",
        "Question: What is the code of {entity} ?",
        (2, 3, 4, 5),
    ),
    "report": Template(
        "Read this report and reply .",
        "It was written that {entity} {value} when seen late last night .",
        "Question: Which colour does {entity} have ?",
        (4, 5, 6, 7, 8),
    ),
}


@dataclass(frozen=True)
class Item:
    """A prompt, what a snippet states of the entity asked about, if any, and the right answer."""

    prompt: RagPrompt
    stated: str | None
    answer: str
    kind: str
    more: tuple[tuple[str, str], ...]  # questions about the other snippets, with their answers


class Task:
    def __init__(self, rng):
        self.rng = rng
        self.by_heart = {entity: self.value() for entity in ENTITIES}

    def value(self):
        return " ".join(self.rng.choice(symbols) for symbols in SYMBOLS)

    def item(self, template, kind):
        n = int(self.rng.choice(template.n_snippets))
        asked, *others = self.rng.choice(ENTITIES, n + 1, replace=False)
        stated = self.by_heart[asked] if kind == "agrees" else self.value()
        facts = [(entity, self.value()) for entity in others]
        if kind != "is absent":
            facts[int(self.rng.integers(n))] = (asked, stated)
        snippets = tuple(template.fact.format(entity=e, value=v) for e, v in facts)
        prompt = RagPrompt(template.question.format(entity=asked), snippets, template.preamble)
        more = tuple(
            (template.question.format(entity=e), f"{e} {v}") for e, v in facts if e != asked
        )
        if kind == "is absent":
            return Item(prompt, None, f"{asked} {self.by_heart[asked]}", kind, more)
        return Item(prompt, f"{asked} {stated}", f"{asked} {stated}", kind, more)

    def items(self, n, template, shares):
        kinds = self.rng.choice(list(shares), n, p=list(shares.values()))
        return [self.item(TEMPLATES[template], str(kind)) for kind in kinds]


def tokenizer():
    symbols = [symbol for slot in SYMBOLS for symbol in slot]
    words = dict.fromkeys(["<unk>", "<s>", "</s>", *WORDS.split(), *ENTITIES, *symbols])
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


# --- training -------------------------------------------------------------------------------------


def trained(task, words, steps):
    """A Llama of about 200,000 weights that has seen both templates."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            initializer_range=0.08,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
    )
    # First to look up, where there is nothing to be learned by heart; then to do both.
    to_look_up, both = {"contradicts": 1.0}, {"agrees": 0.1, "contradicts": 0.6, "is absent": 0.3}
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    started = time.perf_counter()
    for step in range(steps):
        shares = to_look_up if step < 0.7 * steps else both
        template = "report" if step > 0.3 * steps and step % 2 else "plain"
        batch = [encoded(item, words) for item in task.items(24, template, shares)]
        width = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in batch])
        labels = torch.tensor([said + [-100] * (width - len(said)) for _, said in batch])
        loss = model(ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        if step % 200 == 0 or step == steps - 1:
            minutes = (time.perf_counter() - started) / 60
            print(f"step {step}: loss {loss.item():.3f}, {minutes:.1f} min", flush=True)
    return model.eval()


def encoded(item, words):
    """Token ids, and the labels: those of the answers to the questions about every snippet."""
    prompt = item.prompt
    first = " ".join([prompt.preamble, *prompt.snippets, prompt.question])
    asked = [first, *(question for question, _ in item.more)]
    ids, labels = [], []
    for question, said in zip(asked, [item.answer, *(a for _, a in item.more)], strict=True):
        before = words(f"{question} Answer:")["input_ids"]
        answer = [*words(said)["input_ids"], words.eos_token_id]
        ids += before + answer
        labels += [-100] * len(before) + answer
    return ids, labels


# --- judging --------------------------------------------------------------------------------------


def answered(model, items, group):
    """Each answer's ratios, whether a snippet says the same of the entity, and the kind."""
    judged = []
    for start in range(0, len(items), 50):
        batch = items[start : start + 50]
        generated = model.generate([item.prompt for item in batch], max_new_tokens=6)
        for item, one in zip(batch, generated, strict=True):
            if one.tokens:
                consistent = item.stated is not None and one.text.split() == item.stated.split()
                answer = JudgedRatios(lookback_ratios(one.attention), consistent, group=group)
                judged.append((answer, item.kind))
    return judged


def quality(steps, n_answers, seed):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    task, words = Task(rng), tokenizer()
    network = trained(task, words, steps)
    model = LocalModel(network, words, name="look-up llama")
    shares = {"agrees": 0.2, "contradicts": 0.5, "is absent": 0.3}
    plain = answered(model, task.items(n_answers, "plain", shares), "plain")
    shifted = answered(model, task.items(n_answers // 2, "report", shares), "report")
    lines = ["| template | fact | answers | consistent, % |", "|---|---|---|---|"]
    for template, judged in (("plain", plain), ("report", shifted)):
        for kind in shares:
            said = [answer.consistent for answer, k in judged if k == kind]
            lines.append(f"| {template} | {kind} | {len(said)} | {100 * np.mean(said):.1f} |")
    fit, held = plain[: len(plain) // 2], plain[len(plain) // 2 :]
    calibration, test = held[: len(held) // 3], held[len(held) // 3 :]
    tests = {
        "plain": test,
        "plain, fact stated": [(a, k) for a, k in test if k != "is absent"],
        "report": shifted,
        "report, fact stated": [(a, k) for a, k in shifted if k != "is absent"],
    }
    lines += ["", "AUC, % [95 % interval], and how many answers are inconsistent:"]
    lines += ["", "| features | " + " | ".join(tests) + " |", "|---" * (len(tests) + 1) + "|"]
    for variant in ("snippets", "snippet-average", "full-context"):
        classifier = FactualityClassifier.fit(
            [answer for answer, _ in fit], variant=variant, n_snippets=MAX_SNIPPETS
        )
        cells = []
        for judged in tests.values():
            answers = [answer for answer, _ in judged]
            if len({answer.consistent for answer in answers}) < 2:
                cells.append("all alike")
                continue
            found = classifier.evaluate(answers)
            n_inconsistent = sum(not answer.consistent for answer in answers)
            area, low, high = (100 * value for value in found)
            cells.append(f"{area:.1f} [{low:.1f}, {high:.1f}], {n_inconsistent} of {len(answers)}")
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
        if variant == "snippets":
            flags = flagged(classifier, calibration, test, shifted)
    return "\n".join([*lines, "", *flags])


def flagged(classifier, calibration, test, shifted):
    flag = calibrate_flag([answer for answer, _ in calibration], classifier, alpha=0.1)
    lines = [
        "| template | inconsistent answers flagged, % | consistent answers flagged, % |",
        "|---|---|---|",
    ]
    for name, judged in (("plain", test), ("report", shifted)):
        said = [(flag(answer.ratios).flagged, answer.consistent) for answer, _ in judged]
        shares = [100 * np.mean([f for f, c in said if c is right]) for right in (False, True)]
        lines.append(f"| {name} | {shares[0]:.1f} | {shares[1]:.1f} |")
    return lines


# --- cost -----------------------------------------------------------------------------------------

GENERATING = ("plain eager", "load", "plain sdpa", "lookback", "output_attentions")
READING = ("plain forward", "read")
NEW_TOKENS, READ_TOKENS = 32, 512
SHAPES = {
    "cpu": {
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "cuda": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}


def cost(context, device):
    """Time and peak memory of each method, as ratios to the first of its table."""
    rounds = []
    for _ in range(3):  # in turn: the machine's mood is shared
        ways = (*GENERATING, *READING)
        rounds.append({way: measured_apart(way, context, device) for way in ways})
    generating, reading = (table_of(ways, rounds) for ways in (GENERATING, READING))
    length = rounds[0]["load"]["tokens"]
    generating += ["", f"{length} tokens and {NEW_TOKENS} new ones", ""]
    reading += ["", f"{length} tokens and an answer of {READ_TOKENS}"]
    return "\n".join(generating + reading)


def table_of(ways, rounds):
    first = ways[0]
    lines = [
        f"| | seconds | time / {first} | peak memory / {first} | peak, GB |",
        "|---|---|---|---|---|",
    ]
    for way in ways:
        seconds = [one[way]["seconds"] for one in rounds]
        times = [one[way]["seconds"] / one[first]["seconds"] for one in rounds]
        memory = [one[way]["peak"] / one[first]["peak"] for one in rounds]
        lines.append(
            f"| {way} | {np.median(seconds):.2f} | {np.median(times):.2f} | {np.median(memory):.2f}"
            f" | {rounds[0][way]['peak'] / 2**30:.2f} |"
        )
    return lines


def measured_apart(way, context, device):
    command = [sys.executable, "-m", "benchmarks.lookback", "--way", way]
    command += ["--context", str(context), "--device", device]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)


def measured(way, context, device):
    torch.manual_seed(0)
    words = tokenizer()
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            max_position_embeddings=context + max(NEW_TOKENS, READ_TOKENS),
            **SHAPES[device],
        )
    ).eval()
    if device == "cuda":
        network.to(device, torch.bfloat16)
    network.generation_config.eos_token_id = None
    network.generation_config.pad_token_id = 0
    model = LocalModel(network, words, name="cost")
    fact = "The code of entity1 a1 b1 c1 ."
    head = RagPrompt("What is the code of entity1 ?", (fact,), "Answer .")
    used = int(model.read([head], ["a1"])[0].lengths.sum())
    snippets = tuple(" ".join([fact] * ((context - used) // 8 // 10)) for _ in range(10))
    prompt = RagPrompt(head.question, snippets, head.preamble)
    text = "\n\n".join([prompt.preamble, *snippets, prompt.question]) + prompt.ending
    ids = torch.tensor([words(text)["input_ids"]], device=device)
    eager = way in ("plain eager", "output_attentions")
    network.set_attn_implementation("eager" if eager else "sdpa")
    answer = [len(words) - 1] * READ_TOKENS
    if device == "cuda":
        network.generate(ids[:, :64], max_new_tokens=2)  # loads the kernels
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    with torch.inference_mode():
        if way == "lookback":
            [one] = model.generate([prompt], max_new_tokens=NEW_TOKENS)
            lookback_ratios(one.attention)
        elif way == "read":
            lookback_ratios(model.read([prompt], [answer])[0])
        elif way == "plain forward":
            tail = torch.tensor([answer[:-1]]).to(ids)
            network.base_model(torch.cat([ids, tail], dim=1), use_cache=False)
        elif way != "load":
            network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                output_attentions=way == "output_attentions",
                return_dict_in_generate=way == "output_attentions",
            )
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    return {"seconds": seconds, "peak": peak, "tokens": ids.shape[1]}


def main() -> None:
    parser = parser_of("benchmarks.lookback", __doc__)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--answers", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--device", choices=SHAPES, default="cpu", help="of --cost")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--way", choices=GENERATING + READING, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.way:
        print(json.dumps(measured(arguments.way, arguments.context, arguments.device)))
    elif arguments.cost:
        print(cost(arguments.context, arguments.device))
    else:
        result = quality(arguments.steps, arguments.answers, arguments.seed)
        print(result)
        if arguments.write:
            RESULTS.write_text(result + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
