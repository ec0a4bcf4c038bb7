"""A fuzzer of everything that reads what others wrote: real files, damaged with their structure in mind.

The property: nothing but this project's errors comes out, in bounded time and memory.
"""
