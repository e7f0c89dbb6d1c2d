"""The grammar of `.kvpol` files, as data: `kvpol.lark`."""
