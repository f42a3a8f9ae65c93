"""What the commands do, as library calls, one module each: train, load, evaluate, report, reproduce."""
