"""Optimizers that compute MXNet's numbers: a rule for each, for a list of tensors at once.

A rule updates the parameters of a group and their states in place, without autograd. Its options are any
object with the attributes of MXNet's optimizer (``momentum``, ``beta1``, ``clip_gradient`` and so on), such
as that optimizer; they are read in each update. Rates and weight decays come with the group, so that the
caller applies schedules and multipliers.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .group import (
    Column,
    Group,
    State,
    add_scaled,
    average,
    average_squares,
    clipped,
    clipped_then_decayed,
    decayed,
    decayed_then_clipped,
    moments,
    only_clipped,
    rescaled,
    rest,
    roots,
    roots_of_sums,
    set_to_minus_quotients,
    shrink,
    single,
    singles,
    subtract_scaled,
    zeros,
)


class Rule(NamedTuple):
    """How parameters are updated, and ``create(options, weight)``: the state of a new one, as MXNet's."""

    update: Callable[[Any, Group], None]
    create: Callable[[Any, torch.Tensor], State]


def sgd(options: Any, group: Group) -> None:
    """SGD with momentum.

    As in ``mx.optimizer.SGD``; ``torch.optim.SGD`` differs where the rate changes.

    The rate is a part of the velocity: a new rate does not affect the gradients of earlier updates.
    """
    gradients, rates = clipped_then_decayed(options, group), singles(group.rates)
    if options.momentum <= 0:
        subtract_scaled(group.weights, gradients, rates)
        return
    (velocities,) = group.columns()
    torch._foreach_mul_(velocities, single(options.momentum))
    subtract_scaled(velocities, gradients, rates)
    torch._foreach_add_(group.weights, velocities)


def nag(options: Any, group: Group) -> None:
    """Nesterov's accelerated gradient.

    As in ``mx.optimizer.NAG``: SGD that also applies the momentum of the next update.

    As in MXNet, the stored velocity contains the weight decay of the weight after the update.
    """
    gradients, weights = only_clipped(options, group), group.weights
    rates, decays, momentum = singles(group.rates), singles(group.decays), single(options.momentum)
    steps = decayed(gradients, weights, decays)
    if momentum <= 0:
        subtract_scaled(weights, steps, rates)
        return
    (velocities,) = group.columns()
    torch._foreach_mul_(velocities, momentum)
    torch._foreach_add_(weights, velocities, alpha=momentum)
    subtract_scaled(weights, steps, [(1 + momentum) * rate for rate in rates])
    subtract_scaled(velocities, decayed(gradients, weights, decays), rates)


def signum(options: Any, group: Group) -> None:
    """Signum: the sign of the gradient, or of its running mean.

    As in ``mx.optimizer.Signum``; Bernstein et al. 2018, https://arxiv.org/abs/1802.04434.

    As in MXNet, the state is minus the mean. Without momentum, weight decay shrinks the weight itself; with
    momentum, it is a part of the gradient.
    """
    rates, decays = singles(group.rates), singles(group.decays)
    if options.momentum:
        (means,) = group.columns()
        gradients = list(torch._foreach_neg(clipped_then_decayed(options, group)))
        average(means, gradients, max(0, options.momentum))
        directions, decays = torch._foreach_sign(means), [single(options.wd_lh)] * len(rates)
    else:
        directions = torch._foreach_sign(torch._foreach_neg(group.gradients))
    shrink(group.weights, rates, decays)
    subtract_scaled(group.weights, list(directions), [-rate for rate in rates])


def adam(options: Any, group: Group) -> None:
    """Adam.

    As in ``mx.optimizer.Adam``; ``torch.optim.Adam`` differs in epsilon.

    Epsilon is added to the square root of the biased second moment; the bias correction is a part of the
    rate. Kingma and Ba 2015, https://arxiv.org/abs/1412.6980.
    """
    means, squares = moments(options, group, decayed_then_clipped(options, group))
    factors = [
        -single(rate * math.sqrt(1 - options.beta2**t) / (1 - options.beta1**t))
        for rate, t in zip(group.rates, group.counts)
    ]
    torch._foreach_addcdiv_(group.weights, means, roots(squares, options.epsilon), factors)


def adamw(options: Any, group: Group) -> None:
    """AdamW: Adam with decoupled weight decay.

    As in multifit's ``adamw``, with the numbers of ``torch.optim.AdamW``; Loshchilov and Hutter 2019,
    https://arxiv.org/abs/1711.05101.
    """
    means, squares = moments(options, group, only_clipped(options, group))
    shrink(group.weights, group.rates, group.decays)
    steps, epsilons = zip(*map(options.numbers, group.rates, group.counts))
    below = roots(squares, list(epsilons))
    torch._foreach_addcdiv_(group.weights, means, below, [-rate for rate in singles(steps)])


def radam(options: Any, group: Group) -> None:
    """RAdam: Adam with a rectified rate.

    As in multifit's ``radam``, with the numbers of ``torch.optim.RAdam``; Liu et al. 2020,
    https://arxiv.org/abs/1908.03265.
    """
    means, squares = moments(options, group, decayed_then_clipped(options, group))
    of_means, of_steps = zip(*map(options.factors, group.rates, group.counts))
    below = roots(squares, options.epsilon)
    torch._foreach_addcdiv_(group.weights, means, below, [-rate for rate in singles(of_steps)])
    if any(of_means):
        subtract_scaled(group.weights, means, of_means)


def lion(options: Any, group: Group) -> None:
    """Lion: the sign of a running mean, with decoupled weight decay.

    As in multifit's ``lion``, whose state is minus the mean; Chen et al. 2023,
    https://arxiv.org/abs/2302.06675.
    """
    gradients = list(torch._foreach_neg(only_clipped(options, group)))
    (means,), rates = group.columns(), singles(group.rates)
    directions = list(torch._foreach_mul(means, single(options.beta1)))
    torch._foreach_add_(directions, gradients, alpha=rest(options.beta1))
    shrink(group.weights, rates, singles(group.decays))
    subtract_scaled(group.weights, list(torch._foreach_sign(directions)), [-rate for rate in rates])
    average(means, gradients, options.beta2)


def bertadam(options: Any, group: Group) -> None:
    """BERTAdam: Adam with decoupled weight decay and without bias correction.

    As in ``gluonnlp.optimizer.BERTAdam``; Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101.
    """
    means, squares = moments(options, group, only_clipped(options, group))
    steps = list(torch._foreach_div(means, roots(squares, options.epsilon)))
    steps = add_scaled(steps, group.weights, singles(group.decays))
    subtract_scaled(group.weights, steps, singles(group.rates))


def lamb(options: Any, group: Group) -> None:
    """LAMB.

    As in ``mx.optimizer.LAMB``; You et al. 2020, https://arxiv.org/abs/1904.00962.

    The rate of each array is multiplied by the array's norm over the norm of its step, without waiting for
    these.
    """
    means, squares = moments(options, group, only_clipped(options, group))
    if options.bias_correction:
        means = _corrected(means, options.beta1, group.counts)
        squares = _corrected(squares, options.beta2, group.counts)
    steps = list(torch._foreach_div(means, roots(squares, options.epsilon)))
    steps = add_scaled(steps, group.weights, singles(group.decays))
    torch._foreach_mul_(steps, _ratios(options, group.weights, steps))
    torch._foreach_mul_(steps, singles(group.rates))
    torch._foreach_sub_(group.weights, steps)


def _corrected(means: Column, share: float, counts: list[int]) -> Column:
    return list(torch._foreach_div(means, [1 - single(share) ** t for t in counts]))


def _ratios(options: Any, weights: Column, steps: Column) -> Column:
    """Return each weight's norm, within its bounds, over its step's norm; 1 if one of them is 0."""
    above, below = (torch.stack(torch._foreach_norm(tensors)) for tensors in (weights, steps))
    if options.lower_bound:
        above.clamp_min_(single(options.lower_bound))
    if (options.upper_bound or 0) > 0:
        above.clamp_max_(single(options.upper_bound))
    return list(torch.where((above == 0) | (below == 0), 1.0, above / below).unbind())


def nadam(options: Any, group: Group) -> None:
    """Nadam: Adam with Nesterov momentum.

    As in ``mx.optimizer.Nadam``; Dozat 2016, http://cs229.stanford.edu/proj2015/054_report.pdf.

    As in MXNet, the product of the momenta so far, the option ``m_schedule``, is one number for all
    parameters: the update of each parameter multiplies it again.
    """
    gradients = decayed(rescaled(options, group.gradients), group.weights, group.decays)
    gradients, (means, squares) = clipped(options, gradients), group.columns()
    torch._foreach_mul_(means, options.beta1)
    torch._foreach_add_(means, gradients, alpha=1 - options.beta1)
    torch._foreach_mul_(squares, options.beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - options.beta2)
    of_gradients, of_means = _shares(options, group.counts)
    steps = torch._foreach_mul(gradients, of_gradients)
    torch._foreach_add_(steps, torch._foreach_mul(means, of_means))
    below = torch._foreach_div(squares, [1 - options.beta2**t for t in group.counts])
    torch._foreach_sqrt_(below)
    torch._foreach_add_(below, options.epsilon)
    torch._foreach_addcdiv_(group.weights, steps, below, [-rate for rate in group.rates])


def _shares(options: Any, counts: list[int]) -> tuple[list[float], list[float]]:
    """Return the factors of each gradient and of each mean; also updates the product of the momenta."""
    of_gradients, of_means = [], []
    for t in counts:
        now, following = (_momentum(options, t + ahead) for ahead in (0, 1))
        options.m_schedule *= now
        of_gradients.append((1 - now) / (1 - options.m_schedule))
        of_means.append(following / (1 - options.m_schedule * following))
    return of_gradients, of_means


def _momentum(options: Any, t: int) -> float:
    return float(options.beta1 * (1 - 0.5 * 0.96 ** (t * options.schedule_decay)))


def adamax(options: Any, group: Group) -> None:
    """AdaMax: Adam with the largest gradient in place of the mean square.

    As in ``mx.optimizer.Adamax``; Kingma and Ba 2015, section 7, https://arxiv.org/abs/1412.6980.
    """
    gradients = decayed(rescaled(options, group.gradients), group.weights, group.decays)
    gradients, (means, largest) = clipped(options, gradients), group.columns()
    torch._foreach_mul_(means, options.beta1)
    torch._foreach_add_(means, gradients, alpha=1 - options.beta1)
    torch._foreach_mul_(largest, options.beta2)
    torch._foreach_maximum_(largest, torch._foreach_abs(gradients))
    factors = [-rate / (1 - options.beta1**t) for rate, t in zip(group.rates, group.counts)]
    torch._foreach_addcdiv_(group.weights, means, largest, factors)


def adagrad(options: Any, group: Group) -> None:
    """AdaGrad.

    As in ``mx.optimizer.AdaGrad``; Duchi et al. 2011, https://jmlr.org/papers/v12/duchi11a.html.

    Epsilon is inside the square root, and weight decay is not divided by the root.
    """
    gradients, (sums,) = only_clipped(options, group), group.columns()
    torch._foreach_addcmul_(sums, gradients, gradients)
    below = roots_of_sums(sums, options.float_stable_eps)
    steps = add_scaled(list(torch._foreach_div(gradients, below)), group.weights, group.decays)
    subtract_scaled(group.weights, steps, group.rates)


def groupadagrad(options: Any, group: Group) -> None:
    """AdaGrad with one rate for each row of a matrix.

    As in ``mx.optimizer.contrib.GroupAdaGrad``, for matrices such as embeddings; it has no weight decay.
    """
    gradients, (sums,) = only_clipped(options, group), group.columns()
    torch._foreach_add_(sums, [gradient.square().mean(1, keepdim=True) for gradient in gradients])
    below = roots_of_sums(sums, options.float_stable_eps)
    for weight, gradient, root, rate in zip(group.weights, gradients, below, group.rates):
        weight.addcdiv_(gradient, root, value=-rate)


def adadelta(options: Any, group: Group) -> None:
    """AdaDelta.

    As in ``mx.optimizer.AdaDelta``; Zeiler 2012, https://arxiv.org/abs/1212.5701.

    It uses no learning rate: weight decay is subtracted unscaled.
    """
    gradients = only_clipped(options, group)
    of_gradients, of_steps = group.columns()
    _average_squares(of_gradients, gradients, options.rho)
    steps = roots_of_sums(of_steps, options.epsilon)
    torch._foreach_div_(steps, roots_of_sums(of_gradients, options.epsilon))
    torch._foreach_mul_(steps, gradients)
    _average_squares(of_steps, steps, options.rho)
    torch._foreach_sub_(group.weights, add_scaled(steps, group.weights, group.decays))


def _average_squares(means: list[torch.Tensor], values: list[torch.Tensor], share: float) -> None:
    torch._foreach_mul_(means, share)
    torch._foreach_addcmul_(means, values, values, 1 - share)


def rmsprop(options: Any, group: Group) -> None:
    """RMSProp, plain or centered.

    As in ``mx.optimizer.RMSProp``: Tieleman and Hinton 2012; centered, Graves 2013, https://arxiv.org/abs/1308.0850.

    Epsilon is inside the square root.
    """
    gradients, (squares, *centered) = decayed_then_clipped(options, group), group.columns()
    average_squares(squares, gradients, options.gamma1)
    epsilon, negative = single(options.epsilon), [-rate for rate in singles(group.rates)]
    if centered:
        means, velocities = centered
        average(means, gradients, options.gamma1)
        below = roots_of_sums(torch._foreach_addcmul(squares, means, means, -1), epsilon)
        torch._foreach_mul_(velocities, single(options.gamma2))
        torch._foreach_addcdiv_(velocities, gradients, below, negative)
        torch._foreach_add_(group.weights, velocities)
    else:
        below = roots_of_sums(squares, epsilon)
        torch._foreach_addcdiv_(group.weights, gradients, below, negative)
    bound = single(options.clip_weights or 0)
    if bound > 0:
        torch._foreach_clamp_max_(group.weights, bound)
        torch._foreach_clamp_min_(group.weights, -bound)


def ftrl(options: Any, group: Group) -> None:
    """FTRL.

    As in ``mx.optimizer.Ftrl``; McMahan et al. 2013, https://dl.acm.org/doi/10.1145/2487575.2488200.

    Weight decay is the L2 term of the objective that is minimised, never a part of a gradient.
    """
    gradients, (sums, squares) = only_clipped(options, group), group.columns()
    rates, decays = singles(group.rates), singles(group.decays)
    before = torch._foreach_sqrt(squares)
    torch._foreach_addcmul_(squares, gradients, gradients)
    after = list(torch._foreach_sqrt(squares))
    torch._foreach_add_(sums, gradients)
    grown = torch._foreach_sub(after, before)
    torch._foreach_addcmul_(sums, grown, group.weights, [-1 / rate for rate in rates])
    torch._foreach_add_(after, single(options.beta))
    torch._foreach_div_(after, rates)
    torch._foreach_add_(after, decays)
    # sign(z) * l1 - z is 0 or more where |z| is at most l1: the weight is 0 there
    bound = single(options.lamda1)
    within = torch._foreach_clamp_min(torch._foreach_clamp_max(sums, bound), -bound)
    set_to_minus_quotients(group.weights, list(torch._foreach_sub(sums, within)), after)


def ftml(options: Any, group: Group) -> None:
    """FTML: follow the moving leader.

    As in ``mx.optimizer.FTML``; Zheng and Kwok 2017, https://proceedings.mlr.press/v70/zheng17a.html.
    """
    gradients, (denominators, squares, sums) = decayed_then_clipped(options, group), group.columns()
    beta1, beta2 = single(options.beta1), single(options.beta2)
    average_squares(squares, gradients, options.beta2)
    new = torch._foreach_div(squares, [1 - beta2**t for t in group.counts])
    torch._foreach_sqrt_(new)
    torch._foreach_add_(new, single(options.epsilon))
    rates = singles(group.rates)
    torch._foreach_mul_(new, [(1 - beta1**t) / rate for rate, t in zip(rates, group.counts)])
    average(sums, gradients, options.beta1)
    grown = torch._foreach_add(new, denominators, alpha=-beta1)
    torch._foreach_addcmul_(sums, grown, group.weights, -1)
    torch._foreach_copy_(denominators, new)
    set_to_minus_quotients(group.weights, sums, new)


def _momentum_state(options: Any, weight: torch.Tensor) -> State:
    return torch.zeros_like(weight) if options.momentum else None


def _one(options: Any, weight: torch.Tensor) -> State:
    return torch.zeros_like(weight)


def _two(options: Any, weight: torch.Tensor) -> State:
    return zeros(weight, 2)


RULES: dict[str, Rule] = {
    "adadelta": Rule(adadelta, _two),  # running means of the squares of gradients and of steps
    "adagrad": Rule(adagrad, _one),  # the sum of the squares of gradients
    **{each.__name__: Rule(each, _two) for each in (adam, adamax, adamw, bertadam, lamb, nadam, radam)},
    "ccsgd": Rule(sgd, _momentum_state),  # MXNet's old name of SGD
    "ftml": Rule(ftml, lambda options, weight: zeros(weight, 3)),  # denominator, mean square and numerator
    "ftrl": Rule(ftrl, _two),  # the sums of adjusted gradients and of their squares
    "groupadagrad": Rule(groupadagrad, lambda options, weight: weight.new_zeros((len(weight), 1))),
    "lion": Rule(lion, _one),
    # the mean square; if centered, also the mean of gradients and the velocity
    "rmsprop": Rule(rmsprop, lambda options, weight: zeros(weight, 3 if options.centered else 1)),
    **{each.__name__: Rule(each, _momentum_state) for each in (nag, sgd, signum)},
}
"""The rules, by the names of MXNet's optimizers."""
