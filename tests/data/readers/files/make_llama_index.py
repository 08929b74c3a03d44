"""Writes embedding-qa.json and labelled-rag.json with the LlamaIndex that had their classes.

Releases from 0.14.21 on no longer have them. Run in an environment of its own:
`pip install llama-index-core==0.14.20`, then
`python tests/data/readers/files/make_llama_index.py`.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> None:
    from llama_index.core.llama_dataset import (
        CreatedBy,
        CreatedByType,
        LabelledRagDataExample,
        LabelledRagDataset,
    )
    from llama_index.core.llama_dataset.legacy.embedding import generate_qa_embedding_pairs
    from llama_index.core.llms import CompletionResponse, MockLLM
    from llama_index.core.schema import TextNode

    class Asks(MockLLM):
        def complete(self, prompt: str, **_: object) -> CompletionResponse:
            about = "Café" if "Café" in prompt else "Everest"
            return CompletionResponse(text=f"1. What is {about}?\n2) Where is {about}?")

    nodes = [
        TextNode(id_="node-1", text="Das Café öffnet um 7.\n🥐"),
        TextNode(id_="node-2", text="Everest is the highest mountain."),
    ]
    dataset = generate_qa_embedding_pairs(nodes, llm=Asks(), num_questions_per_chunk=2)
    renamed = {old: f"q{i}" for i, old in enumerate(dataset.queries)}  # they are random
    dataset.queries = {renamed[id]: text for id, text in dataset.queries.items()}
    dataset.relevant_docs = {renamed[id]: docs for id, docs in dataset.relevant_docs.items()}
    dataset.relevant_docs["q3"] = ["node-2", "node-1"]
    dataset.save_json(str(FOLDER / "embedding-qa.json"))

    ai, human = CreatedBy(type=CreatedByType.AI, model_name="m"), CreatedBy(type="human")
    LabelledRagDataset(
        examples=[
            LabelledRagDataExample(
                query="What is the Café?",
                query_by=ai,
                reference_contexts=["Das Café öffnet um 7.\n🥐", "It sells croissants."],
                reference_answer="A place for croissants.",
                reference_answer_by=ai,
            ),
            LabelledRagDataExample(
                query="Where is Everest?",
                query_by=human,
                reference_contexts=["Everest is in Nepal."],
                reference_answer="In Nepal.",
                reference_answer_by=human,
            ),
        ]
    ).save_json(str(FOLDER / "labelled-rag.json"))


if __name__ == "__main__":
    main()
