"""The policies that ship with kvmove, as data: `*.kvpol`."""
