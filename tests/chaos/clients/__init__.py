"""The clients of a chaos run: each is a process that notes what it does and sees.

    python -m tests.chaos.clients '{"role": "writer", "client": "aiokafka", "process": …}'

A client obeys lines on its standard input: `rate 500`, `finish`. When the input ends, it stops.
It exits with 0 after `finish`, and with another code when it cannot continue; its supervisor
starts the next one.
"""
