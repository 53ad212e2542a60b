"""Records what a net that no symbol runs through computes."""

import ctypes
import random
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import SpecError
from ...protocols import Array, Shape
from ..compat import mx


def hollow(shape: Shape, dtype: Any) -> Array:
    """Return an array for which MXNet allocates no memory unless an operator writes to it."""
    return mx.nd.NDArray(mx.nd.ndarray._new_alloc_handle(shape, mx.cpu(), True, dtype))


def hollow_results(operator: Callable[..., Any], arrays: Sequence[Array]) -> list[Array] | None:
    """Return arrays like the results of an operator, which takes and returns symbols.

    Returns None if their shapes or dtypes depend on numbers. Raises MXNetError if the operator cannot take
    such arrays.
    """
    inputs = [mx.sym.var(f"x{i}", shape=each.shape, dtype=each.dtype) for i, each in enumerate(arrays)]
    result = operator(inputs)
    shapes, dtypes = result.infer_shape_partial()[1], result.infer_type_partial()[1]
    if not (all(dtypes) and all(shape and min(shape) > 0 for shape in shapes)):
        return None
    return [hollow(shape, dtype) for shape, dtype in zip(shapes, dtypes)]


STOCK = ("mxnet.", "gluoncv.", "gluonnlp.", "multifit.")  # toolkits' blocks
PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
SEVERAL = (list, tuple, set, frozenset)


def obstacle_of(net: Any) -> tuple[str, str] | None:
    """Return why a net's forward pass must not be recorded, and the way out; None if it may be recorded.

    A recording freezes what the net's Python code does, as hybridizing does: the user must ask for that.
    """
    hybrid = [block for block in shell_of(net).values() if isinstance(block, mx.gluon.HybridBlock)]
    if not hybrid or not all(block._active for block in hybrid):
        return "the net is not hybridized", "call net.hybridize()"
    if any(block._forward_hooks or block._forward_pre_hooks for block in blocks_of(net).values()):
        return "the net, or a block in it, has hooks", "detach them"
    return None


def form_of(net: Any, inputs: Sequence[Any]) -> Hashable:
    """Return what batches must have in common to share a recording.

    These are shapes and dtypes, and the plain attributes of the blocks whose Python code Gluon runs in each
    call, such as numbers that a handler may change.
    """
    types = [array if array is None else (array.shape, array.dtype) for array in inputs]
    return tuple(types), tuple(plain_attributes(shell_of(net)).items())


def blocks_of(net: Any, name: str = "") -> dict[str, Any]:
    """Return a net and all blocks in it by their names, such as ``encoder.0``; the name of the net is ""."""
    blocks = {name: net}
    for child, block in net._children.items():
        blocks.update(blocks_of(block, f"{name}.{child}".lstrip(".")))
    return blocks


def shell_of(net: Any, name: str = "") -> dict[str, Any]:
    """Return, by name, the blocks whose Python code Gluon runs in each call, and their direct children."""
    blocks = {name: net}
    if not isinstance(net, mx.gluon.HybridBlock) or type(net).forward is not mx.gluon.HybridBlock.forward:
        for child, block in net._children.items():
            blocks.update(shell_of(block, f"{name}.{child}".lstrip(".")))
    return blocks


def plain_attributes(blocks: Mapping[str, Any]) -> dict[str, str]:
    """Return the attributes of blocks that are numbers, strings, or collections of these, by their names.

    Toolkits' blocks are left out: some count their calls to make names.
    """
    return {
        f"{name}.{attribute}".lstrip("."): repr(value)
        for name, block in blocks.items()
        if not type(block).__module__.startswith(STOCK)
        for attribute, value in vars(block).items()
        if attribute != "_active" and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return all(map(_is_plain, value)) if isinstance(value, SEVERAL) else isinstance(value, PLAIN)


WAY_OUT = 'or use engine="mxnet"'
READS = "reads numbers out of an array, as asnumpy(), asscalar() and if do", "compute with operators of mx.nd"
MODE = "changes autograd's mode", "leave record(), pause() and train_mode() out, and use detach()"
GRADIENTS = "computes gradients, or attaches them", "let a loss do that"
APART = (
    "calls a graph of its own: a SymbolBlock or one that is not a child",
    "make it a child HybridBlock",
)
DRAWS = "draws random numbers with Python or NumPy", "draw them with mx.nd.random"
VARIES = "calls {}, whose result has another shape for other numbers"
FIXED = "use operators whose results keep their shape, such as mx.nd.where"
IN_PLACE = "writes into an array that it has used", "compute a new one with operators of mx.nd"
UNKNOWN = "uses an array, of shape {}, that comes neither from its inputs nor from operators in this call"
AS_PARAMETER = "make it a parameter, as with params.get_constant()"

# Modules, and the generators behind their random functions, which all code shares.
GENERATORS = ((random, random._inst), (np.random, np.random.mtrand._rand))
# Functions of MXNet's library that leave the graph, and what to say when a net calls them.
DOORS = {
    "MXNDArraySyncCopyToCPU": READS,
    "MXNDArrayToDLPack": READS,
    "MXNDArraySaveRawBytes": READS,
    "MXAutogradSetIsRecording": MODE,
    "MXAutogradSetIsTraining": MODE,
    "MXAutogradMarkVariables": GRADIENTS,
    "MXAutogradBackwardEx": GRADIENTS,
    "MXInvokeCachedOpEx": APART,
}


class Recorder:
    """Makes a symbol's node for each operator that this thread calls with arrays, while :meth:`active`.

    Operators do not run, for which a large batch would take long on a CPU: nothing may read numbers, so their
    results need only the right shapes and dtypes.

    `known` are the arrays that the net may use, inputs and parameters, with their symbols. Results of
    operators on known arrays, or on none, and arrays copied from Python's numbers become known too. The
    recorder refuses any other array, because it could depend on the inputs in a way that no symbol shows. It
    also refuses the functions in DOORS and those that draw from GENERATORS.

    `blocks` are the net's blocks by their names, for messages. `constants` are the arrays that were copied
    from Python, by the names of their variables.
    """

    def __init__(self, known: Iterable[tuple[Any, Any]], blocks: dict[str, Any]) -> None:
        # holds the arrays, so that no other array gets the same id
        self._known = {id(array): (array, symbol) for array, symbol in known}
        self._names = {id(block): name for name, block in blocks.items()}
        self._thread, self._nodes = threading.get_ident(), 0
        self._maker = sys._getframe(1).f_code  # which is outside of the net
        self._refusal: SpecError | None = None
        self.constants: dict[str, np.ndarray] = {}

    def symbol(self, array: Any) -> Any:
        """Return the symbol of an array; raises SpecError if it is not known."""
        if id(array) not in self._known:
            self._refuse(UNKNOWN.format(array.shape), AS_PARAMETER)
        return self._known[id(array)][1]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Record in the block; raises SpecError for what cannot be recorded, even if the net catches it."""
        array, library = mx.nd.NDArray, mx.base._LIB
        with ExitStack() as stack:
            replace = partial(self._replace, stack)
            replace(mx.nd.register, "_imperative_invoke", self._invoke)
            self._copy = replace(array, "_sync_copyfrom", self._take_numbers)
            # views, which share memory, become operators
            replace(array, "reshape", _reshape)
            replace(array, "_at", lambda x, i: x._slice(i, i + 1 or None).reshape(x.shape[1:] or (1,)))
            replace(array, "_slice", lambda x, start, stop: mx.nd.slice_axis(x, 0, start or 0, stop))
            replace(array, "_basic_indexing_slice_is_contiguous", lambda *of: False, staticmethod)
            replace(array, "detach", mx.nd.BlockGrad)
            for door, why in DOORS.items():
                replace(library, door, lambda *of, why=why: self._refuse(*why))
            for module, generator in GENERATORS:
                for name, function in list(vars(module).items()):
                    if getattr(function, "__self__", None) is generator:
                        replace(module, name, lambda *of, **options: self._refuse(*DRAWS))
            try:
                yield
            except Exception:  # the net may raise another one in place of the refusal
                if self._refusal is None:
                    raise
        if self._refusal is not None:
            raise self._refusal

    def _replace(
        self, stack: ExitStack, where: Any, name: str, new: Callable[..., Any], kind: Any = lambda each: each
    ) -> Callable[..., Any]:
        """Replace a function, for this thread, until the stack is closed; return the original function."""
        old, thread = getattr(where, name), self._thread

        def call(*args: Any, **options: Any) -> Any:
            return (new if threading.get_ident() == thread else old)(*args, **options)

        setattr(where, name, kind(call))
        stack.callback(setattr, where, name, kind(old))
        return old

    def _invoke(
        self, handle: int, arrays: Sequence[Any], keys: list[str], values: list[Any], out: Any,
        is_np: bool, is_list: bool,
    ) -> Any:  # fmt: skip
        """Make the node of an operator, and return its results.

        A single result is returned as an array, unless `is_list`.
        """
        inputs = [self.symbol(array) for array in arrays]
        self._check_new(out if isinstance(out, (list, tuple)) else [out])
        name, number_of_inputs = _operator(handle)
        self._nodes += 1
        node = f"recorded{self._nodes}"
        if name == "_copyto":  # the result has the dtype of the array that is written
            made = mx.sym.cast(*inputs, dtype=np.dtype(out.dtype).name, name=node)
        else:
            attributes = dict(zip(keys, values))
            if number_of_inputs:
                attributes.setdefault(number_of_inputs, len(inputs))
            pairs = list(attributes), list(attributes.values())

            def operator(symbols: list[Any]) -> Any:
                return mx.sym._internal._symbol_creator(handle, symbols, {}, *pairs, node, is_np, is_list)

            made = operator(inputs)
            if out is None:
                out = hollow_results(operator, arrays) or self._refuse(VARIES.format(name), FIXED)
                out = out if len(out) > 1 or is_list else out[0]
        made._set_attr(__place__=self._place())  # for an engine that has no such operator
        results = out if isinstance(out, (list, tuple)) else [out]
        self._known.update((id(each), (each, made[i])) for i, each in enumerate(results))
        return out

    def _take_numbers(self, array: Any, numbers: Any) -> None:
        """Copy Python's numbers to a new array; it is a constant, as numbers cannot be read from inputs."""
        self._check_new([array])
        self._copy(array, numbers)
        name = f"#constant{len(self.constants)}"
        self.constants[name] = np.array(numbers, dtype=array.dtype)
        self._known[id(array)] = array, mx.sym.var(name)

    def _check_new(self, arrays: Iterable[Any]) -> None:
        if any(id(array) in self._known for array in arrays):
            self._refuse(*IN_PLACE)

    def _refuse(self, what: str, way_out: str) -> Any:
        place = self._place()
        self._refusal = refusal(f"{place}, {what}" if place else f"it {what}", way_out)
        raise self._refusal

    def _place(self) -> str:
        """Return the innermost block of the net that is being called, with the line; "" if none is."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code is not self._maker:
            arguments = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            block = frame.f_locals.get(next(iter(arguments), ""))  # whatever a method calls itself
            if id(block) in self._names:
                where = f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
                name = f'"{self._names[id(block)]}", a ' if self._names[id(block)] else ""
                return f"{name}{type(block).__name__} ({where})"
            frame = frame.f_back  # type: ignore[assignment]
        return ""


def refusal(why: str, way_out: str) -> SpecError:
    """Return the error of a net that cannot be recorded."""
    return SpecError(f"the net cannot be recorded as a graph: {why}; {way_out}, {WAY_OUT}")


def _reshape(array: Any, *shape: Any, **options: Any) -> Any:
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (list, tuple)) else shape
    return mx.nd.Reshape(array, **{"shape": tuple(sizes), **options} if sizes else options)


@cache
def _operator(handle: int) -> tuple[str, str]:
    """Return an operator's name, and its attribute for the number of its inputs; "" if it has none."""
    name, text, number = (ctypes.c_char_p() for _ in range(3))
    count, lists = ctypes.c_uint(), [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
    results = [ctypes.byref(each) for each in (name, text, count, *lists, number, ctypes.c_char_p())]
    mx.base.check_call(mx.base._LIB.MXSymbolGetAtomicSymbolInfo(ctypes.c_void_p(handle), *results))
    return (name.value or b"").decode(), (number.value or b"").decode()


AGAIN = "leave out what changes from call to call, or compute it with operators of mx.nd"


class Recording(NamedTuple):
    """The symbols of a net's outputs, and the values of its variables that are no inputs or parameters."""

    outputs: dict[str, Any]
    constants: dict[str, np.ndarray]


def record(
    net: Any, call: Callable[..., Mapping[str, Any]], symbols: Sequence[Any], arrays: Sequence[Any]
) -> Recording:
    """Record `call`, a function that calls the net and returns its outputs.

    `arrays` are its arguments, and `symbols` stand for them; an argument that is None has no symbol. The net
    is called twice, with arrays of the same shapes and dtypes, and must call the same operators both times.
    Raises SpecError if it does not, and for anything that :class:`Recorder` refuses.
    """
    blocks = blocks_of(net)
    attributes = plain_attributes(blocks)
    stand_ins = [each if each is None else hollow(each.shape, each.dtype) for each in arrays]
    with run_by_python(blocks.values()):
        first = _record_once(blocks, call, symbols, stand_ins)
        changed = plain_attributes(blocks).items() ^ attributes.items()
        if changed:
            names = ", ".join(sorted({name for name, _ in changed}))
            raise refusal(f"its forward pass changes {names}", "let a handler do that")
        if not _equal(first, _record_once(blocks, call, symbols, stand_ins)):
            raise refusal("it did something else when it was called again", AGAIN)
    return first


def _record_once(
    blocks: dict[str, Any],
    call: Callable[..., Mapping[str, Any]],
    symbols: Sequence[Any],
    arrays: Sequence[Any],
) -> Recording:
    parameters = [p for p in blocks[""].collect_params().values() if p._data is not None]
    known = [(p._data[0], copy(p.var())) for p in parameters]  # copied: a variable counts what updates it
    known += [pair for pair in zip(arrays, symbols) if pair[0] is not None]
    recorder = Recorder(known, blocks)
    with recorder.active():
        outputs = call(*arrays)
        recorded = {name: recorder.symbol(array) for name, array in outputs.items()}
    return Recording(recorded, recorder.constants)


@contextmanager
def run_by_python(blocks: Iterable[Any]) -> Iterator[None]:
    """Run hybridized blocks as if they were not hybridized, and keep their graphs."""
    active = [block for block in blocks if getattr(block, "_active", False)]
    for block in active:
        block._active = False
    try:
        yield
    finally:
        for block in active:
            block._active = True


def _equal(one: Recording, other: Recording) -> bool:
    graphs = [mx.sym.Group(list(each.outputs.values())).tojson() for each in (one, other)]
    pairs = zip(one.constants.values(), other.constants.values())
    return graphs[0] == graphs[1] and all(np.array_equal(*pair) for pair in pairs)
