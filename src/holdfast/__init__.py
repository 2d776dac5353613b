"""Holdfast hosts AI agents for many chats in one process that stays up for months."""

__version__ = "0.1.0"
