"""A planning task comes in; candidate plans go out, each cut into stages, placed on hosts and simulated, and ranked.

Shapes (numbers of layers, micro-batches and stages) are tried one after the other; the best candidates are polished and
become plans. What is measured of stages corrects their costs here, and nowhere else.
"""
