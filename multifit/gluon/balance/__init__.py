"""Runs a method of balancing on the losses or the gradients of a training step."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ...balance.balancers import Balancer, LossBalancer
from ...balance.tasks import check_method
from ...distributed import World
from ...spec import TaskSpec
from ...utils.protocols import Context
from ..step.loss_graph import APART, BY_TERM, LossSeparation
from .gradients import GradientBalancer
from .losses import DeviceBalancer, HostArrays


def make_balancer(
    method: Any, spec: TaskSpec, context: Context, world: World, parameters: Mapping[str, Any]
) -> Balancer | None:
    """Return the balancer that runs a method, or None if `method` is None.

    `context` is where weights are computed if that is on a device; `parameters` are the net's, by structural
    name. Raises SpecError if `method` is not a method of balancing, or cannot weigh the losses of `spec`.
    """
    if method is None:
        return None
    check_method(method, spec)
    if method.needs == "gramian":
        return GradientBalancer(method, spec, HostArrays(world), world, parameters)
    if method.on_device:
        return DeviceBalancer(method, spec, context, world)
    return LossBalancer(method, spec, HostArrays(world))


def loss_separation(balancer: Balancer, updated: Callable[[], Collection[str]]) -> LossSeparation:
    """Return how a training stage must compute the objective; `updated` is as for LossSeparation."""
    if isinstance(balancer, GradientBalancer):
        return LossSeparation(
            APART, balancer.means, balancer.of_loss, balancer.repeats, updated, balances=True
        )
    return LossSeparation(BY_TERM, balancer.means, balances=True)
