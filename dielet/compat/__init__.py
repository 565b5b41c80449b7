"""Other people's interfaces: scripts written for them run on dielet's programs."""
