"""The updates of MXNet's optimizers: each is a rule that updates a list of tensors at once.

A rule updates parameters and states in place, without autograd. Its options are an MXNet optimizer, read in
each update; rates and decays come with the group. MXNet rounds options to float32; that is done here only
where it changes more than the last digits: 1 - 0.999 differs by 5e-5 of itself.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch

from .operators.elementwise import as_float32

Column = tuple[torch.Tensor, ...] | list[torch.Tensor]
"""A tensor for each parameter, in the order of the group."""


@dataclass
class Group:
    """The parameters of a trainer that are updated together, all on one device and of one dtype.

    Attributes
    ----------
    weights, gradients : list of torch.Tensor
        The values, which are updated in place, and their gradients, which are only read.
    states : list of tuple of torch.Tensor
        The optimizer's states of each parameter.
    rates, decays : list of float
        The learning rate and the weight decay of each parameter, with its own multipliers.
    counts : list of int
        The number of updates of each parameter, including this one.
    """

    weights: list[torch.Tensor]
    gradients: Column
    states: list[tuple[torch.Tensor, ...]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    decays: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def columns(self) -> list[Column]:
        """Return the first state of all parameters, the second of all, and so on."""
        return list(zip(*self.states))


class Rule(NamedTuple):
    """How parameters are updated, and how many states, which begin as zeros, each has for some options."""

    update: Callable[[Any, Group], None]
    states: Callable[[Any], int]


def prepared(options: Any, group: Group, decay: Literal["", "before", "after"] = "") -> Column:
    """Return rescaled and clipped gradients, to which weight decay is added before or after clipping."""
    gradients, bound = group.gradients, options.clip_gradient or 0
    if options.rescale_grad != 1:
        gradients = torch._foreach_mul(gradients, options.rescale_grad)
    if decay == "before":
        gradients = decayed(gradients, group)
    if bound > 0:
        gradients = torch._foreach_clamp_min(torch._foreach_clamp_max(gradients, bound), -bound)
    return decayed(gradients, group) if decay == "after" else gradients


def decayed(gradients: Column, group: Group) -> Column:
    """Return gradients plus each weight times its weight decay; the same tensors if there is none."""
    if not any(group.decays):
        return gradients
    return torch._foreach_add(gradients, torch._foreach_mul(group.weights, group.decays))


def subtract_scaled(tensors: Column, others: Column, factors: Sequence[float]) -> None:
    """Subtract others from tensors in place, each times its factor."""
    if len(set(factors)) == 1:
        torch._foreach_add_(tensors, others, alpha=-factors[0])
    else:
        torch._foreach_sub_(tensors, torch._foreach_mul(others, list(factors)))


def shrink(group: Group) -> None:
    """Subtract from weights, in place, their shares of rate times weight decay: the decay is decoupled."""
    if any(group.decays):
        torch._foreach_mul_(group.weights, [1 - r * d for r, d in zip(group.rates, group.decays)])


def average(means: Column, values: Column, share: float) -> None:
    """Update running means in place: `share` times the old means plus the rest times new values."""
    share = as_float32(share)
    torch._foreach_mul_(means, share)
    torch._foreach_add_(means, values, alpha=as_float32(1 - share))


def average_squares(means: Column, values: Column, share: float) -> None:
    """Update running means of squares in place."""
    share = as_float32(share)
    torch._foreach_mul_(means, share)
    torch._foreach_addcmul_(means, values, values, as_float32(1 - share))


def moments(options: Any, group: Group, gradients: Column) -> tuple[Column, Column]:
    """Update Adam's states, the running means of gradients and of their squares; return both."""
    means, squares = group.columns()
    average(means, gradients, options.beta1)
    average_squares(squares, gradients, options.beta2)
    return means, squares


def roots(squares: Column, epsilon: float | list[float]) -> Column:
    """Return sqrt(tensor) + epsilon for each tensor; epsilon may be one for each."""
    below = torch._foreach_sqrt(squares)
    torch._foreach_add_(below, epsilon)
    return below


def roots_of_sums(squares: Column, epsilon: float) -> Column:
    """Return sqrt(tensor + epsilon) for each tensor."""
    return torch._foreach_sqrt(torch._foreach_add(squares, epsilon))


def sgd(options: Any, group: Group) -> None:
    """SGD, as ``mx.optimizer.SGD``; the rate is a part of the velocity, other than in ``torch.optim.SGD``."""
    gradients = prepared(options, group, "after")
    if options.momentum <= 0:
        subtract_scaled(group.weights, gradients, group.rates)
        return
    (velocities,) = group.columns()
    torch._foreach_mul_(velocities, options.momentum)
    subtract_scaled(velocities, gradients, group.rates)
    torch._foreach_add_(group.weights, velocities)


def nag(options: Any, group: Group) -> None:
    """Nesterov's accelerated gradient, as ``mx.optimizer.NAG``: also applies the next update's momentum.

    As in MXNet, the stored velocity contains the weight decay of the weight after the update.
    """
    gradients, weights, momentum = prepared(options, group), group.weights, options.momentum
    steps = decayed(gradients, group)
    if momentum <= 0:
        subtract_scaled(weights, steps, group.rates)
        return
    (velocities,) = group.columns()
    torch._foreach_mul_(velocities, momentum)
    torch._foreach_add_(weights, velocities, alpha=momentum)
    subtract_scaled(weights, steps, [(1 + momentum) * rate for rate in group.rates])
    subtract_scaled(velocities, decayed(gradients, group), group.rates)


def adam(options: Any, group: Group) -> None:
    """Adam, as ``mx.optimizer.Adam``: epsilon is added to the root of the biased second moment.

    Kingma and Ba 2015, https://arxiv.org/abs/1412.6980; ``torch.optim.Adam`` differs in epsilon.
    """
    means, squares = moments(options, group, prepared(options, group, "before"))
    factors = [
        -rate * math.sqrt(1 - options.beta2**t) / (1 - options.beta1**t)
        for rate, t in zip(group.rates, group.counts)
    ]
    torch._foreach_addcdiv_(group.weights, means, roots(squares, options.epsilon), factors)


def adamw(options: Any, group: Group) -> None:
    """AdamW, as multifit's: Adam with decoupled weight decay, https://arxiv.org/abs/1711.05101."""
    means, squares = moments(options, group, prepared(options, group))
    shrink(group)
    steps, epsilons = zip(*map(options.numbers, group.rates, group.counts))
    torch._foreach_addcdiv_(group.weights, means, roots(squares, list(epsilons)), [-each for each in steps])


def radam(options: Any, group: Group) -> None:
    """RAdam, as multifit's: Adam with a rectified rate, https://arxiv.org/abs/1908.03265."""
    means, squares = moments(options, group, prepared(options, group, "before"))
    of_means, of_steps = zip(*map(options.factors, group.rates, group.counts))
    torch._foreach_addcdiv_(
        group.weights, means, roots(squares, options.epsilon), [-each for each in of_steps]
    )
    if any(of_means):
        subtract_scaled(group.weights, means, of_means)


def lion(options: Any, group: Group) -> None:
    """Lion, as multifit's, whose state is minus the mean: the sign of a mean, https://arxiv.org/abs/2302.06675."""
    gradients, (means,) = torch._foreach_neg(prepared(options, group)), group.columns()
    directions = torch._foreach_mul(means, options.beta1)
    torch._foreach_add_(directions, gradients, alpha=1 - options.beta1)
    shrink(group)
    subtract_scaled(group.weights, torch._foreach_sign(directions), [-each for each in group.rates])
    average(means, gradients, options.beta2)


def bertadam(options: Any, group: Group) -> None:
    """BERTAdam, as gluonnlp's: Adam with decoupled weight decay and without bias correction."""
    means, squares = moments(options, group, prepared(options, group))
    steps = torch._foreach_div(means, roots(squares, options.epsilon))
    subtract_scaled(group.weights, decayed(steps, group), group.rates)


def lamb(options: Any, group: Group) -> None:
    """LAMB, as ``mx.optimizer.LAMB``: rates are times the norms of weights over those of their steps.

    You et al. 2020, https://arxiv.org/abs/1904.00962. The ratio is 1 if one of the norms is 0.
    """
    means, squares = moments(options, group, prepared(options, group))
    if options.bias_correction:
        means = torch._foreach_div(means, [1 - as_float32(options.beta1) ** t for t in group.counts])
        squares = torch._foreach_div(squares, [1 - as_float32(options.beta2) ** t for t in group.counts])
    steps = decayed(torch._foreach_div(means, roots(squares, options.epsilon)), group)
    above, below = (torch.stack(torch._foreach_norm(each)) for each in (group.weights, steps))
    if options.lower_bound:
        above.clamp_min_(options.lower_bound)
    if (options.upper_bound or 0) > 0:
        above.clamp_max_(options.upper_bound)
    ratios = torch.where((above == 0) | (below == 0), 1.0, above / below).unbind()
    subtract_scaled(group.weights, torch._foreach_mul(steps, ratios), group.rates)


def adagrad(options: Any, group: Group) -> None:
    """AdaGrad, as ``mx.optimizer.AdaGrad``: epsilon is inside the root, weight decay is not divided by it.

    Duchi et al. 2011, https://jmlr.org/papers/v12/duchi11a.html.
    """
    gradients, (sums,) = prepared(options, group), group.columns()
    torch._foreach_addcmul_(sums, gradients, gradients)
    steps = torch._foreach_div(gradients, roots_of_sums(sums, options.float_stable_eps))
    subtract_scaled(group.weights, decayed(steps, group), group.rates)


def adadelta(options: Any, group: Group) -> None:
    """AdaDelta, as ``mx.optimizer.AdaDelta``: without a rate, and weight decay is subtracted unscaled.

    Zeiler 2012, https://arxiv.org/abs/1212.5701.
    """
    gradients, (of_gradients, of_steps) = prepared(options, group), group.columns()
    average_squares(of_gradients, gradients, options.rho)
    steps = torch._foreach_div(
        roots_of_sums(of_steps, options.epsilon), roots_of_sums(of_gradients, options.epsilon)
    )
    torch._foreach_mul_(steps, gradients)
    average_squares(of_steps, steps, options.rho)
    torch._foreach_sub_(group.weights, decayed(steps, group))


def rmsprop(options: Any, group: Group) -> None:
    """RMSProp, plain or centered, as ``mx.optimizer.RMSProp``: epsilon is inside the root.

    Tieleman and Hinton 2012; centered, Graves 2013, https://arxiv.org/abs/1308.0850.
    """
    gradients, (squares, *centered) = prepared(options, group, "before"), group.columns()
    average_squares(squares, gradients, options.gamma1)
    if centered:
        means, velocities = centered
        average(means, gradients, options.gamma1)
        below = roots_of_sums(torch._foreach_addcmul(squares, means, means, -1), options.epsilon)
        torch._foreach_mul_(velocities, options.gamma2)
        torch._foreach_addcdiv_(velocities, gradients, below, [-each for each in group.rates])
        torch._foreach_add_(group.weights, velocities)
    else:
        below = roots_of_sums(squares, options.epsilon)
        torch._foreach_addcdiv_(group.weights, gradients, below, [-each for each in group.rates])
    bound = options.clip_weights or 0
    if bound > 0:
        torch._foreach_clamp_max_(group.weights, bound)
        torch._foreach_clamp_min_(group.weights, -bound)


RULES: dict[str, Rule] = {
    **{each.__name__: Rule(each, lambda options: 1) for each in (adagrad, lion)},
    **{
        each.__name__: Rule(each, lambda options: 2)
        for each in (adadelta, adam, adamw, bertadam, lamb, radam)
    },
    "rmsprop": Rule(rmsprop, lambda options: 3 if options.centered else 1),
    **{each.__name__: Rule(each, lambda options: int(bool(options.momentum))) for each in (nag, sgd)},
}
"""The rules, by the names of MXNet's optimizers."""
