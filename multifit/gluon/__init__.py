"""All that knows MXNet. Nothing outside this package imports it."""
