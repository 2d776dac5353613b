"""Accepts messages, hosts conversations, runs turns and delivers answers."""

from holdfast.gateway.accept import Gateway, open_gateway

__all__ = ["Gateway", "open_gateway"]
