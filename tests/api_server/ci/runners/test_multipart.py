"""Forms of uploads are taken apart alike, however they come."""

from collections.abc import AsyncIterator

import pytest

from api_server.ci.runners.uploads import _Parts

FORM = (
    b"\r\n--x\r\n"
    b'Content-Disposition: form-data; name="file"; filename="C:\\\\a \\"b\\".zip"\r\n'
    b"Content-Type: application/zip\r\n\r\n"
    b"\r\n--\r\n-x\r\n\r\n--\r\n"
    b"\r\n--x \t\r\nContent-Disposition: form-data; name=field\r\n\r\n\r\n--x\r\n"
    b"content-disposition: form-data; name=\"other\"; filename*=UTF-8''%C3%A9\r\n\r\nc\r\n--x--\r\n"
)
PARTS = [
    ("file", 'C:\\a "b".zip', b"\r\n--\r\n-x\r\n\r\n--\r\n"),
    ("field", None, b""),
    ("other", "é", b"c"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, len(FORM)])
async def test_parts_are_found_wherever_the_body_is_cut(size: int) -> None:
    async def coming() -> AsyncIterator[bytes]:
        for at in range(0, len(FORM), size):
            yield FORM[at : at + size]

    parts, found = _Parts(coming(), 'multipart/form-data; boundary="x"'), []
    while part := await parts.next():
        found.append((*part, b"".join([piece async for piece in parts.content()])))
    assert found == PARTS
