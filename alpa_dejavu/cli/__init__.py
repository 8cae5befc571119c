"""The commands of `alpa-dejavu`, a file each, and what they print with.

In: the words of a command line, and the files that they name.
Out: tables on the terminal, files that were asked for, and an exit status; errors end in a line, not in a traceback.
"""
