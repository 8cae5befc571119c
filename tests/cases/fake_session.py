"""A training session that is only counted, and a clock that runs when somebody waits."""

import types

from alpa_dejavu.alpa.resume import Session, WallClock


class Fake(Session):
    """Losses follow from a state that each step changes; at some calls hosts are lost, or other things go wrong."""

    def __init__(self, events=()):
        self.events, self.calls, self.saved, self.gone = dict(events), [], {}, []
        self.running, self.interrupted = False, False
        self.looks, self.late = 0, None
        self.copied_at, self.devices, self.here = None, None, {}

    def meet(self, call):
        self.calls.append(call)
        for event in self.events.pop((call, self.calls.count(call)), ()):
            if isinstance(event, Exception):
                raise event
            self.gone.append(event)

    def start(self, plan, checkpoint):
        self.plan, self.running = plan, True
        self.state = self.saved[checkpoint] if checkpoint else 1.0
        self.meet(("start", checkpoint))

    def step(self, number):
        assert self.running
        self.meet(("step", number))
        self.state = self.state * 0.9 + number
        return self.state

    def save(self, number):
        self.meet(("save", number))
        self.saved[number] = self.state

    @property
    def copies(self):
        return True

    def copy(self, number):
        self.meet(("copy", number))
        self.saved[number] = self.state
        self.copied_at = number

    def copied(self):
        return self.copied_at

    def broken(self):
        assert not self.running
        return self.devices

    def joined(self):
        return self.here

    def stop(self):
        self.running = False
        self.calls.append("stop")

    def lost(self):
        self.looks += 1
        return list(self.gone) if self.late is None or self.looks < self.late else ["host-1"]

    def suspects(self, error):
        return isinstance(error, ConnectionError)

    def interrupt(self):
        self.interrupted = True


class FakeTime:
    """Seconds that pass when somebody waits; what was to be called after some is called then."""

    def __init__(self):
        self.now_s, self.due = 0.0, []

    def wait(self, seconds):
        self.now_s += seconds
        for call in [call for call in self.due if call.at_s <= self.now_s]:
            self.due.remove(call)
            call.function()

    def after(self, seconds, function):
        call = types.SimpleNamespace(at_s=self.now_s + seconds, function=function)
        call.start = lambda: self.due.append(call)
        call.cancel = lambda: self.due.remove(call) if call in self.due else None
        return call

    def clock(self):
        return WallClock(lambda: self.now_s, self.wait, self.after)
