"""Plans for other runtimes: as of now the lines of Python that run a plan with Alpa.

In: a `Plan`.
Out: the text of a script.
"""
