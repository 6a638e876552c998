"""The runtime of actors: cells, their scheduler, effects, timers and supervision. It knows the
store and nothing of channels and streams; these and the node import it."""
