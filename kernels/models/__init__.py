"""Whole Hugging Face models whose decoded logits equal those of a full forward, bit for bit.

`kernelbraid.kernels.unify` is the door; the modules here need torch and transformers, this one does not.
"""
