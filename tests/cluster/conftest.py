from loopback import hosts

__all__ = ["hosts"]
