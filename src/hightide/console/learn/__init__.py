"""Seven guided scenes of replication, played on the real brokers of a running `hightide up`.

scene.py            what a scene and its steps are, and the record of a run
stage.py            what a step may do: write, look, wait, act on a broker; and how all of it
                    is undone
runner.py           plays one scene at a time, and leaves the cluster as it was
watermark.py …      the scenes, each a list of steps
"""
