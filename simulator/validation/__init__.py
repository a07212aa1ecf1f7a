"""What is known, measured or proved, and the runs of the simulator that must agree with it."""
