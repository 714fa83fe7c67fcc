"""TODO server/api"""
