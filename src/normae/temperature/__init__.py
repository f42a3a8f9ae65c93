"""The temperature: estimates without a signal sample, and the search for a slope of one."""
