"""Ways to make training itself better, which may ask the planner: for now `initialization`, a race of many starts.

In: a train step and ways to start it.
Out: the start that promises most, trained on. What needs Alpa is passed in from `alpa`.
"""
