"""What is on the pages, by CSS selectors, and pictures of them."""

import json
import os
from pathlib import Path

PICTURES = os.environ.get("MAINSTEM_PICTURES")
PART = "#operations section:first-child [data-part={}]"


def card(topic):
    return f'.card[href="/topics/{topic}"]'


def version(number):
    return f'section[aria-label="version {number}"]'


def fill(page, selector, text):
    page.run(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")


def picture(page, name, height=None):
    if PICTURES:
        page.picture(Path(PICTURES) / f"{name}.png", height)
