"""Call an operator again and again on the same arrays, without preparing its arguments each time."""

import ctypes
from collections.abc import Sequence
from typing import Any

from ..protocols import Array
from .compat import mx


class InPlaceCall:
    """Calls one of MXNet's operators on `inputs`, and lets it write into `outputs`, on their device.

    The functions of ``mx.nd`` look at every array in each call, which takes longer than to start the
    operator.
    """

    def __init__(self, operator: str, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._arrays = [*inputs, *outputs]  # kept alive, because their handles are used
        self._operator = ctypes.c_void_p()
        name = mx.base.c_str(operator)
        mx.base.check_call(mx.base._LIB.NNGetOpHandle(name, ctypes.byref(self._operator)))
        handles = ctypes.POINTER(mx.base.NDArrayHandle)
        self._inputs, self._n_inputs = mx.base.c_handle_array(inputs), ctypes.c_int(len(inputs))
        self._outputs = ctypes.cast(mx.base.c_handle_array(outputs), handles)
        self._n_outputs = ctypes.c_int(len(outputs))
        self._options: dict[str, Any] = {}
        self._names = self._values = (ctypes.c_char_p * 0)()

    def take(self, source: Any) -> None:
        """Replace the first input by another array."""
        self._arrays[0], self._inputs[0] = source, source.handle

    def __call__(self, **options: Any) -> None:
        """Call the operator; its options are numbers, or lists of numbers."""
        if options.keys() != self._options.keys():
            self._options = dict.fromkeys(options)
            self._names = mx.base.c_str_array(options)
            self._values = (ctypes.c_char_p * len(options))()
        for at, (name, value) in enumerate(options.items()):
            if value != self._options[name]:  # formatting a list takes long
                self._options[name], self._values[at] = value, str(value).encode()
        mx.base.check_call(
            mx.base._LIB.MXImperativeInvokeEx(
                self._operator,
                self._n_inputs,
                self._inputs,
                ctypes.byref(self._n_outputs),
                ctypes.byref(self._outputs),
                ctypes.c_int(len(options)),
                self._names,
                self._values,
                ctypes.byref(ctypes.POINTER(ctypes.c_int)()),
            )
        )
