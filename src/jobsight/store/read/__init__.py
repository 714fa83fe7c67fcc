"""TODO store/read"""
