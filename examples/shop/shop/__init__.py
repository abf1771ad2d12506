"""A small shop: orders, payments, receipts."""
