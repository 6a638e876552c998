"""The store: durable partitions of queues and logs behind one interface. Only actors and the node's
start import it."""
