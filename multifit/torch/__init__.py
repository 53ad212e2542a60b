"""The engine on PyTorch, which trains any nn.Module. Only this package imports torch, when first used."""
