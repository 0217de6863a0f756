/* The header of 16 bytes before every message. */

#include "tests/lib/test.h"
#include "wire/frame.h"
#include "wire/msg.h"

/* Three bytes of body, version 1, type 20; the checksum is from a table-free CRC32C written from RFC 3720. */
static const uint8_t example[] = {0x41, 0x54, 0x4c, 0x31, 1, 20, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 'a', 'b', 'c'};

static uint32_t slow_crc(const uint8_t *data, size_t n, uint32_t crc)
{
    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

TEST(test_header_has_documented_bytes)
{
    uint8_t made[sizeof example] = {0}, want[sizeof example];
    memcpy(made + WIRE_HEADER, "abc", 3);
    frame_seal(made, 1, 20, 3);
    memcpy(want, example, sizeof want);
    uint32_t crc = slow_crc(want + WIRE_HEADER, 3, slow_crc(want, 12, 0));
    for (int i = 0; i < 4; i++) want[12 + i] = (uint8_t)(crc >> (8 * i));
    assert_memory_equal(made, want, sizeof want);
    struct frame f;
    assert_int_equal(frame_open(&f, made, sizeof made, NULL), STATUS_OK);
    assert_int_equal(f.version, 1);
    assert_int_equal(f.type, 20);
    assert_int_equal(f.size, 3);
    assert_ptr_equal(f.body, made + WIRE_HEADER);
}

static void refused(const uint8_t *data, size_t size, const char *why)
{
    struct frame f;
    struct err err = {0};
    assert_int_equal(frame_open(&f, data, size, &err), STATUS_CORRUPT);
    if (!strstr(err.msg, why)) fail_msg("\"%s\" does not contain \"%s\"", err.msg, why);
}

TEST(test_invalid_headers_are_refused)
{
    uint8_t f[sizeof example + 1];
    memcpy(f, example, sizeof example);
    frame_seal(f, 1, 20, 3);
    refused(f, 0, "shorter");
    refused(f, WIRE_HEADER - 1, "shorter");
    refused(f, sizeof example - 1, "announces");
    refused(f, sizeof example + 1, "announces");
    f[8] = 2;
    refused(f, sizeof example - 1, "checksum");
    f[8] = 3;
    f[0] ^= 1;
    refused(f, sizeof example, "magic");
    f[0] ^= 1;
    f[7] = 1;
    refused(f, sizeof example, "reserved");
    f[7] = 0;
    f[18] ^= 0x80;
    refused(f, sizeof example, "checksum");
    f[18] ^= 0x80;
    memset(f + 8, 0xff, 4);
    refused(f, sizeof example, "limit");
}

TEST_MAIN(NULL, NULL)
