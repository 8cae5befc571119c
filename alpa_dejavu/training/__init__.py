"""What makes training itself better, and may ask the planner: as of now `initialization`, which races many starts.

In: a train step and ways to start it.
Out: the start that promises most, trained on. What needs Alpa is passed in from `alpa`.
"""
