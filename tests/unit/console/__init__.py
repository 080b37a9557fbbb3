"""Tests of the console's parts and routes."""
