"""The origin's side of mirroring: publish versions, know who follows them."""
