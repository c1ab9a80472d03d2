"""Human word ratings for ReviewWorld (layer 0).

Each number is the mean of ten people's ratings of a word from -4 (most negative) to 4 (most positive),
copied from the VADER lexicon; so is the rule for boosters. Words that are not in that lexicon count as 0.
Source: C.J. Hutto and E. Gilbert 2014, "VADER: A Parsimonious Rule-based Model for Sentiment Analysis of
Social Media Text", ICWSM; package vaderSentiment 3.3.2, file vader_lexicon.txt. Its licence:

    The MIT License (MIT). Copyright (c) 2016 C.J. Hutto

    Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
    associated documentation files (the "Software"), to deal in the Software without restriction, including
    without limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
    copies of the Software, and to permit persons to whom the Software is furnished to do so, subject to the
    following conditions:

    The above copyright notice and this permission notice shall be included in all copies or substantial
    portions of the Software.

    THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT
    LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO
    EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER
    IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR
    THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""

# fmt: off
RATINGS = {
    # anything can be
    "good": 1.9, "nice": 1.8, "great": 3.1, "lovely": 2.8, "pleasant": 2.3, "wonderful": 2.7, "perfect": 2.7,
    "bad": -2.5, "poor": -2.1, "awful": -2.0, "terrible": -2.1, "horrible": -2.5, "disappointing": -2.2,
    # food
    "fresh": 1.3, "delicious": 2.7, "sweet": 2.0, "weak": -1.9, "bitter": -1.8, "rotten": -2.3,
    # people
    "friendly": 2.2, "helpful": 1.8, "charming": 2.8, "rude": -2.0, "careless": -1.5, "angry": -2.3,
    # places
    "warm": 0.9, "clean": 1.7, "elegant": 2.1, "dirty": -1.9, "noisy": -0.7, "gloomy": -0.6,
}
# added to the strength of the rating of the next word
BOOSTERS = {
    "very": 0.293, "really": 0.293, "quite": 0.293, "so": 0.293,
    "slightly": -0.293, "somewhat": -0.293,
}
# fmt: on
