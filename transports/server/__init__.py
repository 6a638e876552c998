"""Parts that the connections of all protocols share: the interface of the node, pipelining, rate
limits, refusals and counters. Protocols import it; it imports none.
"""
