"""Ways to make training itself better, which may ask the planner.

In: a train step and ways to start it, gradients of replicas or of points, or a trained network.
Out: `initialization`: the start that promises most, trained on; `robust`: one gradient that survives wrong ones;
`resilience`: which parts of a network may fail; `optex`: several steps for one. What needs Alpa is passed in.
"""
