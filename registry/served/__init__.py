"""The model's own weights: a base, what engines were served, and the merge of a base with an adapter.

The only package that uses torch, and only inside the functions that calculate. Knows neither store nor index.
"""
