"""Images of all kinds become the same plain RGB, or are refused from their header."""

from __future__ import annotations

import io
import resource
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from tensorway import images
from tests.encoder_service.pictures import encoded, picture

PIXELS = 1_000_000


def decoded(data: bytes, background: str = "white") -> np.ndarray:
    """All pixels of an image."""
    return images.decode(images.inspect(data, PIXELS, {}), background).pixels


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_every_format_is_read(kind: str) -> None:
    """The formats that people send."""
    pixels = decoded(encoded(Image.new("RGB", (20, 10), "red"), kind))
    assert pixels.shape == (10, 20, 3)
    assert pixels.dtype == np.uint8
    assert np.abs(pixels.astype(int) - [255, 0, 0]).max() < 8


@pytest.mark.parametrize("kind", ["TIFF", "ICO", "PPM", "PDF"])
def test_other_formats_are_not_even_tried(kind: str) -> None:
    """A decoder that is never reached cannot be attacked."""
    with pytest.raises(ValueError, match=r"expected an image \(PNG, JPEG, .*other bytes"):
        decoded(encoded(Image.new("RGB", (20, 10)), kind))


@pytest.mark.parametrize(
    ("mode", "color", "expected"),
    [
        ("1", 1, [255, 255, 255]),
        ("L", 100, [100, 100, 100]),
        ("P", 3, None),
        ("RGB", (1, 2, 3), [1, 2, 3]),
        ("LA", (100, 0), [255, 255, 255]),
        ("RGBA", (9, 9, 9, 0), [255, 255, 255]),
        ("RGBA", (0, 0, 0, 255), [0, 0, 0]),
        ("I;16", 65535, [255, 255, 255]),
        ("I;16", 257 * 100, [100, 100, 100]),
    ],
)
def test_every_mode_becomes_rgb(mode: str, color, expected) -> None:
    """Grey, palettes, transparency and 16 bits are converted by their meaning."""
    pixels = decoded(picture(color, mode=mode))
    assert pixels.shape == (10, 20, 3)
    if expected is not None:
        assert pixels[0, 0].tolist() == expected


def test_cmyk_becomes_rgb() -> None:
    """Print colours too."""
    data = encoded(Image.new("CMYK", (20, 10), (0, 255, 255, 0)), "JPEG")
    assert np.abs(decoded(data)[5, 5].astype(int) - [255, 0, 0]).max() < 8


def test_transparent_parts_show_the_background() -> None:
    """The same pixels on another background are another picture."""
    data = picture((0, 0, 0, 0), mode="RGBA")
    assert decoded(data, "white")[0, 0].tolist() == [255, 255, 255]
    assert decoded(data, "black")[0, 0].tolist() == [0, 0, 0]


def test_a_transparent_colour_of_a_palette_is_transparent() -> None:
    """Palette images say it in another way."""
    image = Image.new("P", (4, 4), 0)
    image.putpalette([10, 20, 30] + [0] * 765)
    assert decoded(encoded(image, transparency=0))[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize(("mode", "color"), [("L", 9), ("RGB", (1, 2, 3)), ("I;16", 40_000)])
def test_a_transparent_colour_of_other_modes_is_transparent(mode: str, color) -> None:
    """Any PNG can name one colour that is transparent, with 16 bits too."""
    image = Image.new(mode, (2, 1), color)
    image.putpixel((1, 0), 65535 if mode == "I;16" else 255)
    data = encoded(image, transparency=color)
    assert decoded(data, "blue")[0, 0].tolist() == [0, 0, 255]
    assert decoded(data, "blue")[0, 1].tolist() != [0, 0, 255]


def test_16_bits_are_rounded_alike() -> None:
    """The same grey is the same grey, with one channel and with three."""
    levels = np.arange(0, 65536, 37, np.uint16)[None]
    grey = decoded(encoded(Image.fromarray(levels)))
    assert (grey == (levels >> 8)[..., None]).all()


def test_exif_orientation_is_applied() -> None:
    """A picture taken with the camera on its side stands upright."""
    image = Image.new("RGB", (30, 10), "red")
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decoded(encoded(image, "JPEG", exif=exif)).shape == (30, 10, 3)


def test_the_first_frame_is_taken() -> None:
    """Of an animation one frame is read, and no more is decoded."""
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue", "green")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decoded(data)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1)])
def test_extreme_shapes_work(size: tuple[int, int]) -> None:
    """A line of pixels is an image."""
    assert decoded(picture(size=size)).shape == (size[1], size[0], 3)


def test_bombs_cost_nothing() -> None:
    """900 million pixels in a file of 100 kB are refused from the header."""
    data = bomb(30_000, 30_000)
    assert len(data) < 200_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    for _ in range(16):
        with pytest.raises(ValueError, match=r"at most 1000000 pixels.*900000000 pixels"):
            images.inspect(data, PIXELS, {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def bomb(width: int, height: int) -> bytes:
    """A PNG of one bit per pixel, all of them zero."""
    compressor = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    body = b"".join(compressor.compress(row) for _ in range(height)) + compressor.flush()
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes((1, 0, 0, 0, 0))
    parts = ((b"IHDR", header), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
        for kind, data in parts
    )


def test_a_few_bytes_cannot_cost_hours() -> None:
    """A progressive JPEG may repeat a scan as often as it likes; each is a pass over all."""
    data = encoded(Image.new("RGB", (64, 64), "red"), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    assert decoded(data).shape == (64, 64, 3)
    with pytest.raises(ValueError, match="expected at most 64 scans, got 1010"):
        images.inspect(data[:-2] + 1000 * last + data[-2:], PIXELS, {})


@pytest.mark.parametrize("data", [b"", b"<html>", b"\x89PNG\r\n\x1a\n", b"x" * 1000])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    """The message says how much came, and nothing of what."""
    with pytest.raises(ValueError, match=f"expected an image .* got {len(data)} other bytes"):
        images.inspect(data, PIXELS, {})


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_half_an_image_is_refused(kind: str) -> None:
    """A truncated file is an error, not a picture with a grey half."""
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    data = encoded(Image.fromarray(noise), kind)
    with pytest.raises(ValueError, match=r"broken|expected an image"):
        decoded(data[: len(data) // 2])


def key(data: bytes, context: bytes = b"", **options: str) -> bytes:
    """The cache key of an image."""
    return images.inspect(data, PIXELS, options).key(context)


def test_keys_tell_apart_what_is_encoded_differently() -> None:
    """Shape, mode, bytes, options and encoder are all in the key, all 256 bits of it."""
    wide, tall = picture(size=(150, 30)), picture(size=(30, 150))
    keys = [
        key(wide),
        key(tall),
        key(picture("white", mode="L")),
        key(picture("white", mode="RGB")),
        key(wide, b"encoder 2"),
        key(wide, detail="high"),
        key(wide, detail="low"),
        key(wide, high="detail"),
    ]
    assert len(set(keys)) == len(keys)
    assert {len(one) for one in keys} == {32}
    assert key(wide) == key(wide)


def test_decoded_pixels_cannot_be_changed() -> None:
    """A backend that scribbles on its input would change what others see."""
    with pytest.raises(ValueError, match="read-only"):
        decoded(picture())[0] = 0


def test_pillow_is_never_asked_to_guess() -> None:
    """What `inspect` reads is the header alone: the file is not decoded."""
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    data = encoded(Image.fromarray(noise))
    cut = data[: len(data) // 2]
    assert images.inspect(cut, PIXELS, {}).pixels == 64 * 64
    assert Image.open(io.BytesIO(data)).size == (64, 64)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_broken_files_raise_nothing_but_value_error(kind: str) -> None:
    """Whatever decoders do with changed bytes, the caller gets one kind of error."""
    chance = np.random.default_rng(3)
    noise = chance.integers(0, 255, (32, 32, 3), np.uint8)
    whole = np.frombuffer(encoded(Image.fromarray(noise), kind), np.uint8)
    refused = 0
    for _ in range(150):
        data = whole.copy()
        data[chance.integers(0, len(data), 6)] = chance.integers(0, 255, 6)
        try:
            decoded(data.tobytes())
        except ValueError:
            refused += 1
    assert refused > 0 or kind == "BMP"
