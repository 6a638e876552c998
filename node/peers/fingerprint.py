"""Fingerprints of public keys: hexadecimal digits, or ten words.

Both show the beginning of SHA-256 of the public key: 128 bits of it as digits, 80 as words. They
tell keys apart and find mistakes. SHA-256 is fast, so a key with the same first words as another is
found by trying: two keys are compared by their safety number.
"""

from __future__ import annotations

from hashlib import sha256

HEX_BYTES = 16
WORD_COUNT = 10
FINGERPRINT_WORDS = tuple(
    """
    acorn adobe agent album alley amber anchor angle apron aspen atlas attic autumn badge bamboo
    banjo barrel basil beacon bench berry bishop blanket blossom bottle bread bronze brush
    bucket buffalo bundle butter cabin cactus camel canyon cargo castle cedar cello chalk
    chimney cinema circus cliff clover cobra copper cotton cougar coyote cradle cricket crown
    crystal cuckoo curtain dagger dahlia daisy decade delta denim desert diamond dinner doctor
    dolphin domino donkey dragon drummer duchess dune echo eclipse eggplant elbow emerald engine
    envoy fabric falcon farmer feather fern fiddle figure fjord flute forest fossil fountain
    funnel galaxy garden gazelle genius geyser ghost giant giraffe glacier goblin gorilla
    granite guitar gypsum hamster harbor helmet hickory hornet hotel husky hyacinth hydrant
    iceberg igloo indigo inkwell insect iris island ivory jaguar jasmine jewel jigsaw juice
    juniper kayak kebab kernel ketchup kimono kingdom kitten kiwi knight koala ladder lagoon
    lantern lasso lemon leopard library lilac linen lizard lobster lotus lynx magnet mammoth
    maple meadow mentor mirror mosaic muffin museum napkin narwhal nectar needle nickel nomad
    nugget nutmeg oatmeal obelisk ocean octopus olive onion opera orbit orchid osprey oxygen
    palace panda papaya parrot peanut pelican pigeon pilot pirate plumber polka potato pretzel
    pumpkin puzzle python quail queen quiver quokka rabbit radish raven relic rhubarb ribbon
    ruby sapling scarf sequoia silver sketch slalom smoke sofa spider squirrel statue summit
    swan syrup tablet teapot temple thunder tiger toast topaz tractor trumpet tulip turtle
    tuxedo typhoon umbrella unicorn vanilla violin volcano vortex voyage vulture waffle walnut
    weasel wedding whistle willow wolf wombat yacht yogurt zenith zodiac
    """.split()
)
"""256 words in alphabetical order, four to eight letters each; a word's index is the byte that it
stands for. People compare them, so no word ever changes."""


def fingerprint(public: bytes) -> str:
    """32 hexadecimal digits in groups of four, as `a1b2 c3d4 ...`."""
    digits = sha256(public).digest()[:HEX_BYTES].hex()
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


def fingerprint_words(public: bytes) -> str:
    """10 words, one for each byte, with a space between."""
    return " ".join(FINGERPRINT_WORDS[byte] for byte in sha256(public).digest()[:WORD_COUNT])
