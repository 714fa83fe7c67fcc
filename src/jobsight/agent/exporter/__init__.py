"""TODO agent/exporter"""
