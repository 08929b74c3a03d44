"""Models: the real classes with a small model of random weights, plain functions, and attacks."""

import json
import math

import numpy as np
import pytest

from conformal_retrievers import CrossEncoderScorer
from conformal_retrievers.cli.scorers import embedding_scorer

QUESTION = "what is the highest mountain"


@pytest.mark.slow
def test_the_score_is_minus_the_logit_of_the_real_class(tmp_path, toy_corpus):
    import torch
    from sentence_transformers import CrossEncoder
    from tiny_models import saved_cross_encoder  # which imports torch

    folder, texts = saved_cross_encoder(tmp_path / "bert", labels=1), list(toy_corpus.values())
    model = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    raw = CrossEncoder(str(folder), device="cpu", activation_fn=torch.nn.Identity())
    scores = CrossEncoderScorer(raw.predict, name="tiny").score(QUESTION, texts)
    assert np.ptp(scores) > 0.1
    # By itself, the model applies its own activation.
    predicted = model.predict([(QUESTION, text) for text in texts])
    np.testing.assert_allclose(predicted, 1 / (1 + np.exp(scores)), rtol=0, atol=1e-5)

    two = CrossEncoder(str(saved_cross_encoder(tmp_path / "two", labels=2)), device="cpu")
    with pytest.raises(ValueError, match=r"'two labels'.*\(9, 2\)"):
        CrossEncoderScorer(two.predict, name="two labels").score(QUESTION, texts)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["modules.json", "config.json"])
def test_the_code_in_a_models_folder_is_not_run(tmp_path, file):
    from tiny_models import saved_cross_encoder

    folder, ran = saved_cross_encoder(tmp_path / "model", labels=1), tmp_path / "ran"
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(ran)!r})\nclass Evil: pass\n")
    if file == "modules.json":
        content = [{"idx": 0, "name": "0", "path": "", "type": "evil.Evil"}]
    else:
        loaded = dict.fromkeys(("AutoConfig", "AutoModel", "AutoTokenizer"), "evil.Evil")
        content = {"model_type": "evil", "auto_map": loaded}
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(ValueError, match="model"):
        embedding_scorer(str(folder), "cosine(evil)")
    assert not ran.exists()


def test_a_blank_snippet_is_not_read_and_it_and_a_logit_that_is_not_finite_are_unscorable():
    logits = {"a": 1.0, "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "b": 3.0}
    asked = []

    def predict(pairs):
        asked.append(pairs)
        return np.array([logits[text] for _, text in pairs], dtype=np.float32)

    scorer, nan = CrossEncoderScorer(predict, "table"), math.nan
    scores = scorer.score("q", ["", *logits, " \n"])
    np.testing.assert_array_equal(scores, [nan, -1.0, nan, nan, nan, -3.0, nan])
    assert np.isnan(scorer.score("q", [" "])).all()
    assert scorer.score("q", []).tolist() == []
    assert asked == [[("q", text) for text in logits]]
    with pytest.raises(ValueError, match="'two', a model with one output: the shape"):
        CrossEncoderScorer(lambda pairs: [[0, 1]] * len(pairs), "two").score("q", ["a"])
