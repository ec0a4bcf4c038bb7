"""A small but real LoRA policy-gradient trainer. It writes aorlta run directories and knows nothing of `registry`."""
