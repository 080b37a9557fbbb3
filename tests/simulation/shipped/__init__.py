"""The second speed of the simulator: the shipped broker, on virtual time.

Nothing of the broker is replaced but what is around it: the event loop (`loop`), the network
(`network`), the disk (`disk`) and the coordinator (`coordination`).
"""
