"""Which launcher started this process, and what torch needs to know from it."""

from __future__ import annotations

import pytest

from multifit.distributed.launchers import first_host, launched, local_rank, local_size, torch_variables

SLURM = {
    "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "gpu[07-09]",
    "SLURM_JOB_ID": "123456",
}  # fmt: skip
TORCH = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2"}


@pytest.mark.parametrize(
    "environment, launcher",
    [
        ({}, None),
        ({"HOME": "/", "RANK": "1"}, None),
        ({"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1"}, "horovodrun"),
        ({"HOROVOD_RANK": "0", **OPEN_MPI}, "horovodrun"),
        (TORCH, "torchrun"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "torchrun"),
        ({**TORCH, **SLURM}, "torchrun"),
        (OPEN_MPI, "mpirun"),
        ({**MPICH, **SLURM}, "mpirun"),
        (SLURM, "srun"),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}, None),  # an interactive step
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # the script of a job, outside of srun
    ],
)
def test_launchers_are_recognised(environment, launcher):
    assert launched(environment) == launcher


@pytest.mark.parametrize(
    "environment, variables",
    [
        (TORCH, TORCH),
        ({**TORCH, **SLURM}, TORCH),
        (SLURM, {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "gpu07", "MASTER_PORT": "23456"}),
        ({**SLURM, "MASTER_ADDR": "a", "MASTER_PORT": "5"},
         {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "5"}),
        (OPEN_MPI, {"RANK": "1", "WORLD_SIZE": "2"}),
        ({**MPICH, "MASTER_ADDR": "a"}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}),
        ({}, {}),
    ],
)  # fmt: skip
def test_torch_is_told_what_other_launchers_say(environment, variables):
    assert torch_variables(environment) == variables


@pytest.mark.parametrize(
    "nodes, host",
    [
        ("gpu07", "gpu07"),
        ("gpu[07-09,12],cpu1", "gpu07"),
        ("a,b[1-2]", "a"),
        ("r1[3,5]-ib", "r13-ib"),
        ("cn-1-[2-4]", "cn-1-2"),
    ],
)
def test_the_first_host_of_slurms_list(nodes, host):
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    "environment, size",
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "4"}, 4),
        ({"HOROVOD_LOCAL_SIZE": "2"}, 2),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "4"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),1"}, 1),  # which node is this?
    ],
)
def test_processes_of_one_machine(environment, size):
    assert local_size(environment) == size


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, 0),
        ({"LOCAL_RANK": "1"}, 0),  # nobody started several
        ({**TORCH, "LOCAL_RANK": "1"}, 1),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "3"}, 3),
        ({**SLURM, "SLURM_LOCALID": "2"}, 2),
        ({**SLURM, "SLURM_LOCALID": "?"}, 0),
    ],
)
def test_the_number_of_a_process_on_its_machine(environment, rank):
    assert local_rank(environment) == rank
