"""What runs on this machine: a broker, a whole cluster, and the processes that these are made of."""
