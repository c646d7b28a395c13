"""What the queries read."""

from mainstem.process import changelog, topic

persons = topic("nexmark.person")
auctions = topic("nexmark.auction")
bids = topic("nexmark.bid")
side = changelog("nexmark.side", key="key")
