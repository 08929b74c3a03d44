"""Writes ragas.jsonl, ragas.csv, ragas-testset.jsonl and ragas-hf.jsonl with RAGAS itself.

RAGAS is not installed for the tests: release 0.4.3 needs a LangChain Community below 0.4, and
brings hundreds of megabytes. Run in an environment of its own:
`pip install ragas==0.4.3 "langchain-community<0.4"`, then
`python tests/data/readers/files/make_ragas.py`.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> None:
    from ragas import EvaluationDataset, SingleTurnSample
    from ragas.testset.synthesizers.testset_schema import Testset, TestsetSample

    def sample(query: str, retrieved: list[str], ids: list[str | int], relevant: dict, **more):
        return SingleTurnSample(
            user_input=query,
            retrieved_contexts=retrieved,
            retrieved_context_ids=ids,
            reference_contexts=[*relevant.values()],
            reference_context_ids=[*relevant],
            reference="An answer, which no reader needs.",
            **more,
        )

    samples = EvaluationDataset(
        [
            sample(
                'Wann öffnet das "Café"?',
                ["It's open at 7.\nCroissants 🥐", 'He said: "closed", or \\n', ""],
                ["a", "b", 3],
                {"b": 'He said: "closed", or \\n', "z": "Not, retrieved"},
            ),
            sample("Who?", ["Ann did.", "[1] It's Bob"], ["c", 4], {4: "[1] It's Bob"}),
            sample("Nothing found?", [], [], {"q": "It was missed."}),
        ]
    )
    samples.to_jsonl(FOLDER / "ragas.jsonl")
    samples.to_csv(FOLDER / "ragas.csv")
    for one in samples:  # Arrow takes no list of texts and numbers
        one.retrieved_context_ids = [str(id) for id in one.retrieved_context_ids]
        one.reference_context_ids = [str(id) for id in one.reference_context_ids]
    samples.to_hf_dataset().to_json(FOLDER / "ragas-hf.jsonl")
    Testset(
        [
            TestsetSample(
                eval_sample=SingleTurnSample(
                    user_input="How do both differ?",
                    reference_contexts=["<1-hop>\n\nOne is tall.", "<2-hop>\n\nOne is old."],
                    reference="One is tall, the other is old.",
                ),
                synthesizer_name="multi_hop_specific_query_synthesizer",
            ),
            TestsetSample(
                eval_sample=SingleTurnSample(
                    user_input="Why?", reference_contexts=["Because."], reference="Because."
                ),
                synthesizer_name="single_hop_specific_query_synthesizer",
            ),
        ]
    ).to_jsonl(FOLDER / "ragas-testset.jsonl")


if __name__ == "__main__":
    main()
