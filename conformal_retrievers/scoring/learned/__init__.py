"""The default scores: one regression on what the hits, words and places of snippets say.

    log-odds of relevance = Σ_j coefficient_j · feature_j

`features.py` has the features, `prior.py` what other collections say of their coefficients, and
`regression.py` what judged queries change in it. Their fit is `LearnedScorer.fit`, in `score.py`.
`LearnedQueryScorer`, in `queries.py`, is the same for whole queries.
"""
