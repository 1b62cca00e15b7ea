"""Callbacks: jobs that wait for a word from outside.

expressions   | what a payload means to a job that registered expressions
cel           | one expression: checked, limited, compiled, evaluated
"""
