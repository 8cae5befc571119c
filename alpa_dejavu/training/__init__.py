"""Ways to make training itself better, which may ask the planner: `initialization`, a race of many starts, and
`resilience`, which parts of a network may fail.

In: a train step and ways to start it, or a trained network.
Out: the start that promises most, trained on; or what is lost with which parts. What needs Alpa is passed in.
"""
