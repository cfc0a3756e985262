"""Processes beside the controller that think for it: plans, answers to what-if, jobs' own proposers."""
