"""Everything that uses MXNet. No other package imports mxnet."""
