"""Content types of raw files: those that Go 1.19 detects for many beginnings, and Workhorse's own rules on top."""

import time

from api_server.static_objects.raw import SNIFFED_BYTES, label

TEXT = "text/plain; charset=utf-8"
#: Go's answers. What it calls HTML, XML or text of any charset is `text`.
DETECTED = {
    "text": [
        b"", b"hello\n", b"\tcaf\xc3\xa9\r\n", b"caf\xe9", b"\x1b[31mred\x1b[0m", b"a\x0cb", b"a\x7fb", b"ab\tc",
        b"ab\nc", b"ab\x0cc", b"ab\rc", b"ab\x1bc", b"ab c",
        b"x" * 512 + b"\x00",
        b"x" * 600,
        b"\xff\xfeh\x00i\x00", b"\xfe\xff\x00h\x00i", b"\xff\xfe", b"\xff\xfeh", b"\xff\xfeh\x00", b"\xef\xbb\xbf",
        b"\xef\xbb\xbfhi", b"\xef\xbb\xbf\x00\x01", b"\xff\xfe\x00\x00h\x00\x00\x00", b"<!DOCTYPE HTML>\x00",
        b"<HTML>\x00", b"<HEAD>\x00", b"<SCRIPT>\x00", b"<IFRAME>\x00", b"<H1>\x00", b"<DIV>\x00", b"<FONT>\x00",
        b"<TABLE>\x00", b"<A>\x00", b"<STYLE>\x00", b"<TITLE>\x00", b"<B>\x00", b"<BODY>\x00", b"<BR>\x00",
        b"<P>\x00", b"<!-->\x00", b"<html>", b"<hTmL >\x00", b" \t\r\n\x0c<html>\x00", b"<html",
        b"<!doctype html>\x00", b"<!-- x\x00", b"<?xml version='1.0'?>\x00", b"  <?xml \x00",
        b"\xef\xbb\xbf<html>\x00",
        b" " * 520 + b"<html>\x00",
        b"%PDF", b" %PDF-1.4", b"%!PS", b"OggS", b"1234ftyp is text", b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxLP",
        b"PK is a name", b"BZh91AY&SY", b"\xca\xfe\xba\xbe", b"!<arch>\n", b'{"a": 1}', b"#!/bin/sh\n",
    ],
    "application/octet-stream": [
        b"ab\x00c", b"ab\x01c", b"ab\x08c", b"ab\x0bc", b"ab\x0ec", b"ab\x1ac", b"ab\x1cc", b"ab\x1fc", b"\x00",
        b"\x08", b"\x0b", b"\x1c",
        b"x" * 511 + b"\x00",
        b"\x00\x00\xfe\xff\x00\x00\x00h", b" \xff\xfeh\x00", b"<html\x00", b"<html/\x00>", b"\x0b<html>\x00",
        b"<!--\x00", b"<?XML \x00", b"GIF88a\x00", b"RIFF\x00\x00\x00\x00WEBP", b"\x89PNG\n\x1a\n", b"\xff\xd8\x00",
        b"II*\x00", b"8BPS\x00\x01", b"\x00\x00\x00\x0cjP  \r\n\x87\n",
        b"\x00\x00\x00 ftypavif\x00\x00\x00\x00avifmif1miafMA1B", b".snd\x00\x00\x00\x18", b'fLaC\x00\x00\x00"',
        b"\x00\x00\x00\x18ftypisom\x00\x00\x02\x00isomiso2", b"\x00\x00\x00\x14ftypqt  \x00\x00\x00\x00qt  ",
        b"\x00\x00\x00\x18ftypisommp41\x00\x00\x00\x00abcd", b"\x00\x00\x00\x18ftypmp42",
        b"\x00\x00\x00\x17ftypmp42\x00\x00\x00\x00isommp4", b"\x00\x00\x00\x00ftypmp42\x00\x00\x00\x00",
        b"\x00\x00\x04\x00ftypmp42" + bytes(1012),
        b"\x00\x00\x00\x10ftypM4V \x00\x00\x00\x01mp42", b"true\x00", b"\x1f\x8b\x00", b"PK\x05\x06\x00",
        b"Rar!\x1a\x07\x01", b"BZh91AY&SY\x00", b"\xfd7zXZ\x00", b"7z\xbc\xaf'\x1c", b"\x7fELF\x02\x01",
        b"MZ\x90\x00",
        b"x" * 257 + b"ustar\x00",
        b"SQLite format 3\x00", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"(\xb5/\xfd\x04", b"\x80\x04\x95",
    ],
    "application/pdf": [b"%PDF-1.4"],
    "application/postscript": [b"%!PS-Adobe-3.0"],
    "image/x-icon": [b"\x00\x00\x01\x00abcd", b"\x00\x00\x02\x00abcd", b"\x00\x00\x01\x00ftypmp42" + bytes(248)],
    "image/bmp": [b"BM text that begins so", b"BM\x00", b"BMW"],
    "image/gif": [b"GIF87a", b"GIF89a\x00"],
    "image/webp": [b"RIFF\x00\x00\x00\x00WEBPVP8 ", b"RIFF....WEBPVP"],
    "image/png": [
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    ],
    "image/jpeg": [b"\xff\xd8\xff\xe0\x00"],
    "audio/aiff": [b"FORM\x00\x00\x00\x00AIFF"],
    "audio/mpeg": [b"ID3 tags of music", b"ID3\x03\x00"],
    "application/ogg": [b"OggS\x00"],
    "audio/midi": [b"MThd\x00\x00\x00\x06\x00"],
    "video/avi": [b"RIFF\x00\x00\x00\x00AVI LIST"],
    "audio/wave": [b"RIFF\x00\x00\x00\x00WAVEfmt "],
    "video/mp4": [
        b"\x00\x00\x00\x18ftypmp42\x00\x00\x00\x00isommp42",
        b"\x00\x00\x00 ftypisom\x00\x00\x02\x00isomiso2avc1mp41", b"\x00\x00\x00\x0cftypmp42",
    ],
    "video/webm": [b"\x1aE\xdf\xa3\x9f"],
    "application/vnd.ms-fontobject": [
        b"\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01LP",
        b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxLP",
    ],
    "font/ttf": [b"\x00\x01\x00\x00\x00"],
    "font/otf": [b"OTTO\x00", b"OTTO is a palindrome"],
    "font/collection": [b"ttcf"],
    "font/woff": [b"wOFF"],
    "font/woff2": [b"wOF2"],
    "application/x-gzip": [b"\x1f\x8b\x08\x00"],
    "application/zip": [b"PK\x03\x04\x14\x00"],
    "application/x-rar-compressed": [b"Rar!\x1a\x07\x00", b"Rar!\x1a\x07\x01\x00"],
    "application/wasm": [b"\x00asm\x01\x00\x00\x00"],
}  # fmt: skip


def test_types_are_those_that_go_detects() -> None:
    found = {name: [label(head).media_type for head in heads] for name, heads in DETECTED.items()}
    assert found == {
        name: [TEXT if name == "text" else name] * len(heads) for name, heads in DETECTED.items()
    }


def test_text_pictures_films_and_pdf_are_shown_and_all_else_is_saved() -> None:
    shown = {name for name, heads in DETECTED.items() if label(heads[0]).inline}
    assert shown == {
        "text", "application/pdf", "image/x-icon", "image/bmp", "image/gif", "image/webp", "image/png", "image/jpeg",
        "video/avi", "video/mp4", "video/webm",
    }  # fmt: skip


#: What may come before the root element of an SVG.
BEFORE = [
    b"", b"\xef\xbb\xbf", b" \t\r\n\f", b"<!-- a comment -->\n<!---->", b'<?xml version="1.0" encoding="UTF-8"?>\n',
    b"<!DOCTYPE svg>",
    b'\xef\xbb\xbf\n<?XML version="1.0"?><!-- <p> -->\n<!doctype SVG PUBLIC "-//W3C//DTD SVG 1.1//EN">\n<!-- -->\n',
]  # fmt: skip


def test_a_file_that_begins_with_svg_is_svg_which_is_never_shown() -> None:
    for before in BEFORE:
        for root in (b"<svg>", b"<SVG xmlns='x'", b"<svg/>", b"<svg>\0"):
            found = label(before + root)
            assert (before, root, found.media_type, found.inline) == (before, root, "image/svg+xml", False)


#: Texts that have an SVG in them, or are cut off before it.
NO_SVG = [
    b"# A readme\n<svg width='1'/>", b"<template><svg></svg></template>",
    b".a { background: url('data:image/svg+xml,<svg/>') }", b"<!DOCTYPE html><svg>", b"<html><svg>",
    b"<!-- <svg> -->", b"<!-- <svg>", b"<?xml version='1.0'?><note/><svg/>", b"<?xml <svg", b"<!DOCTYPE svg <svg",
    b"x<svg>", b"< svg>", b"<sv",
    b" " * SNIFFED_BYTES + b"<svg>",
    b"<!--" + b"-" * SNIFFED_BYTES + b"--><svg>",
    "<svg>".encode("utf-16"),
]  # fmt: skip


def test_svg_in_a_file_does_not_make_it_one() -> None:
    for head in NO_SVG:
        found = label(head)
        assert (head, found.media_type, found.inline) == (head, TEXT, True)


def test_no_beginning_takes_long() -> None:
    """Of megabytes no more is looked at than of the first bytes."""
    pieces = (b"<!--", b"<!-- -->", b" ", b"<?xml", b"<?xml>", b"<!doctype svg", b"\t<", b"<a ", b"x")
    heads = [piece * (2**20 // len(piece)) for piece in pieces]
    began = time.process_time()
    for head in heads:
        assert label(head).media_type == TEXT
    assert time.process_time() - began < 0.05
