"""Looking inside a trained model: what it attends to, what it looks for, what speaks for a class.

The modules compute, and know nothing of pictures; `drawing` and `page` draw, and know nothing of
models.
"""
