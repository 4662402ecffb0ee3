"""When it will be whose turn: the schedule, its calibration, no-shows and the told return."""
