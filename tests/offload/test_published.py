"""The published formulas of offload by themselves: DeepSpeed's figures, CPU Adam's seconds, five stages by hand."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from published_estimates import T5_3B, T5_3B_LARGEST, deepspeed_zero2, deepspeed_zero3
from published_formulas import A100_HOST, CONFIGURATIONS, GPT_13B, V100_HOST, Job, Shares, stage

# DeepSpeed's page, in GiB: of the host, of a GPU. "cold": from counts rounded to 2851 M and 32 M; "live": from T5-3B.
ZERO_2 = {
    True: {"cold": (127.45, 5.31), "live": (127.48, 5.31)},
    False: {"cold": (127.45, 15.93), "live": (127.48, 15.93)},
}
ZERO_3 = {
    # The optimizer, and the parameters, are offloaded; zero.Init.
    (True, True, True): {"cold": (71.69, 0.12), "live": (71.71, 0.12)},
    (True, True, False): {"cold": (127.45, 0.12), "live": (127.48, 0.12)},
    (True, False, True): {"cold": (63.72, 0.78), "live": (63.74, 0.79)},
    (True, False, False): {"cold": (127.45, 0.78), "live": (127.48, 0.79)},
    (False, False, True): {"cold": (1.43, 6.09), "live": (1.47, 6.10)},
    (False, False, False): {"cold": (127.45, 6.09), "live": (127.48, 6.10)},
}
COUNTS = {"cold": (2851e6, 32e6), "live": (T5_3B, T5_3B_LARGEST)}


def gib(num_bytes):
    return round(num_bytes / 2**30, 2)


@pytest.mark.parametrize("counts", COUNTS)
def test_deepspeed_s_estimates_come_out_to_their_last_digit(counts):
    params, largest = COUNTS[counts]
    for offload, figures in ZERO_2.items():
        gpu, host = deepspeed_zero2(params, 8, offload)
        assert (gib(host), gib(gpu)) == figures[counts]
    for options, figures in ZERO_3.items():
        gpu, host = deepspeed_zero3(params, largest, 8, *options)
        assert (gib(host), gib(gpu)) == figures[counts]


# By hand. Bytes of a device, of the host, on drives; seconds overlapped, and not.
BY_HAND = {
    # 26 + 26/8 + 0.4; 156 + 26. Each link: 48/8 = 6 GB/s. Passes 4 x 2 s; Adam 13 x 30/110 s; 3.25/6 s down, and up.
    "13B, ZeRO-2, optimizer": (29.65e9, 182e9, 0, 8 + 390 / 110, 8 + 390 / 110 + 6.5 / 6),
    # 26 + 3.25/40 + 0.4. The gradients go four times, behind 1.5 s.
    "13B, ZeRO-2, optimizer and gradients": (26.48125e9, 182e9, 0, 8 + 390 / 110, 8 + 390 / 110 + (4 + 1) * 3.25 / 6),
    # 3.75 x (1 + 2/48) + 7.5 + 0.7; 360 + 60 + 30. Passes 2 x 10 s, and 4 times 3.75/6 s up; then 7.5 down, 3.75 up.
    "30B, ZeRO-3, optimizer and half of the parameters": (
        12.10625e9,
        450e9,
        0,
        20 + 900 / 110,
        20 + 900 / 110 + (4 * 3.75 + 7.5 + 3.75) / 6,
    ),
    # 5.2 + 5.2/8 + 31.2/8 + 12 x (1 + 1/32); 8 x 12. Each link: 96/8 = 12 GB/s, so 1 s each way for 0.3 and 0.9 s.
    "2.6B, ZeRO-2, half of the activations": (22.125e9, 96e9, 0, 2 * (1 + 1), 2 * (1.3 + 1.9)),
    # 26 GB of gradients wait in the host's memory. Read 156/16 s, written 156/8 s, Adam 390/126 s; 3.25/12 s each way.
    "13B, ZeRO-2, optimizer on NVMe": (
        29.65e9,
        26e9,
        156e9,
        8 * 0.6 + 19.5,
        8 * 0.6 + 19.5 + 9.75 + 390 / 126 + 6.5 / 12,
    ),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_five_configurations_are_what_they_are_by_hand(name):
    job, shares, host = CONFIGURATIONS[name]
    device_bytes, host_bytes, nvme_bytes, overlapped_s, serial_s = BY_HAND[name]
    overlapped, serial = stage(job, shares, host, True), stage(job, shares, host, False)
    assert overlapped.device_bytes == pytest.approx(device_bytes)
    assert overlapped.host_bytes == pytest.approx(host_bytes)
    assert overlapped.nvme_bytes == pytest.approx(nvme_bytes)
    assert (overlapped.seconds, serial.seconds) == pytest.approx((overlapped_s, serial_s))
    assert (serial.device, serial.host) == (overlapped.device, overlapped.host)


def test_what_is_not_published_is_refused():
    for zero, shares in ((1, Shares(1.0, gradients=1.0)), (2, Shares(1.0, parameters=1.0))):
        with pytest.raises(ValueError, match="ZeRO-2 or 3"):
            stage(dataclasses.replace(GPT_13B, zero=zero), shares, V100_HOST, overlapped=True)


SHARE = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


@st.composite
def offloads(draw):
    optimizer = draw(SHARE)
    smaller = SHARE.map(lambda share: min(share, optimizer))
    return Shares(optimizer, draw(smaller), draw(smaller), draw(SHARE), draw(st.booleans()))


JOBS = st.builds(
    Job,
    devices=st.sampled_from([1, 2, 8]),
    zero=st.just(3),
    micro_batches=st.integers(1, 8),
    forward_s=st.floats(0.01, 10.0),
    backward_s=st.floats(0.01, 10.0),
    params=st.floats(1e8, 1e11),
    weight=st.sampled_from([2, 4]),
    gradient=st.sampled_from([2, 4]),
    state=st.sampled_from([8, 12]),
    activation_bytes=st.floats(0.0, 1e11),
    layers=st.integers(2, 100),
)


@given(JOBS, offloads(), st.booleans())
def test_offload_never_makes_a_step_shorter_and_overlap_never_longer(job, shares, overlapped):
    result = stage(job, shares, A100_HOST, overlapped)
    computing = job.micro_batches * (job.forward_s + job.backward_s)
    assert result.seconds >= computing * (1 - 1e-9)
    assert stage(job, shares, A100_HOST, True).seconds <= stage(job, shares, A100_HOST, False).seconds * (1 + 1e-9)
    if shares == Shares(nvme=shares.nvme):
        assert result.seconds == pytest.approx(computing)
        assert (result.host_bytes, result.nvme_bytes) == (0, 0)


@given(JOBS, offloads())
def test_every_byte_is_somewhere_and_beside_it_only_buffers_and_the_gradients_of_the_update(job, shares):
    result, whole = (stage(job, these, A100_HOST, True) for these in (shares, Shares()))
    total = job.devices * result.device_bytes + result.host_bytes + result.nvme_bytes
    gradients = job.params * job.gradient
    buffers = job.devices * job.activation_bytes * shares.activations + gradients * shares.gradients
    buffers += 2 * job.params * job.weight * shares.parameters
    twice = gradients * (shares.optimizer - shares.gradients)
    assert total == pytest.approx(job.devices * whole.device_bytes + buffers / job.layers + twice)


@given(JOBS, offloads(), st.booleans(), st.sampled_from([field.name for field in dataclasses.fields(A100_HOST)]))
def test_a_faster_host_is_never_slower(job, shares, overlapped, rate):
    faster = dataclasses.replace(A100_HOST, **{rate: 2 * getattr(A100_HOST, rate)})
    slower_s = stage(job, shares, A100_HOST, overlapped).seconds
    assert stage(job, shares, faster, overlapped).seconds <= slower_s * (1 + 1e-9)
