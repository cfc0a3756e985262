"""The data path of services: front ends, their proxies, and what watches over them."""
