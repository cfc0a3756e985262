"""Storms: the production cores and the controller's shell in a virtual world that breaks in every way it can.

One seed decides everything: the pool, what people ask of it, what fails and when. Safety is checked after every step;
then everything is repaired, and every job must end. Two runs of one seed are the same, step by step.
"""
