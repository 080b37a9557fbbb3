"""`hightide generate …`: the files that run Hightide on machines and in containers, and watch it.

commands     the options of each file
template     texts with places for quoted values
machines     systemd units, and the configuration of an Apache ZooKeeper ensemble
containers   Dockerfile, Compose file, Kubernetes manifests
dashboard    the Grafana dashboard
templates/   the texts, with the comments that a reader of the generated file needs
"""
