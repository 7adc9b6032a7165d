"""How good a model is: one evaluator for training and for `evaluate`, and what it reports.

`scores` are of classification, with their calibration, and `confusion`; `probes` are of features.
`evaluator` runs a model over batches; `model` asks everything of one model and one data set.
"""
