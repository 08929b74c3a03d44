"""Writes phoenix.jsonl: spans and document annotations, as Phoenix's client has and sends them.

The client is not installed for the tests. Run in an environment of its own:
`pip install arize-phoenix-client==3.5.0 pandas`, then
`python tests/data/readers/files/make_phoenix.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> None:
    import httpx
    import pandas as pd
    from openinference.semconv.trace import DocumentAttributes, SpanAttributes
    from phoenix.client import Client
    from phoenix.client.helpers.spans import dataframe_to_spans

    def document(id: str, content: str, score: float) -> dict:
        return {
            DocumentAttributes.DOCUMENT_ID: id,
            DocumentAttributes.DOCUMENT_CONTENT: content,
            DocumentAttributes.DOCUMENT_SCORE: score,
            DocumentAttributes.DOCUMENT_METADATA: {"source": "page", "start_index": 7},
        }

    found = [document("a", "Um 7.\n🥐", 0.75), document("b", "Nie.", 0.5)], [], None
    frame = pd.DataFrame(  # as get_spans_dataframe returns it
        {
            "name": ["retrieve", "retrieve", "chat"],
            "span_kind": ["RETRIEVER", "RETRIEVER", "LLM"],
            "parent_id": [None, None, None],
            "context.trace_id": ["t" * 32] * 3,
            "context.span_id": [c * 16 for c in "123"],
            f"attributes.{SpanAttributes.INPUT_VALUE}": ["Wann?", "Nothing?", "Hi"],
            f"attributes.{SpanAttributes.RETRIEVAL_DOCUMENTS}": found,
        }
    )
    sent: list[dict] = []

    def keep(request: httpx.Request) -> httpx.Response:
        sent.extend(json.loads(request.content)["data"])
        return httpx.Response(200, json={"data": []})

    http = httpx.Client(transport=httpx.MockTransport(keep), base_url="http://phoenix")
    annotations = pd.DataFrame(
        {
            "span_id": ["1" * 16] * 3,
            "document_position": [0, 1, 1],
            "label": ["relevant", "relevant", "unrelated"],
            "score": [1.0, 1.0, 0.0],
            "annotator_kind": ["LLM", "LLM", "HUMAN"],
        }
    )
    Client(http_client=http).spans.log_document_annotations_dataframe(
        dataframe=annotations, annotation_name="relevance"
    )
    lines = [json.dumps(one, ensure_ascii=False) for one in (*dataframe_to_spans(frame), *sent)]
    (FOLDER / "phoenix.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
