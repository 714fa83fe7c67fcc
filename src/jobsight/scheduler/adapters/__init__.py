"""TODO scheduler/adapters"""
