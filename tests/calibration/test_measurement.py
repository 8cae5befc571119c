"""From notes of instructions to the times of stages: two stages and two micro-batches, by hand."""

import dataclasses

import numpy as np
import pytest

from alpa_dejavu.calibration.measurement import Note, StageMessage, StageNotes, StepNotes, measured
from alpa_dejavu.simulation.step import StageTimes, simulate

B = 2


def run(task, start, end):
    return Note("run", task, start, end)


def send(start, end, key):
    return Note("send", None, start, end, 0.0, (StageMessage(key, end, end),))


def receive(start, asked, there, end, key):
    """Asked for at a time, there at another one, and unpacked at the end."""
    return Note("receive", None, start, end, max(there - asked, 0.0), (StageMessage(key, asked, there),))


def step(shift=0.0):
    """1F1B. Forward 2 s on stage 0 and 3 s on stage 1, backward 4 s each, 1 s on the way, 0.5 s to send each.

    As Alpa has it, stage 0 sends its second forward when it has received the first backward.
    """
    first = (
        Note("run", None, 1.0, 1.5),  # allocates
        run(0, 1.5, 3.5),
        send(3.5, 4.0, "f0"),
        run(0, 4.0, 6.0),
        Note("other", None, 6.0, 6.1),
        receive(6.1, 6.1, 13.5, 13.5, "b0"),
        send(13.5, 14.0, "f1"),
        run(3, 14.0, 18.0),
        receive(18.0, 18.0, 23.5, 23.5, "b1"),
        run(3, 23.5, 29.5),  # with 2 s of synchronisation
        run(4, 29.5, 30.0),
        Note("other", None, 30.0, 30.2),
    )
    second = (
        receive(2.0, 2.0, 5.0, 5.0, "f0"),
        run(1, 5.0, 8.0),
        run(2, 8.0, 12.0),
        send(12.0, 12.5, "b0"),
        receive(12.5, 12.5, 15.0, 15.0, "f1"),
        run(1, 15.0, 18.0),
        run(2, 18.0, 22.0),
        send(22.0, 22.5, "b1"),
        run(5, 22.5, 23.0),
    )
    stages = (StageNotes(1.0, 30.2, first), StageNotes(2.0, 23.0, second))
    moved = [
        StageNotes(s.start_s + shift, s.end_s + shift, tuple(_moved(note, shift) for note in s.notes)) for s in stages
    ]
    return StepNotes(shift, 31.0 + shift, tuple(moved))


def _moved(note, shift):
    messages = tuple(StageMessage(m.key, m.asked_s + shift, m.there_s + shift) for m in note.messages)
    return dataclasses.replace(note, start_s=note.start_s + shift, end_s=note.end_s + shift, messages=messages)


def test_a_task_has_what_is_done_for_it_and_no_waiting():
    planned = [StageTimes(1.0, 1.0, activation_bytes=5.0, memory_limit_bytes=9.0), StageTimes(1.0, 1.0)]
    found = measured([], [step()], B, "1f1b", [1, 1], planned)
    first, second = found.stages
    # Two forwards of 2 s, with 0.1 s to free after the second.
    assert first.forward_s == pytest.approx((2.0 + 2.1) / 2)
    assert second.forward_s == pytest.approx(3.0)
    assert (first.backward_s, second.backward_s) == (pytest.approx(4.0), pytest.approx(4.0))
    assert (first.forward_post_s, second.backward_post_s) == (pytest.approx(0.5), pytest.approx(0.5))
    assert (first.backward_post_s, second.forward_post_s) == (0.0, 0.0)
    assert (first.forward_send_s, second.backward_send_s) == pytest.approx((1.0, 1.0)), "timed where it was waited for"
    assert (first.backward_send_s, second.forward_send_s) == (0.0, 0.0)
    assert [stage.start_s for stage in found.stages] == pytest.approx([1.5, 2.0]), "launched, with its buffers"
    assert found.answer_s == pytest.approx(0.8)
    assert np.array(found.computing_s) == pytest.approx(np.array([(2.0, 4.0), (3.0, 4.0)]))
    assert (first.activation_bytes, first.memory_limit_bytes) == (5.0, 9.0), "the plan's"


def test_what_the_last_backward_takes_longer_is_synchronisation():
    first, second = measured([], [step()], B, "1f1b", [1, 1]).stages
    assert first.synchronisation_s == pytest.approx(2.0)
    assert first.per_step_s == pytest.approx(2.0 + 0.7)
    assert second.per_step_s == pytest.approx(0.5)
    alone = dataclasses.replace(step(), stages=tuple(_one_micro_batch(s) for s in step().stages))
    assert measured([], [alone], 1, "1f1b", [1, 1]).stages[0].synchronisation_s == 0


def _one_micro_batch(stage):
    """Without the second forward and backward."""
    kept, seen = [], set()
    for note in stage.notes:
        if note.what == "run" and note.task in seen:
            continue
        seen.add(note.task)
        kept.append(note)
    return dataclasses.replace(stage, notes=tuple(kept))


def test_the_simulation_of_measured_stages_is_the_measured_step():
    found = measured([30.0, 31.0, 29.0], [step()], B, "1f1b", [1, 1])
    assert found.step_s == 30.0
    assert found.noted_steps_s == (31.0,)
    # The average of the forwards, 2.05 s, is 0.05 s more than the first one.
    assert found.simulated_s == pytest.approx(31.05)


def test_the_timeline_is_the_step_from_its_call_on():
    timeline = measured([], [step(100.0)], B, "1f1b", [1, 2]).timeline
    assert timeline.step_s == pytest.approx(31.0)
    assert timeline.forward_s[0] == pytest.approx(np.array([[1.5, 3.5], [4.0, 6.0]]))
    assert timeline.backward_s[1] == pytest.approx(np.array([[8.0, 12.0], [18.0, 22.0]]))
    assert timeline.update_s[:, 0] == pytest.approx(np.array([[29.5, 30.2], [22.5, 23.0]]))
    assert [stage.devices for stage in timeline.stages] == [1, 2]
    sent = {event.receiver for event in timeline.events if event.kind == "send"}
    assert sent == {0, 1}
    assert timeline.forward_send_s[0] == pytest.approx(np.array([[4.0, 5.0], [14.0, 15.0]]))
    assert timeline.backward_send_s[1] == pytest.approx(np.array([[12.5, 13.5], [22.5, 23.5]]))
    busy = timeline.busy_shares + timeline.bubble_shares
    assert busy == pytest.approx([1.0, 1.0])


def test_notes_of_another_plan_are_refused():
    with pytest.raises(ValueError, match="ran 2 forwards and 2 backwards; the plan has 2 stages and asks for 4 and 4"):
        measured([], [step()], 4, "1f1b", [1, 1])
    with pytest.raises(ValueError, match="no notes"):
        measured([1.0], [], B, "1f1b", [1, 1])


def test_a_message_that_was_there_before_it_was_asked_for_says_nothing_of_the_way():
    made = step()
    notes = list(made.stages[1].notes)
    notes[4] = receive(14.9, 14.9, 14.2, 15.0, "f1")
    early = dataclasses.replace(made, stages=(made.stages[0], dataclasses.replace(made.stages[1], notes=tuple(notes))))
    assert measured([], [early], B, "1f1b", [1, 1]).stages[0].forward_send_s == pytest.approx(1.0)
    notes[0] = receive(4.9, 4.9, 4.2, 5.0, "f0")
    early = dataclasses.replace(made, stages=(made.stages[0], dataclasses.replace(made.stages[1], notes=tuple(notes))))
    assert measured([], [early], B, "1f1b", [1, 1]).stages[0].forward_send_s == pytest.approx(0.2)


def test_medians_leave_out_a_step_that_was_held_up():
    slow = dataclasses.replace(step(), end_s=500.0)
    found = measured([], [step(), slow, step(1.0)], B, "1f1b", [1, 1])
    assert found.answer_s == pytest.approx(0.8)
    assert found.timeline.step_s == pytest.approx(31.0)


def test_a_stage_that_is_launched_later_waits_for_it():
    stages = [StageTimes(1.0, 2.0)] * 2
    at_once = simulate(stages, 4).step_s
    assert simulate([dataclasses.replace(stages[0], start_s=3.0), stages[1]], 4).step_s == at_once + 3.0
    # The second stage has nothing to do for 1 s.
    assert simulate([stages[0], dataclasses.replace(stages[1], start_s=1.0)], 4).step_s == at_once
    late = simulate([stages[0], dataclasses.replace(stages[1], start_s=1.5)], 4, cores=2)
    assert late.step_s == at_once + 0.5
    assert late.forward_s[1, 0, 0] == 1.5


def test_a_post_holds_up_its_sender_when_the_receiver_is_due():
    brief = 1e-12
    first = StageTimes(1.0, 2.0, forward_send_s=brief, forward_post_s=0.25)
    made = simulate([first, StageTimes(1.0, 2.0, backward_send_s=brief)], 2, sends="buffered")
    # The first forward is sent at once, the second one when the first backward has come.
    assert made.forward_s[0] == pytest.approx(np.array([[0.0, 1.0], [1.25, 2.25]]))
    assert made.forward_s[1] == pytest.approx(np.array([[1.25, 2.25], [4.5, 5.5]]))
    assert made.backward_s[0] == pytest.approx(np.array([[4.5, 6.5], [7.5, 9.5]]))
    # Who meets the receiver, or sends while it computes, posts nothing.
    for sends in ("blocking", "overlapped"):
        assert simulate([first, StageTimes(1.0, 2.0)], 2, sends=sends).step_s == pytest.approx(9.0)
