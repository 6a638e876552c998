"""The actors: channels, streams, jobs and states, on a runtime and a store without sockets."""
