"""`shh stream` as a flex template of Dataflow: its parameters (metadata.json), its image, and what the image runs."""
