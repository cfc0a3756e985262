"""The global round: prices, repair, the exact rest and placement. Uses numpy and HiGHS; agents never import it."""
