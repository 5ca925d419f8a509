"""The referee: measures engines from outside, ours like everyone else's."""
